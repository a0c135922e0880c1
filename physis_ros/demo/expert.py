"""The scripted expert: sees where cube and goal are, and shows the model how to place it."""

import mujoco
import numpy as np
from lerobot_env_so101.ik_control import control_point, roll_to_align_axis, solve_ik
from lerobot_env_so101.mujoco_env import grasp_point_offset
from lerobot_env_so101.scripted import PickPlaceController

from physis_ros.demo.scene import ARM_JOINTS, Scene

TICKS_PER_DECISION = 5
STRIDE_M = 0.025  # farthest the target moves in one decision
_LEASH_M = 0.06  # farthest the target may lead the grasp point
_JAW_OFFSET_M = np.array([0.0, -0.006, 0.0])  # centres the cube between the jaws
_REACH_M = np.array([[0.1, -0.3, 0.0], [0.5, 0.3, 0.4]])
_JAW_AXIS = 2
_APPROACH_AXIS = 0


class ScriptedExpert:
    """Turns the package's 10 Hz Cartesian pick-and-place phases into 50 Hz joint targets.

    It may also just watch: `act` follows the scene's true state and needs nobody to obey it.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._phases = PickPlaceController(STRIDE_M)
        model = scene.model
        self._site = model.site('gripperframe').id
        self._joints = np.array([model.joint(name).id for name in ARM_JOINTS])
        self._roll = model.joint('wrist_roll').id
        self._grasp_offset = grasp_point_offset(model, self._site)
        self._scratch = mujoco.MjData(model)
        self.reset()

    def reset(self) -> None:
        """Start over; call after every reset of the scene."""
        self._phases.reset()
        self._target_m = self._grasp_point_m()
        self._was_moving = False
        self._from_rad = self._scene.joint_positions_rad().astype(np.float64)
        self._to_rad = self._from_rad.copy()
        self._ticks = 0

    def act(self) -> np.ndarray:
        """Return the joint target `[6]` in radians for the control period that begins now."""
        phase = self._ticks % TICKS_PER_DECISION
        if phase == 0:
            self._from_rad, self._to_rad = self._to_rad, self._decide()
        self._ticks += 1
        return self._from_rad + (self._to_rad - self._from_rad) * (phase + 1) / TICKS_PER_DECISION

    def _decide(self) -> np.ndarray:
        grasp = self._grasp_point_m()
        action = self._phases.act(
            grasp, self._scene.cube_m() + _JAW_OFFSET_M, self._scene.goal_m + _JAW_OFFSET_M)
        stride_m = action[:3] * STRIDE_M
        moving = bool(np.linalg.norm(stride_m) > 1e-8)
        if moving:
            self._target_m = self._target_m + stride_m
        elif self._was_moving:
            self._target_m = grasp
        self._was_moving = moving
        lead_m = (self._target_m - grasp).clip(-_LEASH_M, _LEASH_M)
        self._target_m = (grasp + lead_m).clip(*_REACH_M)
        closed_rad, open_rad = self._scene.joint_limits_rad[-1]
        jaw_rad = closed_rad + float(action[3]) * (open_rad - closed_rad)
        return np.array([*self._arm_rad(self._target_m), jaw_rad])

    def _grasp_point_m(self) -> np.ndarray:
        return control_point(self._scene.data, self._site, self._grasp_offset)

    def _arm_rad(self, target_m: np.ndarray) -> np.ndarray:
        """Solve for the arm `[5]` that points straight down at `target_m`, jaws along world y."""
        model, data = self._scene.model, self._scratch
        data.qpos[:] = self._scene.data.qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        seed_rad = data.qpos[self._joints].copy()
        seed_rad[-1] += roll_to_align_axis(
            data, self._site, self._roll, _JAW_AXIS, np.array([0.0, 1.0, 0.0]))
        seed_rad[-1] = seed_rad[-1].clip(*model.jnt_range[self._roll])
        return solve_ik(
            model=model, data=data, site_id=self._site, dof_ids=self._joints, target_pos=target_m,
            ik_damping=0.1, ik_iterations=20, seed_q=seed_rad, point_offset=self._grasp_offset,
            approach_axis=_APPROACH_AXIS)
