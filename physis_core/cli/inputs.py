"""Options that several planning commands share: the model, the devices, the promise."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from physis_core.errors import InputError
from physis_core.graph import KVMode
from physis_core.models.presets import load_preset, preset_names
from physis_core.planning.cluster import (
    MOST_GB,
    Cluster,
    bare_cluster,
    read_cluster,
    uniform_cluster,
)
from physis_core.planning.cost import analytic_profile
from physis_core.planning.devices import load_device
from physis_core.planning.profile import Profile, given_profile
from physis_core.planning.slo import SLO, period_from_goal
from physis_core.units import OutputSemantics

DEFAULT_DEVICE = 'h100'
_MOST_BATCH = 1024
_LONGEST_MS = 1e9


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """What the devices are."""
    parser.add_argument('--device-model', default=None, metavar='NAME',
                        help=f'device to compute costs for (default {DEFAULT_DEVICE})')
    parser.add_argument('--memory-gb', type=float, default=None, metavar='GB',
                        help='memory for weights and KV on each device')
    parser.add_argument('--cluster', default=None, metavar='WHAT',
                        help='`local`, like `24xH100-80G`, or a YAML file; replaces the two above')
    parser.add_argument('--bmax', type=int, default=8, metavar='B', help='largest batch (8)')


def add_engine_bench_arguments(parser: argparse.ArgumentParser, slo_ms: float) -> None:
    """What benches of real streams on one engine share."""
    parser.add_argument('--devices', type=int, default=2, metavar='G', help='how many (2)')
    parser.add_argument('--model', default='so101', help='a registered model (so101)')
    parser.add_argument('--slo-ms', type=float, default=slo_ms, metavar='MS',
                        help=f'interval and deadline of every stream ({slo_ms:g})')
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, and where its stage times come from."""
    parser.add_argument('model', help=f'one of {", ".join(preset_names())}; '
                        'with --profile, the one that was measured')
    parser.add_argument('--t-ms', default=None, metavar='A,B',
                        help='stage time t(B) = A + B*batch in ms, instead of computed ones')
    parser.add_argument('--profile', type=Path, default=None, metavar='FILE',
                        help='measured stage times, from `physis profile`')
    parser.add_argument('--kv-mode', default=None, choices=[mode.value for mode in KVMode],
                        help='plan for another KV mode than the preset has')


def add_slo_arguments(parser: argparse.ArgumentParser) -> None:
    """What a stream is promised."""
    parser.add_argument('--slo-ms', type=float, default=None, metavar='MS',
                        help='longest period')
    parser.add_argument('--goal', default=None, metavar='RATE',
                        help='the same in your terms, e.g. `30 frames/s`')
    parser.add_argument('--max-response-ms', type=float, default=None, metavar='MS',
                        help='longest response')


def read_devices(args: argparse.Namespace, count: int) -> Cluster:
    """The first ``count`` devices of what was asked for."""
    if args.cluster is not None:
        return read_cluster(args.cluster).first(count)
    if args.memory_gb is not None and not 0 < args.memory_gb <= MOST_GB:
        raise InputError(f'--memory-gb is {args.memory_gb:g}; give more than 0, and at most '
                         f'{MOST_GB}')
    given = getattr(args, 't_ms', None) or getattr(args, 'profile', None)
    if given is not None and args.device_model is None:
        return bare_cluster(count, args.memory_gb or MOST_GB)
    return uniform_cluster(count, load_device(args.device_model or DEFAULT_DEVICE),
                           args.memory_gb)


def times_of(args: argparse.Namespace, profile: Profile) -> str:
    """Where the stage times of a profile come from, for people."""
    if profile.source == 'measured':
        return f'stage times measured on {profile.device}, in {args.profile}'
    if profile.source == 'given':
        return 'stage times as --t-ms gives them'
    return (f'stage times computed from shapes for {profile.device}, not measured; '
            '`physis profile` measures them')


