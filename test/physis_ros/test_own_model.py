"""The README's own model drives a robot, with the parameters that stand beside it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

import rclpy
from graph import Graph
from trajectory_msgs.msg import JointTrajectory

from physis_core.errors import InputError
from physis_ros.msg import ActionChunk
from physis_ros.policy import make_policy
from physis_ros.wam_node import WamNode
from physis_ros.wam_settings import WAM_SETTINGS

JOINTS = [f'joint_{number}' for number in range(1, 7)]
# A busy machine must not decide whether a chunk comes in time.
PATIENT = {'lead_ms': 2000.0, 'max_age_ms': 60_000.0, 'cameras.front.stale_ms': 60_000.0,
           'joints.stale_ms': 60_000.0}
DEFAULTS = {setting.name: setting.default for setting in WAM_SETTINGS}


@pytest.fixture
def folder(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the model and the parameters of the README, on the path of modules."""
    text = (repository / 'README.md').read_text(encoding='utf-8')
    section = text.split('\n## Your own model\n', 1)[1].split('\n## ', 1)[0]
    model = re.findall(r'```python\n(.*?)```', section, re.DOTALL)[0]
    parameters, = re.findall(r'```yaml\n(.*?)```', section, re.DOTALL)
    (tmp_path / 'my_model.py').write_text(model)
    (tmp_path / 'my.yaml').write_text(parameters)
    watch, = re.findall(r'```python\n(.*?)```', text.split('\n## Your own robot\n')[1].split(
        '\n## ', 1)[0], re.DOTALL)
    (tmp_path / 'watch.py').write_text(watch)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv('PYTHONPATH', f'{tmp_path}:{repository}')
    monkeypatch.delitem(sys.modules, 'my_model', raising=False)
    yield tmp_path
    sys.modules.pop('my_model', None)


@contextmanager
def watching(script: Path) -> Iterator[list[str]]:
    """The lines that a script prints while it runs."""
    said: list[str] = []
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = process.stdout
        reader = threading.Thread(target=lambda: said.extend(map(str.strip, lines)))
        reader.start()
        try:
            yield said
        finally:
            process.kill()
            reader.join()


def test_it_makes_chunks_and_trajectories_of_what_a_robot_senses(folder: Path) -> None:
    arguments = ['--ros-args', '--params-file', str(folder / 'my.yaml')]
    for name, value in PATIENT.items():
        arguments += ['-p', f'{name}:={value}']
    rclpy.init(args=arguments)
    node, graph = WamNode(), Graph()
    graph.executor.add_node(node)
    try:
        chunks = graph.listen(ActionChunk, '/wam_node/action_chunk')
        trajectories = graph.listen(JointTrajectory, '/arm_controller/joint_trajectory')
        node.trigger_configure()
        node.trigger_activate()

        def heard() -> bool:
            graph.feel(dict.fromkeys(JOINTS, 0.2))
            graph.show('front')
            return bool(chunks and trajectories)

        graph.wait_for(heard, 'a chunk and a trajectory')
        with watching(folder / 'watch.py') as said:
            graph.wait_for(lambda: heard() and len(said) > 3, 'the script beside the node')
    finally:
        node.close()
        graph.close()
        node.destroy_node()
        rclpy.try_shutdown()
    assert said[:3] == ['pause paused', 'pause running', f'reset epoch {chunks[0].epoch + 1}']
    assert said[3].startswith('chunk ')
    assert chunks[0].joint_names == JOINTS == trajectories[0].joint_names
    assert (chunks[0].horizon, chunks[0].period.nanosec) == (4, 20_000_000)
    parameters = yaml.safe_load((folder / 'my.yaml').read_text())['/**/wam_node']
    assert parameters['ros__parameters']['period_ms'] == 4 * 20.0


@pytest.mark.parametrize(('written', 'instead', 'says'), [
    ('semantics=OutputSemantics(control_points_per_latent=4, control_period_s=0.02)', '',
     r'semantics=OutputSemantics\(control_points_per_latent=4, control_period_s='),
    ('control_points_per_latent=4', 'control_points_per_latent=16',
     'says that a chunk has 16 control points, and its output `positions` has 4: give its '
     '`OutputSemantics` control_points_per_latent=4, not 16'),
    ('control_points_per_latent=4, ', '', 'control_points_per_latent=4, not 0'),
    ("'positions': TensorSpec((4, 6))", "'video': TensorSpec((4, 6))",
     r'makes no actions \(its outputs are video\)'),
    ("'positions': TensorSpec((4, 6))", "'positions': TensorSpec((24,))",
     r'has shape \(24,\); a robot needs \(points, joints\)'),
    ("TensorSpec((48, 64, 3), 'uint8')", 'TensorSpec((48, 64, 3))',
     'input `front` of model `my_model` is float32; its source gives uint8'),
    ("'joints': TensorSpec((6,))", "'joints': TensorSpec((6,), 'float64')",
     'input `joints` of model `my_model` is float64; its source gives float32'),
    ("'joints': TensorSpec((6,))", "'joints': TensorSpec((7,))",
     'input `joints` of model `my_model` has 7 values for 6 joints; correct `joints.input`'),
    ("'joints': TensorSpec((6,))", "'joints': TensorSpec((6,)), 'wrench': TensorSpec((5,))",
     'input `wrench` of model `my_model` has 5 values for 6 numbers of a wrench; correct '
     '`wrench.input`'),
])
def test_a_model_that_cannot_drive_a_robot_is_told_what_it_lacks(
        folder: Path, written: str, instead: str, says: str) -> None:
    file = folder / 'my_model.py'
    text = file.read_text()
    assert written in text
    file.write_text(text.replace(written, instead))
    with pytest.raises(InputError, match=says):
        make_policy({**DEFAULTS, 'model': 'my_model', 'camera_names': ('front',),
                     'wrench.input': 'wrench' if 'wrench' in instead else ''})
