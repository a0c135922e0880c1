"""The whole path: cameras to motion through every process, by the command a user types."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip('rclpy', reason='needs the extra `ros`')
pytest.importorskip('physis_ros.demo.scene', reason='needs the extra `demo`')

from physis_core.cli.main import main
from physis_ros.demo import demo_command
from physis_ros.demo.private_domain import PrivateDomain

WAIT_S = 90.0
PORT_BASE, PORT_GAIN = 7400, 250


class Demo:
    """A running `physis demo`, and what of it can be found on this host."""

    def __init__(self, domain_id: int, out: Path, *options: str) -> None:
        self.domain_id = domain_id
        self.out = out
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'physis_core.cli.main', 'demo', '--out', str(out),
             '--domain-id', str(domain_id), *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def finish(self, limit_s: float = WAIT_S) -> tuple[int, str]:
        """Exit code and output."""
        output, _ = self.process.communicate(timeout=limit_s)
        return self.process.returncode, output

    def processes(self) -> dict[int, str]:
        """Command lines of the children by process id: they live in the demo's domain."""
        mark = f'ROS_DOMAIN_ID={self.domain_id}'.encode()
        found = {}
        for folder in Path('/proc').glob('[0-9]*'):
            try:
                if mark in (folder / 'environ').read_bytes().split(b'\0'):
                    line = (folder / 'cmdline').read_bytes().replace(b'\0', b' ').decode()
                    if line and int(folder.name) != os.getpid():
                        found[int(folder.name)] = line
            except OSError:
                continue
        return found

    def shared_memory(self) -> list[str]:
        """Files in shared memory that carry the demo's domain, or a port of it, in their name."""
        first = PORT_BASE + PORT_GAIN * self.domain_id
        ours = []
        for name in os.listdir('/dev/shm'):
            port = re.search(r'_port(\d+)', name)
            if (port and first <= int(port[1]) < first + PORT_GAIN) or (
                    f'domain{self.domain_id}-' in name):
                ours.append(name)
        return ours

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for something of this demo."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f'waited in vain for {what}'
            time.sleep(0.05)

    def until_playing(self) -> None:
        """Wait until the servo has chunks to play."""
        log = self.out / 'log' / 'servo_node.log'
        self.until(lambda: log.exists() and 'playing from ring' in log.read_text(), 'the servo')


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    running: list[Demo] = []
    monkeypatch.delenv('ROS_DOMAIN_ID')  # of the test's own graph
    with PrivateDomain() as domain:
        def start(*options: str) -> Demo:
            running.append(Demo(domain.domain_id, tmp_path / 'out', *options))
            return running[-1]
        yield start
    for started in running:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait()
        for name in started.shared_memory():  # of a process that a busy machine gave no time to end
            Path('/dev/shm', name).unlink(missing_ok=True)


@pytest.mark.timeout(300)
def test_the_arm_picks_and_places_and_everything_is_measured(demo: Callable[..., Demo]) -> None:
    """Success is asked for where the machine kept up; a busy one is no reason to fail."""
    run = demo('--episodes', '2')
    code, output = run.finish(240.0)
    assert code == 0, output
    summary = json.loads((run.out / 'summary.json').read_text())
    assert summary['episodes'] == 2
    assert re.findall(r'episode (\d+): success \d/(\d), \d+ chunks heard', output) == [
        ('1', '1'), ('2', '2')]
    assert 'episode 0' not in output and 'episode 3' not in output
    if summary['on_time_ratio'] > 0.97 and summary['real_time_factor'] > 0.99:
        assert summary['success_rate'] >= 0.5
    assert set(summary['sensor_hz']) == {'front', 'wrist', 'joint_states'}
    assert 0.0 < summary['replan_hz'] <= summary['chunk_hz'] + 1e-6
    assert summary['chunk_hz'] < 7.0 < min(summary['sensor_hz'].values())
    assert max(summary['sensor_hz'].values()) < summary['servo_hz'] < 260.0
    assert len(summary['stage_us']) == 32
    age = summary['age_ms']
    parts = age['capture'] + age['queue'] + age['response'] + age['handoff']
    assert parts == pytest.approx(age['mean'], abs=0.1)
    assert age['p50'] <= age['p99'] <= age['max']
    assert 0.0 < summary['on_time_ratio'] <= 1.0
    assert summary['deadline_misses'] == round((1 - summary['on_time_ratio']) * summary['chunks'])
    report = (run.out / 'report.html').read_text()
    assert report.count('data:image/png;base64,') == 6
    assert not re.search(r'(src|href)="(?!data:)', report), 'the report needs other files'
    assert (run.out / 'episode.mp4').exists() or (run.out / 'episode.gif').exists()
    assert not run.processes()
    assert not run.shared_memory()


def test_devices_that_the_plan_has_no_work_for_are_said(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo_command, 'run_demo', lambda settings: settings.devices)
    monkeypatch.setattr(signal, 'signal', lambda *_: None)
    assert main(['demo', '--devices', '40']) == 40
    assert '--devices 40: plan `full_split` of the 32 stages has work for 32, so 8 stay idle' in (
        capsys.readouterr().err)
    assert main(['demo', '--devices', '2']) == 2
    assert capsys.readouterr().err == ''


@pytest.mark.parametrize(('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_is_left_after_an_interruption(
        demo: Callable[..., Demo], number: signal.Signals, code: int) -> None:
    run = demo()
    run.until_playing()
    assert len(run.processes()) >= 4
    run.process.send_signal(number)
    returned, output = run.finish()
    assert returned == code, output
    assert not run.processes()
    assert not run.shared_memory()


def test_a_child_that_is_killed_ends_the_demo_with_its_name(demo: Callable[..., Demo]) -> None:
    run = demo()
    run.until_playing()
    wam = next(pid for pid, line in run.processes().items() if 'physis_ros.wam_node' in line)
    os.kill(wam, signal.SIGKILL)
    code, output = run.finish()
    assert code == 1
    assert 'wam_node ended with signal SIGKILL' in output
    assert not run.processes()
    assert not run.shared_memory()


def test_every_process_ends_with_a_demo_that_is_killed(demo: Callable[..., Demo]) -> None:
    run = demo()
    run.until_playing()
    run.process.kill()
    run.process.wait()
    run.until(lambda: not run.processes(), 'the end of every process')


@pytest.mark.parametrize(('options', 'text'), [
    (['--episodes', '0'], '--episodes is 0; give at least 1'),
    (['--delay-ms', '-1'], '--delay-ms is -1.0; give at least 0'),
    (['--period-ms', '200'], '--period-ms is 200; between chunks of 160 ms'),
    (['--domain-id', '500'], '--domain-id is 500; it is between 0 and 101'),
    (['--plan', 'nonesuch'], "invalid choice: 'nonesuch'"),
])
def test_bad_options_are_one_sentence(options: list[str], text: str) -> None:
    done = subprocess.run([sys.executable, '-m', 'physis_core.cli.main', 'demo', *options],
                          capture_output=True, text=True)
    assert done.returncode == 2
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
