"""Execute a plan with a virtual clock: a line of stages, or a plan from `physis plan --out`.

`period_ratio` is the mean interval between departures after the warm-up over the mean stage time
(for a plan: over its predicted period).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from physis_core.cli.inputs import affine_us, positive_us
from physis_core.cli.report import print_json, print_table
from physis_core.errors import InputError
from physis_core.planning.plan import Plan
from physis_core.planning.profile import Profile, given_profile
from physis_core.simulation.delivered import delivered
from physis_core.simulation.jitter import KINDS, Jitter
from physis_core.simulation.line import barrier_departures_ns, line_flow, stage_times_ns
from physis_core.simulation.twin import ChunkRecord, Outcome, Stream, Twin, profile_ns

_MOST_CHUNKS = 10 ** 7
_MOST_STAGES = 10 ** 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--stages', type=int, default=None, metavar='S',
                        help='a line of S equal stages, one on each device')
    parser.add_argument('--stage-ms', type=float, default=1.0, metavar='MS',
                        help='mean time of a stage of the line (1)')
    parser.add_argument('--pace-ms', type=float, default=None, metavar='MS',
                        help='interval between chunks that enter the line (as fast as it can)')
    parser.add_argument('--plan', type=Path, default=None, metavar='FILE',
                        help='a plan instead, with --t-ms or --profile')
    parser.add_argument('--t-ms', default=None, metavar='A,B',
                        help='stage time t(B) = A + B*batch of the plan in ms')
    parser.add_argument('--profile', type=Path, default=None, metavar='FILE',
                        help='stage times of the plan')
    parser.add_argument('--chunks', type=int, default=1000, metavar='N', help='how many (1000)')
    parser.add_argument('--warmup', type=int, default=0, metavar='N',
                        help='departures to leave out of the mean interval (0)')
    parser.add_argument('--cv', type=float, default=0.0,
                        help='coefficient of variation of stage times (0)')
    parser.add_argument('--dist', choices=KINDS, default='lognormal',
                        help='their distribution (lognormal)')
    parser.add_argument('--seed', type=int, default=0, help='one seed, one result (0)')
    parser.add_argument('--slots', type=int, default=None, metavar='B',
                        help='places between two stages beyond the task in service and the '
                             "sender's finished one (as many as it takes)")
    parser.add_argument('--deadline-ms', type=float, default=None, metavar='MS',
                        help='a chunk of the plan is due this long after its planned entrance: '
                             'count what the output buffer delivers')
    parser.add_argument('--barrier', action='store_true',
                        help='all stages of the line advance together, at the slowest of them; '
                             'nothing waits between them then, whatever --slots')
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def run(args: argparse.Namespace) -> int:
    """Simulate and report."""
    check_sizes(args)
    if args.chunks < 2 or not 0 <= args.warmup <= args.chunks - 2:
        raise InputError(f'{args.chunks} chunks with a warm-up of {args.warmup} leave no interval; '
                         'simulate at least two more chunks than the warm-up')
    if args.seed < 0:
        raise InputError(f'--seed is {args.seed}; it is at least 0')
    if (args.stages is None) == (args.plan is None):
        raise InputError('give either --stages (a line of equal stages) or --plan FILE')
    result = simulate_plan(args) if args.plan is not None else simulate_line(args)
    if args.json:
        print_json(result)
    else:
        print_table('simulated', ('what', 'value'), list(result.items()))
    return 0


def check_sizes(args: argparse.Namespace) -> None:
    """Refuse what would take more memory than there is.

    Raises:
        InputError: with the limit.
    """
    for name, most in (('chunks', _MOST_CHUNKS), ('stages', _MOST_STAGES), ('slots', _MOST_CHUNKS)):
        value = getattr(args, name)
        if value is not None and value > most:
            raise InputError(f'--{name} is {value}; the most is {most}')


def simulate_line(args: argparse.Namespace) -> dict[str, Any]:
    """A line of stages that is always fed."""
    if args.stages < 1:
        raise InputError(f'--stages is {args.stages}; the least is 1')
    stage_ns = 1000 * positive_us(args.stage_ms, '--stage-ms')
    times = stage_times_ns(args.stages, stage_ns, args.chunks,
                           Jitter(args.cv, args.dist, args.seed))
    if args.barrier:
        left_ns = barrier_departures_ns(times, args.stages, args.chunks)
        response = {}
    else:
        pace_ns = 1000 * positive_us(args.pace_ms, '--pace-ms') if args.pace_ms else 0
        flow = line_flow(times, args.slots, pace_ns)
        left_ns = flow.left_ns
        taken_ns = np.arange(args.chunks) * pace_ns if pace_ns else flow.entered_ns
        response = {'response_periods':
                    float((left_ns - taken_ns)[args.warmup:].mean() / stage_ns)}
    return {**intervals(left_ns, args.warmup, stage_ns), **response,
            'first_departure_periods': float(left_ns[0] / stage_ns),
            'total_periods': float(left_ns[-1] / stage_ns),
            'efficiency': float(args.chunks * stage_ns / left_ns[-1])}


def simulate_plan(args: argparse.Namespace) -> dict[str, Any]:
    """A plan of one stream, under the engine's dispatch."""
    if args.barrier:
        raise InputError('--barrier goes with --stages; a plan has no barrier to simulate')
    plan = Plan.load(args.plan)
    profile = plan_profile(args, plan)
    # The source runs on past the chunks that count: what nothing follows finds the devices free.
    stream = Stream(plan, profile_ns(profile.mean_us), chunks=args.chunks + plan.max_in_flight)
    outcome = Twin([stream], Jitter(args.cv, args.dist, args.seed), slots=args.slots,
                   keep_batches=True).run()
    predicted = plan.prediction.period_us if plan.prediction is not None else plan.period_us
    counted = outcome.chunks[0][args.warmup:args.chunks]
    responses = np.array([(record.output_ns or 0) - record.entered_ns for record in counted])
    outputs = np.array(outcome.outputs_ns(0)[:args.chunks], np.int64)
    return {**intervals(outputs, args.warmup, 1000 * predicted if predicted else None),
            'response_ms': float(responses.mean() / 1e6),
            'response_p99_ms': float(np.quantile(responses, 0.99) / 1e6),
            **work(outcome, int(outputs[args.warmup]), int(outputs[-1])),
            **deadlines(args, plan, counted)}