def read_profile(args: argparse.Namespace) -> Profile:
    """The model's profile on the devices asked for."""
    check_bmax(args.bmax)
    if args.profile is not None:
        profile = Profile.load(args.profile, args.device_model)
        if profile.model != args.model:
            raise InputError(f'{args.profile} is a profile of `{profile.model}`, not of '
                             f'`{args.model}`; give the one of that model')
        return profile.with_max_batch(min(args.bmax, profile.max_batch))
    shape = load_preset(args.model)
    if args.kv_mode is not None:
        shape = replace(shape, kv_mode=args.kv_mode)
    profile = analytic_profile(shape, load_device(device_name(args)), args.bmax)
    if args.t_ms is not None:
        fixed_us, member_us = affine_us(args.t_ms)
        times = [round(fixed_us + member_us * batch) for batch in range(1, args.bmax + 1)]
        profile = given_profile(shape.name, profile.graph, times, like=profile)
    return profile


def check_bmax(bmax: int) -> None:
    """Refuse a largest batch that is none, or far beyond any device.

    Raises:
        InputError: with the limits.
    """
    if not 1 <= bmax <= _MOST_BATCH:
        raise InputError(f'--bmax is {bmax}; it goes from 1 to {_MOST_BATCH}')


def device_name(args: argparse.Namespace) -> str:
    """The device model that costs are computed for."""
    if args.cluster is not None:
        return read_cluster(args.cluster).devices[0].model
    return args.device_model or DEFAULT_DEVICE


def affine_us(text: str) -> tuple[float, float]:
    """``A,B`` in milliseconds to microseconds."""
    try:
        fixed, member = (float(part) * 1e3 for part in text.split(','))
    except ValueError as error:
        raise InputError(f'--t-ms is `{text}`; write two numbers, e.g. `0.8,2.105`') from error
    if not (fixed >= 0 and member >= 0 and 1 <= fixed + member < _LONGEST_MS * 1e3):
        raise InputError(f'--t-ms is `{text}`; both are at least 0, and a stage takes at least '
                         f'0.001 ms and less than {_LONGEST_MS:g} ms')
    return fixed, member


def read_slo(args: argparse.Namespace, profile: Profile) -> SLO | None:
    """The promise, if one was asked for."""
    if args.slo_ms is not None and args.goal is not None:
        raise InputError(f'--slo-ms {args.slo_ms:g} and --goal `{args.goal}` both say what the '
                         'period is; give one of them')
    limit = args.max_response_ms
    limit_us = None if limit is None else positive_us(limit, '--max-response-ms')
    if args.goal is not None:
        return SLO(period_from_goal(args.goal, semantics_of(args.model)), limit_us)
    if args.slo_ms is not None:
        return SLO(positive_us(args.slo_ms, '--slo-ms'), limit_us)
    return None if limit_us is None else SLO(10 ** 12, limit_us)


def semantics_of(model: str) -> OutputSemantics:
    """What a chunk of a model means outside: as its preset says, or its own description.

    Raises:
        InputError: there is no such model.
    """
    if model in preset_names():
        return load_preset(model).semantics
    from physis_core.models.registry import describe  # with torch, which presets do without
    from physis_core.models.sizes import spec_of
    return describe(spec_of(model)).semantics


def positive_us(milliseconds: float, option: str) -> int:
    """Milliseconds to whole microseconds."""
    if not 0.001 <= milliseconds < _LONGEST_MS:
        raise InputError(f'{option} is {milliseconds:g}; give milliseconds, at least 0.001 and '
                         f'less than {_LONGEST_MS:g}')
    return round(milliseconds * 1e3)


def counts(text: str, option: str) -> list[int]:
    """``1,2,4`` to a list of positive whole numbers."""
    try:
        values = [int(part) for part in text.split(',')]
    except ValueError as error:
        raise InputError(f'{option} is `{text}`; write whole numbers, e.g. `1,2,4`') from error
    if min(values) < 1:
        raise InputError(f'{option} is `{text}`; each is at least 1')
    return values
