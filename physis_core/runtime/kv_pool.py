"""Keys and values of earlier chunks: allocated once, kept on their device, found by slot.

An entry holds the history of one stream at one stage: a place for the chunk that is being
computed, then the sinks, then the ring of the window.  While a ring fills, the places in use are
contiguous, so a single row attends to a view and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from physis_core.errors import Refused
from physis_core.graph import StageGraph
from physis_core.models.protocol import TensorSpec

_MOST_KNOWN = 4096


class Row(NamedTuple):
    """One member of a batch: which history it needs."""

    stream: int
    chunk: int
    step: int


class KvPool:
    """The KV of all streams on one device."""

    def __init__(self, graph: StageGraph, kv_chunk: TensorSpec, entries: int,
                 device: str = 'cpu') -> None:
        """Allocate ``entries`` histories of ``graph.history_slots`` chunks each."""
        self._graph = graph
        shape = (entries, 1 + graph.history_slots, *kv_chunk.shape)
        self._keys = torch.zeros(shape, dtype=kv_chunk.torch_dtype, device=device)
        self._values = torch.zeros_like(self._keys)
        self._places = [list(zip(keys.unbind(), values.unbind(), strict=True))
                        for keys, values in zip(self._keys, self._values, strict=True)]
        self._free = list(range(entries))
        self._entries: dict[tuple[int, int, int], int] = {}
        self._positions = {chunk: torch.tensor(graph.positions(chunk), device=device)
                           for chunk in range(graph.history_slots + graph.window_chunks + 1)}
        self._known_positions: dict[tuple[int, ...], torch.Tensor] = {}
        self._known_entries: dict[tuple[int, ...], torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return 2 * self._keys.nbytes

    @property
    def history_slots(self) -> int:
        """Chunks of a full history: sinks and window."""
        return self._graph.history_slots

    @property
    def free_entries(self) -> int:
        """Entries that no stream holds."""
        return len(self._free)

    def open(self, stream: int, stages: Iterable[tuple[int, int]]) -> None:
        """Reserve entries for the KV that ``stages`` (step, block) read here: all or none.

        Raises:
            Refused: fewer entries are free than are needed.
        """
        needed = sorted({(self._graph.kv_source_step(step), block) for step, block in stages})
        if not self._graph.window_chunks:
            return
        if len(needed) > len(self._free):
            raise Refused(f'stream {stream} needs {len(needed)} KV entries on this device, '
                          f'{len(self._free)} are free; close a stream or give the pool more')
        for step, block in needed:
            self._entries[stream, step, block] = self._free.pop()

    def close(self, stream: int) -> None:
        """Give the entries of a stream back."""
        for key in [key for key in self._entries if key[0] == stream]:
            self._free.append(self._entries.pop(key))

    def history(self, block: int, rows: Sequence[Row]) -> PoolHistory:
        """What the rows of a batch attend to."""
        if not self._graph.window_chunks:
            return PoolHistory(self, [], self._positions[0].expand(len(rows), -1), [])
        entries = [self._entries[row.stream, self._graph.kv_source_step(row.step), block]
                   for row in rows]
        slots = self._graph.history_slots
        filled = [min(row.chunk, slots) for row in rows]
        return PoolHistory(self, entries, self._positions_of(rows), filled)

    def full_windows(self, entries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
                     ) -> tuple[torch.Tensor, torch.Tensor]:
        """Histories whose windows are full, as copies, with each row's own chunk at their start.

        Args:
            entries: int64 ``[B]``, on the pool's device: it is read there, not by the CPU.
            keys: of the own chunks, ``[B, tokens, heads, head_dim]``.
            values: the same shape.
        """
        if not self._graph.window_chunks:
            return keys, values
        return (_with_own(self._keys.index_select(0, entries), keys),
                _with_own(self._values.index_select(0, entries), values))

    def write(self, row: Row, block: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keep the KV of one chunk (``[tokens, heads, head_dim]``) written at ``row.step``."""
        entry = self._entries.get((row.stream, row.step, block))
        if entry is None:
            return
        kept_keys, kept_values = self._places[entry][1 + self._graph.history_slot(row.chunk)]
        kept_keys.copy_(keys)
        kept_values.copy_(values)

    def indices(self, entries: Sequence[int]) -> torch.Tensor:
        """The entries of a batch as int64 ``[B]``; batches come again, so it is kept."""
        key = tuple(entries)
        index = self._known_entries.get(key)
        if index is None:
            index = torch.tensor(key, device=self._keys.device)
            _remember(self._known_entries, key, index)
        return index

    def _positions_of(self, rows: Sequence[Row]) -> torch.Tensor:
        """Positions repeat with the ring, so there is one tensor for each of its phases."""
        slots, window = self._graph.history_slots, self._graph.window_chunks
        phases = tuple([row.chunk if row.chunk <= slots else slots + (row.chunk - slots) % window
                        for row in rows])
        positions = self._known_positions.get(phases)
        if positions is None:
            positions = torch.nn.utils.rnn.pad_sequence(
                [self._positions[phase] for phase in phases], batch_first=True)
            _remember(self._known_positions, phases, positions)
        return positions


def _remember(known: dict[tuple[int, ...], torch.Tensor], key: tuple[int, ...],
              value: torch.Tensor) -> None:
    """Keep what is made for one composition of a batch, in bounds."""
    if len(known) >= _MOST_KNOWN:
        known.clear()
    known[key] = value


class PoolHistory:
    """The :class:`~physis_core.models.protocol.History` of one batch.

    Attributes:
        positions: see there.
        entries: where each row's history is in the pool; empty: the model has none.
    """

    def __init__(self, pool: KvPool, entries: Sequence[int], positions: torch.Tensor,
                 filled: Sequence[int]) -> None:
        self.positions = positions
        self.keys = self.values = positions  # until extend() is called
        self._pool = pool
        self.entries = entries
        self._filled = filled

    @property
    def full(self) -> bool:
        """Whether the window of every row is full."""
        return all(chunks == self._pool.history_slots for chunks in self._filled)

    def extend(self, keys: torch.Tensor, values: torch.Tensor
               ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """See :class:`~physis_core.models.protocol.History`."""
        self.keys, self.values = keys, values
        if not self.entries:
            return keys, values, None
        if len(self.entries) == 1:
            return (self._single(self._pool._keys, keys), self._single(self._pool._values, values),
                    None)
        return (self._gather(self._pool._keys, keys), self._gather(self._pool._values, values),
                self._mask())

    def _single(self, pool: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        entry = pool[self.entries[0], :1 + self._filled[0]]
        entry[0] = own[0]
        return entry.reshape(1, -1, *own.shape[2:])

    def _gather(self, pool: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        index = self._pool.indices(self.entries)
        return _with_own(pool[:, :1 + max(self._filled)].index_select(0, index), own)

    def _mask(self) -> torch.Tensor | None:
        longest = max(self._filled)
        if min(self._filled) == longest:
            return None
        counts = torch.tensor(self._filled, device=self.positions.device)
        return torch.arange(1 + longest, device=counts.device) <= counts[:, None]


def _with_own(gathered: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Put the own chunks ``[B, tokens, ...]`` into place 0 of ``[B, places, tokens, ...]``."""
    gathered[:, 0] = own
    return gathered.flatten(1, 2)