def work(outcome: Outcome, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Mean size of the batches that started in an interval, and how busy it was by device."""
    sizes = [len(batch.members) for batch in outcome.batches if start_ns <= batch.start_ns < end_ns]
    busy_ns = [0] * len(outcome.busy_ns)
    for batch in outcome.batches:
        busy_ns[batch.device] += max(0, min(batch.end_ns, end_ns) - max(batch.start_ns, start_ns))
    return {'mean_batch': sum(sizes) / len(sizes),
            'utilisation': [device_ns / (end_ns - start_ns) for device_ns in busy_ns]}


def deadlines(args: argparse.Namespace, plan: Plan, counted: Sequence[ChunkRecord]
              ) -> dict[str, Any]:
    """What the output buffer would deliver, if there are deadlines."""
    if args.deadline_ms is None:
        return {}
    if not plan.period_us:
        raise InputError(f'--deadline-ms {args.deadline_ms:g}: the plan has no pace, so its chunks '
                         'have no planned entrance; set its `period_us`')
    counts = delivered(counted, 1000 * plan.period_us,
                       1000 * positive_us(args.deadline_ms, '--deadline-ms'))
    return {'delivered': counts.delivered, 'missed': counts.missed, 'dropped': counts.dropped}


def intervals(left_ns: NDArray[np.int64], warmup: int, unit_ns: int | None) -> dict[str, Any]:
    """Mean interval after the warm-up, and over the unit where there is one."""
    kept = left_ns[warmup:]
    mean_ns = float((kept[-1] - kept[0]) / (len(kept) - 1))
    return {'period_ms': mean_ns / 1e6,
            'period_ratio': mean_ns / unit_ns if unit_ns else None}


def plan_profile(args: argparse.Namespace, plan: Plan) -> Profile:
    """Stage times for a plan."""
    if (args.t_ms is None) == (args.profile is None):
        raise InputError('a plan says nothing of stage times: give either --t-ms A,B or '
                         '--profile FILE')
    if args.profile is not None:
        profile = Profile.load(args.profile)
        if profile.graph != plan.graph:
            raise InputError(f'{args.profile} describes {profile.graph.stages} stages of '
                             f'`{profile.model}`, the plan has {plan.graph.stages}; give the '
                             "profile of the plan's model")
        return profile
    fixed_us, member_us = affine_us(args.t_ms)
    times = [round(fixed_us + member_us * batch)
             for batch in range(1, plan.batch.max_batch + 1)]
    return given_profile('given', plan.graph, times)
