"""More than the devices can do: 1.3 times what fits, for a minute, on virtual devices.

The front door fills the devices with streams that have a promise and refuses the next; best-effort
streams then bring the load above what can be done.  Those with a promise keep their deadlines, the
others shed at the entrance, and when they have left everything is as before.
"""

from __future__ import annotations

import argparse
import math
import time
from contextlib import ExitStack
from typing import Any

from physis_core.cli.inputs import affine_us, positive_us
from physis_core.cli.report import print_json, print_table
from physis_core.cli.traffic import Rider, leave, ride
from physis_core.errors import InputError, Refused
from physis_core.graph import StageGraph
from physis_core.planning.cluster import MOST_GB, bare_cluster
from physis_core.planning.profile import given_profile
from physis_core.planning.slo import SLO
from physis_core.runtime.front_door import FrontDoor, Visitor
from physis_core.runtime.relief import BEST_EFFORT
from physis_core.runtime.virtual import VirtualModel

_LOOK_S = 0.05
_ROUNDING = 1e-9
GUEST = Visitor(priority=BEST_EFFORT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--devices', type=int, default=2, metavar='G', help='virtual devices (2)')
    parser.add_argument('--steps', type=int, default=2, help='denoising steps D (2)')
    parser.add_argument('--blocks', type=int, default=4, help='blocks L (4)')
    parser.add_argument('--t-ms', default='2,2', metavar='A,B',
                        help='stage time t(B) = A + B*batch in ms (2,2)')
    parser.add_argument('--bmax', type=int, default=8, metavar='B', help='largest batch (8)')
    parser.add_argument('--slo-ms', type=float, default=200.0, metavar='MS',
                        help='interval of every stream (200)')
    parser.add_argument('--load', type=float, default=1.3,
                        help='load in terms of what the planner promises (1.3)')
    parser.add_argument('--seconds', type=float, default=60.0, help='length of the overload (60)')
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def run(args: argparse.Namespace) -> int:
    """Fill, overload, recover."""
    if not args.load > 1 or args.bmax < 1 or args.devices < 1:
        raise InputError(f'--load {args.load:g}, --bmax {args.bmax}, --devices {args.devices}: an '
                         'overload is above 1, the others are at least 1')
    result = overload(args)
    if args.json:
        print_json(result)
    else:
        print_table(f'{args.load:g} times what {args.devices} devices can do',
                    ('what', 'value'), [[name, value] for name, value in result.items()])
    return 0


def overload(args: argparse.Namespace) -> dict[str, Any]:
    """One overload and its end."""
    fixed_us, each_us = affine_us(args.t_ms)
    graph = StageGraph(args.steps, args.blocks)
    times = [round(fixed_us + each_us * batch) for batch in range(1, args.bmax + 1)]
    profile = given_profile('virtual', graph, times)
    slo = SLO(positive_us(args.slo_ms, '--slo-ms'))
    most = math.ceil(args.load * args.devices * slo.period_us * args.bmax
                     / (graph.stages * times[-1])) + 2
    with FrontDoor(VirtualModel(graph, fixed_us, each_us), profile,
                   bare_cluster(args.devices, MOST_GB), most) as door, ExitStack() as stack:
        promised, refusal = _fill(door, slo, most)
        stack.callback(leave, promised)
        ride(promised, 2.0)
        guests = [Rider(door.open_stream('virtual', slo, visitor=GUEST), {})
                  for _ in range(math.ceil((args.load - 1) * len(promised) - _ROUNDING))]
        watched = _Watched(door, [*promised, *guests], slo)
        first_ns, last_ns = ride([*promised, *guests], args.seconds, watched.look)
        leave(guests)
        recovery_s = _recover(door, promised)
        admits_again = _admits(door, promised, slo)
        begin_ns, end_ns = ride(promised, 3.0)
        ride(promised, 2 * (promised[0].stream.options.lead_ns or 0) / 1e9)
        during = [rider.goodput(first_ns, last_ns) for rider in promised]
        guest_outputs = sum(rider.goodput(first_ns, last_ns).on_time for rider in guests)
        after = [rider.goodput(begin_ns, end_ns) for rider in promised]
    return {
        'promised': len(promised), 'best_effort': len(guests), 'refusal': refusal,
        'refusal_in_overload': watched.refusal, 'named': watched.named,
        'named_after_s': watched.named_after_s,
        'on_time_promised': min(one.on_time_ratio for one in during),
        'on_time_promised_after': min(one.on_time_ratio for one in after),
        'best_effort_outputs_on_time': guest_outputs,
        'shed': sum(rider.stream.shed for rider in guests),
        'held_back': sum(rider.stream.held_back for rider in guests),
        'held_back_promised': sum(rider.stream.held_back for rider in promised),
        'shed_promised': sum(rider.stream.shed for rider in promised),
        'in_flight_most': watched.in_flight, 'in_flight_limit': watched.limit,
        'recovery_s': recovery_s, 'admits_again': admits_again}


class _Watched:
    """What is seen during the overload."""

    def __init__(self, door: FrontDoor, riders: list[Rider], slo: SLO) -> None:
        self._door = door
        self._riders = riders
        self._slo = slo
        self._begin_s = time.monotonic()
        self._due_s = 0.0
        self.named_after_s = math.inf
        self.in_flight = 0
        self.limit = sum(rider.stream.plan.max_in_flight for rider in riders)
        self.named = ''
        self.refusal = ''

    def look(self) -> None:
        """Note the fullest queues, what is named, and what a visitor would be told."""
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + _LOOK_S
        self.in_flight = max(self.in_flight, sum(rider.stream.in_flight for rider in self._riders))
        overloads = self._door.overloads
        if overloads and not self.named:
            self.named = str(overloads[0])
            self.named_after_s = time.monotonic() - self._begin_s
            try:
                self._door.open_stream('virtual', self._slo, visitor=GUEST).close()
            except Refused as error:
                self.refusal = str(error)


def _fill(door: FrontDoor, slo: SLO, most: int) -> tuple[list[Rider], str]:
    """Open streams at a steady pace until one is refused."""
    riders: list[Rider] = []
    while True:
        try:
            riders.append(Rider(door.open_stream('virtual', slo), {}))
        except Refused as error:
            return riders, str(error)
        ride(riders, slo.period_us / 1e6 / most)


def _recover(door: FrontDoor, riders: list[Rider]) -> float:
    """Seconds until no device is overloaded and nobody sheds."""
    begin_s = time.monotonic()
    while door.overloads or door.shedding:
        ride(riders, _LOOK_S)
        if time.monotonic() - begin_s > 60.0:
            return math.inf
    return time.monotonic() - begin_s


def _admits(door: FrontDoor, riders: list[Rider], slo: SLO) -> bool:
    """Whether a stream that leaves makes room for another."""
    riders.pop().stream.close()
    try:
        riders.append(Rider(door.open_stream('virtual', slo), {}))
    except Refused:
        return False
    return True
