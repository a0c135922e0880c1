"""Small made-up profiles."""

from physis_core.graph import KVMode, StageGraph
from physis_core.planning.profile import BatchTimes, BlockGroup, Profile


def affine_profile(steps, blocks, fixed_us, member_us, max_batch=8, kv_mode=KVMode.SAME_STEP,
                   kv_bytes=0, weight_bytes=0, name='toy'):
    """A profile with t(B) = fixed + member * B [us]."""
    times = tuple(fixed_us + member_us * batch for batch in range(1, max_batch + 1))
    group = BlockGroup(blocks, BatchTimes(times, times, times), weight_bytes, kv_bytes)
    graph = StageGraph(steps, blocks, kv_mode, window_chunks=2)
    return Profile(name, 'given', 'none', 'given', graph, 0, (group,))
