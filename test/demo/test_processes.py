"""Processes start from their description, and nothing of them is left, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from physis_ros.demo.processes import ProcessDied, ProcessGroup, command
from physis_ros.deployment import NodeProcess

WAIT_S = 20.0

PARENT_OF_A_SLEEPER = """
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
    open(sys.argv[-1].split(':=')[1].strip('"'), 'w').write(str(child.pid))
    time.sleep(600)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules the children can run."""
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    return tmp_path


def described(modules: Path, name: str, source: str, **parameters: str) -> NodeProcess:
    (modules / f'{name}.py').write_text(textwrap.dedent(source))
    return NodeProcess(name, name, name, parameters=parameters)


def alive(pid: int) -> bool:
    try:
        return Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0] != 'Z'
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while alive(pid):
        assert time.monotonic() < deadline, f'process {pid} is still there'
        time.sleep(0.02)


def written(path: Path) -> str:
    deadline = time.monotonic() + WAIT_S
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f'{path} was not written'
        time.sleep(0.02)
    return path.read_text()


def test_the_command_line_is_the_description() -> None:
    line = command(NodeProcess(
        'arm', 'x', 'pkg.module', (Path('a.yaml'), Path('b.yaml')),
        {'rate': 250.0, 'on': True, 'name': 'left arm', 'joints': ['a', 'b']}))
    assert line[3:] == [
        'pkg.module', '--ros-args', '-r', '__node:=arm', '--params-file', 'a.yaml',
        '--params-file', 'b.yaml', '-p', 'rate:=250.0', '-p', 'on:=true', '-p',
        'name:="left arm"', '-p', 'joints:=["a", "b"]']


def test_stopping_ends_children_and_what_they_started(modules: Path) -> None:
    grandchild = modules / 'grandchild'
    process = described(modules, 'parent_of_a_sleeper', PARENT_OF_A_SLEEPER, file=str(grandchild))
    with ProcessGroup([process], {}, modules / 'log') as group:
        pids = [*group.pids().values(), int(written(grandchild))]
        group.check()
    for pid in pids:
        wait_until_gone(pid)


def test_a_child_that_does_not_listen_is_killed(modules: Path) -> None:
    ready = modules / 'ready'
    process = described(modules, 'deaf', """
        import signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(sys.argv[-1].split(':=')[1].strip('"'), 'w').write('yes')
        time.sleep(600)
    """, file=str(ready))
    with ProcessGroup([process], {}, modules / 'log') as group:
        written(ready)
        pid = group.pids()['deaf']
    assert not alive(pid)


def test_a_child_that_ends_is_named_with_the_end_of_its_log(modules: Path) -> None:
    process = described(modules, 'failing', """
        import sys
        sys.exit('the camera is on fire')
    """)
    with ProcessGroup([process], {}, modules / 'log') as group:
        os.waitid(os.P_PID, group.pids()['failing'], os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessDied, match=r'failing ended with exit code 1(.|\n)*on fire'):
            group.check()


def test_children_end_with_a_parent_that_is_killed(modules: Path) -> None:
    grandchild = modules / 'grandchild'
    described(modules, 'sleeper', """
        import os, sys, time
        open(sys.argv[-1].split(':=')[1].strip('"'), 'w').write(str(os.getpid()))
        time.sleep(600)
    """)
    (modules / 'parent.py').write_text(textwrap.dedent(f"""
        import time
        from pathlib import Path
        from physis_ros.demo.processes import ProcessGroup
        from physis_ros.deployment import NodeProcess
        node = NodeProcess('sleeper', 'sleeper', 'sleeper', (), {{'file': {str(grandchild)!r}}})
        with ProcessGroup([node], {{}}, Path({str(modules / 'log')!r})):
            time.sleep(600)
    """))
    parent = subprocess.Popen([sys.executable, '-m', 'parent'])
    pid = int(written(grandchild))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until_gone(pid)
