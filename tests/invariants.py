"""Invariants of prefix caches and host memory, asserted from all that they keep."""

from simserve.state.host_memory import WRITING, HostMemory, SharedMemory
from simserve.state.prefix_cache import PrefixCache


def check_cache(cache: PrefixCache) -> None:
    """Assert that runs, eviction order and counts of a cache agree. O(ids)."""
    cache._settle()
    idle = cache._idle.values()
    n_pinned = n_doubled = n_free = 0
    for group in cache._groups:
        for named in (group.runs, group.torn):
            runs = {id(run): run for run in named.values()}.values()
            in_runs = {block: run for run in runs for block in run.ids}
            assert in_runs == named, "an id is in none of its runs, or in two"
            free = [run for run in runs if not run.n_holders]
            assert all(cache._idle.get(run.number) is run for run in free), "a run without holders is not idle"
            assert all(run.low < run.high == run.low + len(run.ids) for run in runs), "its ends"
            n_free += len(free)
        assert not group.runs.keys() & group.torn.keys(), "an id is in a run and torn"
        assert all(run.n_parts == group.n_parts for run in group.runs.values()), "some parts are gone"
        assert all(0 < run.n_parts < group.n_parts and not run.n_holders for run in group.torn.values()), "torn"
        held = [(block, run.n_holders) for block, run in group.runs.items() if run.n_holders]
        n_pinned += len(held) * group.n_parts
        if group.window:
            n_copies = [len(group.copies.get(block, ())) for block, _ in held]
            n_doubled += sum(n - 1 - n_own for (_, n), n_own in zip(held, n_copies, strict=True)) * group.n_parts
    assert sum(map(bool, (run.ids for run in idle))) == n_free, "an idle run has holders"
    assert all(number == run.number and run.low < run.high for number, run in cache._idle.items()), "its number"
    assert cache._idle.keys() <= set(cache._order), "an idle run is out of order"
    assert all(run.n_gone < run.high - run.low for run in idle), "a part is gone"
    n_idle = sum((run.high - run.low) * (run.n_parts if run.ids else 1) - run.n_gone for run in idle)
    assert cache.idle_blocks == n_idle, (cache.idle_blocks, n_idle)
    assert cache.pinned_blocks == n_pinned, (cache.pinned_blocks, n_pinned)
    assert cache.n_doubled == n_doubled, (cache.n_doubled, n_doubled)
    for group in cache._groups:
        for block, owners in group.copies.items():
            assert 0 < len(owners) < group.runs[block].n_holders, group.copies


def check_memory(memory: HostMemory) -> None:
    """Assert that host memory and disk hold no more than they have room for, and an id in one place."""
    if isinstance(memory, SharedMemory):
        in_copy = [block for block, n_readers in memory._host.items() if n_readers]
        assert memory._n_in_copy == len(in_copy), (memory._n_in_copy, in_copy)
        assert len(memory._host) <= memory.total_blocks, (len(memory._host), memory.total_blocks)
        both = memory._host.keys() & memory._disk.keys()
        assert all(memory._host[block] == WRITING for block in both), "an id is on host and disk"
        assert len(memory._disk) <= memory._most_on_disk, (len(memory._disk), memory._most_on_disk)
        return
    held_blocks = memory.swapped_blocks + len(memory._host)
    assert 0 <= held_blocks <= memory.total_blocks, (held_blocks, memory.total_blocks)
    assert not memory._host.keys() & memory._disk.keys(), "an id is on host and disk"
    assert len(memory._disk) <= memory._most_on_disk, (len(memory._disk), memory._most_on_disk)
