"""The parameters of `wam_node`, and what is made of them.  config/wam.yaml shows them all."""

from __future__ import annotations

from rclpy.node import Node

from physis_core.delivery.handover import STRATEGIES
from physis_core.planning.modes import MODES
from physis_ros.ingest.image import ENCODINGS
from physis_ros.parameters import Setting, Settings

RELIABILITIES = ('best_effort', 'reliable')
TRANSPORTS = ('raw', 'compressed')

WAM_SETTINGS = (
    Setting('autostart', True, 'configure and activate without being asked to'),
    Setting('stream_id', 'so101', 'name of the stream in every message'),
    Setting('ring', '', 'shared memory to the servo; empty: from domain and namespace'),
    # -- model and plan
    Setting('model', 'so101', 'name of a registered model'),
    Setting('model_options', '{}', 'options of the model, JSON'),
    Setting('plan_file', '', 'plan made by `physis plan`; empty: plan_mode on workers'),
    Setting('plan_mode', 'full_split', 'how stages are spread over workers', choices=tuple(MODES)),
    Setting('workers', 2, 'worker processes, one per device [1]', 1, 4096),
    Setting('compute', 'cpu', 'what workers compute on; cuda: worker i on GPU i of this host',
            choices=('cpu', 'cuda')),
    Setting('seed', 0, 'seed of the noise', 0, 2**31 - 1),
    # -- time
    Setting('period_ms', 160.0, 'interval between chunks [ms]', 1.0, 60_000.0),
    Setting('lead_ms', 100.0, 'from letting a chunk in to its first control point [ms]', 0.0,
            60_000.0),
    Setting('max_age_ms', 2_000.0, 'an action older than this when due is dropped [ms]', 1.0,
            600_000.0),
    Setting('time_jump_ms', 100.0, 'a jump of ROS time against the steady clock that resets [ms]',
            1.0, 60_000.0),
    # -- sources
    Setting('camera_names', ('front', 'wrist'), 'names of the cameras: inputs of the model'),
    Setting('joints.input', 'joints', 'input of the model that takes joint positions; empty: none'),
    Setting('joints.names', ('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex',
                             'wrist_roll', 'gripper'),
            'joints in the order of the model'),
    Setting('joints.topic', '/joint_states', 'sensor_msgs/JointState'),
    Setting('joints.reliability', 'best_effort', 'asked of the publisher', choices=RELIABILITIES),
    Setting('joints.stale_ms', 250.0, 'older joint positions are not used [ms]', 1.0, 60_000.0),
    # -- handover
    Setting('handover.strategy', 'replace', 'how a chunk takes over', choices=STRATEGIES),
    Setting('handover.blend_ms', 60.0, 'blend: length of the fade [ms]', 0.0, 10_000.0),
    Setting('handover.decay', 0.5, 'ensemble: weight exp(-decay * age in chunks)', 0.0, 100.0),
    Setting('handover.prefix_points', 2, 'prefix: control points already promised [1]', 0, 1000),
    # -- outputs
    Setting('trajectory.topic', '/arm_controller/joint_trajectory',
            'trajectory_msgs/JointTrajectory; empty: not published'),
    Setting('trajectory.early_ms', 20.0, 'how long before its start a trajectory is sent: a '
            'controller gives up the old one when it arrives [ms]', 0.0, 1_000.0),
    Setting('trajectory.deceleration', 10.0, 'of the trajectory that is sent last when the node '
            'stops [rad/s^2]', 0.01, 10_000.0),
    Setting('trajectory.end_at_rest', False,
            'end each trajectory with velocity 0, for controllers that demand it'),
    Setting('record', '', 'folder for recordings of observations and chunks; empty: none'),
    # -- diagnostics
    Setting('window_s', 5.0, 'length of the windows of rates and percentiles [s]', 1.0, 600.0),
    Setting('report_hz', 2.0, 'rate of ~/stream_report [Hz]', 0.1, 50.0),
    Setting('warm_up_chunks', 2, 'first chunks left out of ages and deadlines [1]', 0, 10_000),
    Setting('warn.age_ms', 500.0, 'age p99 that is a warning [ms]', 1.0, 600_000.0),
    Setting('error.age_ms', 1_000.0, 'age p99 that is an error [ms]', 1.0, 600_000.0),
    Setting('warn.on_time_ratio', 0.99, 'on-time ratio below which there is a warning', 0.0, 1.0),
    Setting('error.on_time_ratio', 0.9, 'on-time ratio below which there is an error', 0.0, 1.0),
    Setting('warn.rate_share', 0.9, 'share of an expected rate below which there is a warning',
            0.0, 1.0),
    Setting('error.rate_share', 0.5, 'share of an expected rate below which there is an error',
            0.0, 1.0),
)


def declare_wam_settings(node: Node) -> Settings:
    """Declare the parameters of a node, with those of each camera it names."""
    settings = Settings(node, WAM_SETTINGS)
    for camera in filter(None, node.get_parameter('camera_names').value or ()):
        for setting in camera_settings(camera):
            settings.add(setting)
    settings.refuse_bad_changes()
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
        Setting(f'{prefix}.reliability', 'best_effort', 'asked of the publisher',
                choices=RELIABILITIES),
        Setting(f'{prefix}.expected_hz', 30.0, 'rate below which diagnostics warn [Hz]', 0.01,
                1000.0),
        Setting(f'{prefix}.stale_ms', 250.0, 'an older image is not used [ms]', 1.0, 60_000.0),
        Setting(f'{prefix}.frozen_ms', 3_000.0, 'identical images for so long are frozen; 0: never '
                '[ms]', 0.0, 600_000.0),
    )
