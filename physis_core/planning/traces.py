"""Arrivals and departures of streams: read from a file, or made up realistically."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from physis_core.errors import InputError
from physis_core.fields import from_mapping

SCHEMA_VERSION = 1
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Session:
    """One stream's life.

    Attributes:
        stream: its name.
        model: a preset.
        period_ms: longest period it can use.
        arrives_s: when it asks to be admitted.
        leaves_s: when it leaves, if it was admitted.
    """

    stream: str
    model: str
    period_ms: float
    arrives_s: float
    leaves_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.arrives_s < self.leaves_s:
            raise InputError(f'stream `{self.stream}` arrives at {self.arrives_s:g} s and leaves '
                             f'at {self.leaves_s:g} s; it leaves after it arrives, from 0 s on')
        if not self.period_ms > 0:
            raise InputError(f'stream `{self.stream}` asks for a period of {self.period_ms:g} ms; '
                             'give more than 0')


def trace_text(sessions: list[Session]) -> str:
    """A trace that :func:`read_trace` reads, as JSON."""
    return json.dumps({'schema': SCHEMA_VERSION,
                       'sessions': [asdict(session) for session in sessions]}, indent=1)


def read_trace(path: Path) -> list[Session]:
    """Sessions in the order of their arrival.

    Raises:
        InputError: unreadable, another schema version, or a session with a typo.
    """
    try:
        data = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f'trace {path} cannot be read ({error}); make one with '
                         '`physis admit --generate NAME --out FILE`') from error
    if not isinstance(data, dict) or data.get('schema') != SCHEMA_VERSION:
        raise InputError(f'trace {path} is not of schema version {SCHEMA_VERSION}; make one with '
                         '`physis admit --generate NAME --out FILE`')
    sessions = [from_mapping(Session, each, f'{path}: session {index}')
                for index, each in enumerate(data.get('sessions', ()))]
    if not sessions:
        raise InputError(f'trace {path} has 0 sessions; list at least one under `sessions`')
    return sorted(sessions, key=lambda session: (session.arrives_s, session.stream))


def fleet_trace(devices: int, seed: int) -> list[Session]:
    """Robots at work: three shifts a day for two days, robots of a site start within minutes.

    A site runs one model at one period.  Robots stay for most of a shift, some break off early, a
    few come back.  More sites ask than the pool can hold.
    """
    random = np.random.default_rng((seed, 1))
    kinds = [('wan2.1-1.3b', 1600.0), ('wan2.2-5b', 400.0), ('wan2.2-5b', 800.0),
             ('ltx-2.x', 1600.0), ('wan2.1-14b', 1600.0), ('wan2.1-1.3b', 800.0)]
    sessions = []
    for shift in range(6):
        start_s = shift * 8 * _HOUR_S
        for site in range(max(3, devices // 4)):
            model, period_ms = kinds[random.integers(len(kinds))]
            opens_s = start_s + random.uniform(0, 1.5 * _HOUR_S)
            for robot in range(int(random.integers(6, 22))):
                arrives_s = opens_s + random.exponential(300.0)
                stays_s = (random.uniform(6.0, 8.5) if random.random() < 0.8
                           else random.uniform(0.2, 4.0)) * _HOUR_S
                sessions.append(Session(f'shift{shift}-site{site}-robot{robot}', model, period_ms,
                                        arrives_s, arrives_s + stays_s))
    return sorted(sessions, key=lambda session: (session.arrives_s, session.stream))


def sessions_trace(devices: int, seed: int) -> list[Session]:
    """Interactive worlds: an evening's wave of visitors, most for minutes, some for hours.

    Arrivals are Poisson with a rate that swings by three within eight hours, stays are log-normal
    with a heavy tail, small models are asked for more often than large ones.
    """
    random = np.random.default_rng((seed, 2))
    models = ['wan2.1-1.3b', 'wan2.2-5b', 'wan2.1-14b', 'ltx-2.x', 'h3']
    share = np.array([0.38, 0.26, 0.14, 0.14, 0.08])
    periods_ms = {'wan2.1-1.3b': (800.0, 1600.0), 'wan2.2-5b': (400.0, 800.0),
                  'wan2.1-14b': (1600.0, 3200.0), 'ltx-2.x': (1600.0,), 'h3': (1600.0, 3200.0)}
    mean_stay_s = 1500.0
    sessions: list[Session] = []
    now_s = 0.0
    while now_s < 8 * _HOUR_S:
        wave = 1.0 + 0.5 * np.sin(2 * np.pi * now_s / (8 * _HOUR_S))
        now_s += random.exponential(mean_stay_s / (3.2 * devices * wave))
        model = models[random.choice(len(models), p=share)]
        choices = periods_ms[model]
        stays_s = random.lognormal(np.log(mean_stay_s) - 0.72, 1.2)
        sessions.append(Session(f'visitor{len(sessions)}', model,
                                choices[random.integers(len(choices))], now_s, now_s + stays_s))
    return sessions


GENERATORS: dict[str, Callable[[int, int], list[Session]]] = {
    'fleet': fleet_trace,
    'sessions': sessions_trace,
}
