"""The parameters of `wam_node`, and what is made of them.  config/wam.yaml shows them all."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.node import Node

from physis_core.delivery.handover import STRATEGIES
from physis_core.planning.modes import MODES
from physis_ros.ingest.image import ENCODINGS
from physis_ros.ingest.subscriptions import DURABILITIES, RELIABILITIES
from physis_ros.parameters import Setting, Settings

TRANSPORTS = ('raw', 'compressed')


def _subscription(source: str, depth: int) -> tuple[Setting, ...]:
    """Quality of service of a subscription."""
    return (
        Setting(f'{source}.reliability', 'best_effort', 'asked of the publisher',
                choices=tuple(RELIABILITIES)),
        Setting(f'{source}.depth', depth, 'messages kept until they are taken [1]', 1, 1_000),
    )


def _limit(name: str, warn: float, error: float, what: str, low: float, high: float,
           below: bool = False) -> tuple[Setting, ...]:
    """What diagnostics warn of, and what they call an error."""
    side = 'below' if below else 'above'
    return tuple(Setting(f'{level}.{name}', value, f'{what}, {side} which there is {said}', low,
                         high, fixed_from='never')
                 for level, value, said in (('warn', warn, 'a warning'),
                                            ('error', error, 'an error')))


WAM_SETTINGS = (
    Setting('autostart', True, 'configure and activate without being asked to', fixed_from='never'),
    Setting('stream_id', 'so101', 'name of the stream in every message', fixed_from='active'),
    Setting('ring', '', 'shared memory to the servo; empty: from domain and namespace'),
    # -- model and plan
    Setting('model', 'so101', 'name of a registered model'),
    Setting('model_options', '{}', 'options of the model, JSON'),
    Setting('plan_file', '', 'plan made by `physis plan`; empty: plan_mode on workers'),
    Setting('plan_mode', 'full_split', 'how stages are spread over workers', choices=tuple(MODES)),
    Setting('workers', 2, 'worker processes, one per device [1]', 1, 4096),
    Setting('compute', 'cpu', 'what workers compute on; cuda: worker i on GPU i of this host',
            choices=('cpu', 'cuda')),
    Setting('stall_s', 10.0, 'a worker that does not look up for longer hangs, and is replaced; '
            'above the longest batch and the taking in of a prompt [s]', 0.1, 86_400.0),
    Setting('seed', 0, 'seed of the noise', 0, 2**31 - 1, fixed_from='active'),
    # -- time
    Setting('period_ms', 160.0, 'interval between chunks [ms]', 1.0, 60_000.0),
    Setting('lead_ms', 100.0, 'from letting a chunk in to its first control point [ms]', 0.0,
            60_000.0, fixed_from='active'),
    Setting('max_age_ms', 2_000.0, 'an action older than this when due is dropped [ms]', 1.0,
            600_000.0, fixed_from='active'),
    Setting('time_jump_ms', 100.0, 'a jump of ROS time against the steady clock that resets [ms]',
            1.0, 60_000.0),
    # -- sources
    Setting('camera_names', ('front', 'wrist'), 'names of the cameras: inputs of the model'),
    Setting('joints.input', 'joints', 'input of the model that takes joint positions; empty: none'),
    Setting('joints.names', ('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex',
                             'wrist_roll', 'gripper'),
            'joints in the order of the model'),
    Setting('joints.topic', '/joint_states', 'sensor_msgs/JointState'),
    # They may wait while images are converted: 40 ms of them at 500 Hz.
    *_subscription('joints', depth=20),
    Setting('joints.expected_hz', 0.0, 'rate below which diagnostics warn; 0: none [Hz]', 0.0,
            10_000.0),
    Setting('joints.stale_ms', 250.0, 'older joint positions are not used [ms]', 1.0, 60_000.0),
    Setting('wrench.input', '', 'input of the model that takes a wrench; empty: none'),
    Setting('wrench.topic', '/force_torque_sensor_broadcaster/wrench',
            'geometry_msgs/WrenchStamped'),
    Setting('wrench.frame', '', 'frame that it must be in; empty: any'),
    *_subscription('wrench', depth=5),
    Setting('wrench.expected_hz', 0.0, 'rate below which diagnostics warn; 0: none [Hz]', 0.0,
            10_000.0),
    Setting('wrench.stale_ms', 250.0, 'an older wrench is not used [ms]', 1.0, 60_000.0),
    Setting('wrench.frozen_ms', 3_000.0, 'identical wrenches for so long are frozen; 0: never '
            '[ms]', 0.0, 600_000.0),
    Setting('instruction.input', '', 'input of the model, of its observation or its prompt, that '
            'takes a text; empty: none'),
    Setting('instruction.text', '', 'the instruction; may be changed at any time; empty: wait for '
            'one', fixed_from='never'),
    Setting('instruction.topic', '~/instruction', 'std_msgs/String, changes it too'),
    Setting('instruction.durability', 'volatile', 'asked of the publisher',
            choices=tuple(DURABILITIES)),
    Setting('instruction.stale_ms', 0.0, 'an older instruction is not used; 0: it holds [ms]', 0.0,
            86_400_000.0),
    # -- handover
    Setting('handover.strategy', 'replace', 'how a chunk takes over', choices=STRATEGIES,
            fixed_from='active'),
    Setting('handover.blend_ms', 60.0, 'blend: length of the fade [ms]', 0.0, 10_000.0,
            fixed_from='active'),
    Setting('handover.decay', 0.5, 'ensemble: weight exp(-decay * age in chunks)', 0.0, 100.0,
            fixed_from='active'),
    Setting('handover.prefix_points', 2, 'prefix: control points already promised [1]', 0, 1000,
            fixed_from='active'),
    # -- outputs
    Setting('trajectory.topic', '/arm_controller/joint_trajectory',
            'trajectory_msgs/JointTrajectory; empty: not published'),
    Setting('trajectory.early_ms', 20.0, 'how long before its start a trajectory is sent: a '
            'controller gives up the old one when it arrives [ms]', 0.0, 1_000.0),
    Setting('trajectory.deceleration', 10.0, 'of the trajectory that is sent last when the node '
            'stops, and of the end of each one [rad/s^2]', 0.01, 10_000.0),
    Setting('record', '', 'folder for recordings of observations and chunks; empty: none',
            fixed_from='active'),
    # -- diagnostics
    Setting('window_s', 5.0, 'length of the windows of rates and percentiles [s]', 1.0, 600.0),
    Setting('report_hz', 2.0, 'rate of ~/stream_report [Hz]', 0.1, 50.0),
    Setting('warm_up_chunks', 2, 'first chunks left out of ages and deadlines [1]', 0, 10_000,
            fixed_from='active'),
    *_limit('age_ms', 500.0, 1_000.0, 'age p99 [ms]', 1.0, 600_000.0),
    *_limit('on_time_ratio', 0.99, 0.9, 'on-time ratio', 0.0, 1.0, below=True),
    *_limit('rate_share', 0.9, 0.5, 'share of an expected rate', 0.0, 1.0, below=True),
    *_limit('replan_share', 0.5, 0.05, 'share of the chunks that came from newer observations',
            0.0, 1.0, below=True),
    *_limit('dropped_ratio', 0.01, 0.1, 'share of finished chunks that were dropped', 0.0, 1.0),
    *_limit('held_back_ratio', 0.01, 0.1, 'share of the beats on which the pipeline had no room',
            0.0, 1.0),
    *_limit('temperature_c', 85.0, 95.0, 'temperature of a device [degrees Celsius]', 0.0, 200.0),
    *_limit('memory_share', 0.9, 0.97, 'share of the memory in use', 0.0, 1.0),
)


def declare_wam_settings(node: Node, fixed: Callable[[Setting], str] = lambda setting: ''
                         ) -> Settings:
    """Declare the parameters of a node, with those of each camera it names.

    ``fixed`` says why one cannot be changed now; empty: it can.
    """
    settings = Settings(node, WAM_SETTINGS)
    for camera in filter(None, node.get_parameter('camera_names').value or ()):
        for setting in camera_settings(camera):
            settings.add(setting)
    settings.refuse_bad_changes(fixed)
    return settings


def camera_settings(camera: str) -> tuple[Setting, ...]:
    """The parameters of one camera."""
    prefix = f'cameras.{camera}'
    return (
        Setting(f'{prefix}.topic', f'/camera/{camera}/image_raw',
                'sensor_msgs/Image, or CompressedImage'),
        Setting(f'{prefix}.transport', 'raw', 'type of the topic', choices=TRANSPORTS),
        Setting(f'{prefix}.encoding', '', 'overrides the encoding of the messages',
                choices=('', *ENCODINGS)),
        *_subscription(prefix, depth=1),
        Setting(f'{prefix}.expected_hz', 30.0, 'rate below which diagnostics warn [Hz]', 0.01,
                1000.0),
        Setting(f'{prefix}.stale_ms', 250.0, 'an older image is not used [ms]', 1.0, 60_000.0),
        Setting(f'{prefix}.frozen_ms', 3_000.0, 'identical images for so long are frozen; 0: never '
                '[ms]', 0.0, 600_000.0),
    )
