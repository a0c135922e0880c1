"""What a model's stages take on a device: times by batch, and bytes.

There is one type, whether the numbers were measured or computed.  Times are whole microseconds and
sizes whole bytes, so that sums compare exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from physis_core.errors import InputError
from physis_core.fields import check_keys, from_mapping
from physis_core.graph import StageGraph

SCHEMA_VERSION = 1
_LONGEST_US = 10 ** 12


@dataclass(frozen=True)
class BatchTimes:
    """Time of one stage [us] for batches of 1, 2, ... Bmax: mean, median, 99th percentile."""

    mean_us: tuple[int, ...]
    p50_us: tuple[int, ...]
    p99_us: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.mean_us) == len(self.p50_us) == len(self.p99_us) >= 1:
            raise InputError(
                f'times for {len(self.mean_us)}, {len(self.p50_us)} and {len(self.p99_us)} batch '
                'sizes (mean, p50, p99); give each for 1 to Bmax')
        for times in (self.mean_us, self.p50_us, self.p99_us):
            if not max(times) <= _LONGEST_US:
                raise InputError(f'times {list(times)} us: the longest is {_LONGEST_US}; measure '
                                 'again')
            if min(times) < 1 or list(times) != sorted(times):
                raise InputError(f'times {list(times)} us: they start at 1 or more and never fall '
                                 'as the batch grows; measure again on a quiet device')


@dataclass(frozen=True)
class BlockGroup:
    """Consecutive blocks that cost the same.

    Attributes:
        blocks: how many.
        times: of one stage.
        weight_bytes: of one block.
        kv_bytes: history of one stream at one stage.
        activation_bytes: intermediate results of one member of a batch.
    """

    blocks: int
    times: BatchTimes
    weight_bytes: int = 0
    kv_bytes: int = 0
    activation_bytes: int = 0

    def __post_init__(self) -> None:
        for name, low in (('blocks', 1), ('weight_bytes', 0), ('kv_bytes', 0),
                          ('activation_bytes', 0)):
            if getattr(self, name) < low:
                raise InputError(f'{name} of a block group is {getattr(self, name)}; '
                                 f'the least is {low}')


@dataclass(frozen=True)
class Profile:
    """A model on a device.

    Attributes:
        model: its name.
        device: name of the device model; profiles of other devices are refused.
        dtype: of weights and hidden states.
        source: ``analytic``, ``measured`` or ``given``.
        graph: the model's stages.
        window_tokens: tokens a task attends to when the window is full.
        groups: the blocks, first to last.
        hop_bytes: hidden state of one chunk.
        workspace_bytes: what the device needs besides, whatever it runs.
    """

    model: str
    device: str
    dtype: str
    source: str
    graph: StageGraph
    window_tokens: int
    groups: tuple[BlockGroup, ...]
    hop_bytes: int = 0
    workspace_bytes: int = 0

    def __post_init__(self) -> None:
        described = sum(group.blocks for group in self.groups)
        if described != self.graph.blocks:
            raise InputError(f'profile of `{self.model}`: its groups describe {described} blocks, '
                             f'the model has {self.graph.blocks}; measure it again')
        if len({len(group.times.mean_us) for group in self.groups}) != 1:
            raise InputError(f'profile of `{self.model}`: its groups have different largest '
                             'batches; measure it again')

    # -- reading -------------------------------------------------------------------------------

    @property
    def max_batch(self) -> int:
        """Bmax, the largest batch with a known time."""
        return len(self.groups[0].times.mean_us)

    def group_of(self, block: int) -> BlockGroup:
        """The group a block belongs to."""
        first = 0
        for group in self.groups:
            first += group.blocks
            if block < first:
                return group
        raise InputError(f'block {block} is not in the profile of `{self.model}`; '
                         f'it has {self.graph.blocks}')

    def mean_us(self, block: int, batch: int) -> int:
        """Mean time of a stage [us]."""
        return self.group_of(block).times.mean_us[self._index(batch)]

    def p99_us(self, block: int, batch: int) -> int:
        """99th percentile of a stage's time [us]: what plans rely on."""
        return self.group_of(block).times.p99_us[self._index(batch)]

    def predict_ns(self, block: int, batch: int) -> int:
        """p99 in nanoseconds: the ``Predict`` of a dispatcher."""
        return 1000 * self.p99_us(block, batch)

    def with_max_batch(self, max_batch: int) -> Profile:
        """The same with batches of at most ``max_batch``."""
        if not 1 <= max_batch <= self.max_batch:
            raise InputError(f'largest batch {max_batch} is outside the profile of '
                             f'`{self.model}` (1 to {self.max_batch}); measure up to it')
        return replace(self, groups=tuple(
            replace(group, times=BatchTimes(group.times.mean_us[:max_batch],
                                            group.times.p50_us[:max_batch],
                                            group.times.p99_us[:max_batch]))
            for group in self.groups))

    def _index(self, batch: int) -> int:
        if not 1 <= batch <= self.max_batch:
            raise InputError(f'batch {batch} is not in the profile of `{self.model}`; '
                             f'it goes from 1 to {self.max_batch}')
        return batch - 1

    # -- on disk -------------------------------------------------------------------------------

    def to_json(self) -> str:
        """JSON with a schema version."""
        return json.dumps({'schema': SCHEMA_VERSION, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """Read what :meth:`to_json` wrote.

        Raises:
            InputError: not JSON, another schema version, or a field with a typo.
        """
        try:
            data = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f'this profile is not JSON ({error}); make it again with '
                             '`physis profile`') from error
        schema = data.pop('schema', None) if isinstance(data, dict) else None
        if schema != SCHEMA_VERSION:
            raise InputError(f'the profile has schema version {schema}, this is version '
                             f'{SCHEMA_VERSION}; make it again with `physis profile`')
        try:
            data['graph'] = from_mapping(StageGraph, data.get('graph'), 'profile: `graph`')
            data['groups'] = tuple(_group(group) for group in data.get('groups', ()))
            return from_mapping(cls, data, 'profile')
        except (TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f'the profile contradicts itself ({error}); make it again with '
                             '`physis profile`') from error

    @classmethod
    def load(cls, path: Path, device: str | None = None) -> Profile:
        """Read a profile from disk; ``device``: the one it must have been made for.

        Raises:
            InputError: unreadable, not a profile, or of another device.
        """
        try:
            profile = cls.from_json(path.read_text(encoding='utf-8'))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f'{path} cannot be read ({error}); make a profile with '
                             '`physis profile`') from None  # a script shows one trace-back, not two
        if device is not None and profile.device != device:
            raise InputError(f'{path} was made for device `{profile.device}`, not `{device}`; '
                             'measure on that device with `physis profile`')
        return profile


