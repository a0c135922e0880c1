"""Which batches really formed, by the logs of an engine's devices."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from physis_core.graph import StageGraph
from physis_core.runtime.engine import Engine


@dataclass(frozen=True)
class Formed:
    """The batches of an engine.

    Attributes:
        largest: members of the largest.
        mixed: how many had members with histories of different lengths.
    """

    largest: int
    mixed: int


def formed(engine: Engine, graph: StageGraph) -> Formed:
    """What the devices ran in one call: the tasks that one of them began at one moment."""
    lengths: dict[tuple[int, int], list[int]] = defaultdict(list)
    for device, log in enumerate(engine.stage_logs()):
        for record in log.latest():
            lengths[device, int(record['start_ns'])].append(len(graph.history(record['chunk'])))
    return Formed(max(map(len, lengths.values())),
                  sum(len(set(batch)) > 1 for batch in lengths.values()))
