"""One run of the demo: processes up, episodes, processes down, results written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rclpy
import yaml
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from physis_core.errors import InputError
from physis_ros.demo.calls import Calls
from physis_ros.demo.episodes import EpisodeRunner
from physis_ros.demo.measures import measure
from physis_ros.demo.private_domain import PrivateDomain
from physis_ros.demo.processes import ProcessGroup
from physis_ros.demo.recorder import Recorder
from physis_ros.demo.recording import EpisodeSeen, Recording
from physis_ros.demo.report import shown_episode, write_report
from physis_ros.demo.shared_memory import sweep_fast_dds
from physis_ros.demo.stage_times import stage_times_us
from physis_ros.demo.summary import rows, table, write_summary
from physis_ros.demo.video import film
from physis_ros.deployment import (
    NodeProcess,
    dds_environment,
    policy_processes,
    simulated_robot_processes,
)
from physis_ros.share import share_dir

_INTERRUPTED = 130
_PAGE_WIDTH = 120  # columns, where the output is no terminal


@dataclass(frozen=True)
class DemoSettings:
    """What to run.

    Attributes:
        episodes: how many; None: until Ctrl-C.
        delay_ms: added to the planned lead from observation to effect [ms].
        delay_chunks: added to it in chunk periods [1].
        period_ms: interval between chunks [ms]; None: that of config/wam.yaml.
        plan: name of the plan that spreads stages over workers.
        devices: worker processes.
        output: what moves the arm, `joint_trajectory` or `forward_command`.
        blank_cameras: whether the images are black.
        seed: of the first scene.
        out: folder of the results.
        record: folder for a recording of what the policy sees and makes; None: none is made.
        domain_id: ROS domain; None: one that nobody uses.
    """

    episodes: int | None
    delay_ms: float
    delay_chunks: int
    period_ms: float | None
    plan: str
    devices: int
    output: str
    blank_cameras: bool
    seed: int
    out: Path
    record: Path | None
    domain_id: int | None

    def shown(self) -> dict[str, Any]:
        """The settings for the report; where results go is not one of them."""
        return {'episodes': self.episodes, 'delay_ms': self.delay_ms,
                'delay_chunks': self.delay_chunks, 'period_ms': _period_ms(self),
                'plan': self.plan, 'devices': self.devices, 'output': self.output,
                'blank_cameras': self.blank_cameras, 'seed': self.seed}


def run_demo(settings: DemoSettings) -> int:
    """Run it; returns the exit code."""
    console = Console(width=None if sys.stdout.isatty() else _PAGE_WIDTH)
    settings.out.mkdir(parents=True, exist_ok=True)
    recording = Recording()
    interrupted = False
    try:
        with _everything_running(settings) as (group, domain_id):
            console.print(f'ROS domain {domain_id}; logs in {settings.out / "log"}')
            _run_episodes(settings, group, recording, console)
    except KeyboardInterrupt:
        interrupted = True
    if interrupted and settings.episodes is not None:
        console.print('interrupted: everything is stopped, no report was written')
        return _INTERRUPTED
    _write_results(settings, recording, console)
    return 0


def demo_processes(settings: DemoSettings) -> tuple[NodeProcess, ...]:
    """The processes in the order in which they start."""
    return (
        *simulated_robot_processes(
            {'seed': settings.seed, 'blank_cameras': settings.blank_cameras},
            {'input': settings.output}),
        *policy_processes(wam={
            'plan_mode': settings.plan, 'workers': settings.devices,
            'period_ms': _period_ms(settings), 'lead_ms': _lead_ms(settings),
            'record': '' if settings.record is None else str(settings.record.absolute())}),
    )


def _period_ms(settings: DemoSettings) -> float:
    """The interval between chunks that was asked for, or that of config/wam.yaml."""
    return settings.period_ms or float(_documented()['period_ms'])


def _lead_ms(settings: DemoSettings) -> float:
    """The lead of config/wam.yaml, lengthened as the settings ask."""
    added_ms = settings.delay_ms + settings.delay_chunks * _period_ms(settings)
    return float(_documented()['lead_ms']) + added_ms


def _documented() -> Mapping[str, Any]:
    """Parameters of wam_node in config/wam.yaml."""
    parameters = yaml.safe_load((share_dir() / 'config' / 'wam.yaml').read_text())
    found: Mapping[str, Any] = parameters['/**/wam_node']['ros__parameters']
    return found


@contextmanager
def _everything_running(settings: DemoSettings) -> Iterator[tuple[ProcessGroup, int]]:
    """All processes, in a domain of their own; afterwards nothing is left of them."""
    with ExitStack() as stack:
        domain_id = settings.domain_id
        if domain_id is None:
            domain_id = stack.enter_context(PrivateDomain()).domain_id
        environment = {
            **dds_environment(), 'ROS_DOMAIN_ID': str(domain_id),
            'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
        os.environ.update(environment)
        sweep_fast_dds()  # a demo that was killed could not
        stack.callback(sweep_fast_dds)
        group = stack.enter_context(
            ProcessGroup(demo_processes(settings), environment, settings.out / 'log'))
        yield group, domain_id


def _run_episodes(settings: DemoSettings, group: ProcessGroup, recording: Recording,
                  console: Console) -> None:
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    executor = SingleThreadedExecutor()
    recorder = Recorder(recording, settings.output == 'joint_trajectory')
    executor.add_node(recorder)
    runner = EpisodeRunner(recorder, Calls(recorder, executor, group.check))
    try:
        with _progress(console) as progress:
            bar = progress.add_task('starting', total=settings.episodes, status='')
            runner.wait_for_robot_and_policy()
            done = 0
            while settings.episodes is None or done < settings.episodes:
                progress.update(bar, description=f'episode {done + 1}', status=_status(recording))
                runner.run(lambda episode: progress.update(
                    bar, status=f'{episode.simulated_s:4.1f} s  {_status(recording)}'))
                done += 1
                progress.update(bar, completed=done, status=_status(recording))
                if not console.is_terminal:  # where no bar can be drawn, a line for each episode
                    console.print(f'episode {done}: {_status(recording)}')
            runner.pause()
    finally:
        executor.shutdown()
        recorder.destroy_node()
        rclpy.try_shutdown()


def _write_results(settings: DemoSettings, recording: Recording, console: Console) -> None:
    measures = measure(recording)
    if not measures.episodes:
        raise InputError('no episode ended, so there is nothing to report; let it run longer')
    stage_us = stage_times_us(recording.diagnostics)
    with _progress(console) as progress:
        bar = progress.add_task('film', total=1.0, status='')
        episode = shown_episode(recording)
        video = film(episode, settings.out,
                     lambda share: progress.update(bar, completed=share)) if episode else None
        bar = progress.add_task('report', total=1.0, status='')
        write_report(settings.out / 'report.html', recording, rows(measures, stage_us),
                     settings.shown(), video,
                     lambda share: progress.update(bar, completed=share))
    write_summary(settings.out / 'summary.json', measures, stage_us, settings.shown())
    console.print(table(measures, stage_us))
    written = ['summary.json', 'report.html', *([video.name] if video else [])]
    console.print(f'{settings.out}: {", ".join(written)}')


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(), TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn('{task.fields[status]}'), console=console)


def _status(recording: Recording) -> str:
    ended: list[EpisodeSeen] = [episode for episode in recording.episodes if episode.ended_ns]
    successes = sum(episode.success for episode in ended)
    return f'success {successes}/{len(ended)}, {len(recording.chunks)} chunks heard'