def given_profile(model: str, graph: StageGraph, times_us: Sequence[int],
                  like: Profile | None = None) -> Profile:
    """A profile with the given stage times [us] by batch; sizes from ``like``, or none."""
    times = BatchTimes(tuple(times_us), tuple(times_us), tuple(times_us))
    if like is None:
        return Profile(model, 'given', 'none', 'given', graph, 0,
                       (BlockGroup(graph.blocks, times),))
    groups = tuple(replace(group, times=times) for group in like.groups)
    return replace(like, source='given', groups=groups)


def _group(data: object) -> BlockGroup:
    if not isinstance(data, Mapping):
        raise InputError(f'profile: a group is {data!r}; it must be a mapping')
    fields: dict[str, Any] = dict(data)
    times = fields.get('times')
    check_keys(times if isinstance(times, Mapping) else {}, dict.fromkeys(
        ('mean_us', 'p50_us', 'p99_us')), 'profile: `times`')
    try:
        fields['times'] = BatchTimes(**{name: tuple(map(int, values))
                                        for name, values in fields['times'].items()})
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError('profile: `times` of a group must be lists `mean_us`, `p50_us`, `p99_us` '
                         f'({error}); make it again with `physis profile`') from error
    return from_mapping(BlockGroup, fields, 'profile: group')
