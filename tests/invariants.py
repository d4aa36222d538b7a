"""Invariants of prefix caches and host memory, asserted from all that they keep."""

from typing import cast

from simserve.state.block_runs import BlockRun
from simserve.state.host_memory import WRITING, HostMemory
from simserve.state.id_runs import PAGE_BITS, IdIndex
from simserve.state.prefix_cache import PrefixCache


def runs_of(index: IdIndex) -> dict[int, BlockRun]:
    """Return the run of each id present."""
    cells = [((number << PAGE_BITS) + at, run) for number, page in index._pages.items() for at, run in enumerate(page)]
    return {block: cast(BlockRun, run) for block, run in cells if run is not None}


def n_named(cache: PrefixCache) -> int:
    """Return the number of blocks with an id."""
    cache._idle.settle()
    whole = sum(group.n_parts * len(runs_of(group.runs)) for group in cache._groups)
    torn = sum(run.n_parts for group in cache._groups for run in runs_of(group.torn).values())
    return whole + torn - sum(run.n_gone for run in cache._idle.runs.values())


def check_cache(cache: PrefixCache) -> None:
    """Assert that runs, eviction order and counts of a cache agree. O(ids)."""
    cache._idle.settle()
    idle = cache._idle.runs.values()
    n_pinned = n_doubled = n_free = 0
    for group in cache._groups:
        indices = [runs_of(index) for index in (group.runs, group.torn)]
        for named in indices:
            runs = {id(run): run for run in named.values()}.values()
            in_runs = {block: run for run in runs for block in run.ids}
            assert in_runs == named, "an id is in none of its runs, or in two"
            free = [run for run in runs if not run.n_holders]
            assert all(cache._idle.runs.get(run.number) is run for run in free), "a run without holders is not idle"
            assert all(run.n > 0 for run in runs), "its ends"
            n_free += len(free)
        whole, torn = indices
        assert not whole.keys() & torn.keys(), "an id is in a run and torn"
        assert all(run.n_parts == group.n_parts for run in whole.values()), "some parts are gone"
        assert all(0 < run.n_parts < group.n_parts and not run.n_holders for run in torn.values()), "torn"
        held = [(block, run.n_holders) for block, run in whole.items() if run.n_holders]
        n_pinned += len(held) * group.n_parts
        if group.window:
            n_copies = [len(group.copies.get(block, ())) for block, _ in held]
            n_doubled += sum(n - 1 - n_own for (_, n), n_own in zip(held, n_copies, strict=True)) * group.n_parts
        for block, owners in group.copies.items():
            assert 0 < len(owners) < whole[block].n_holders, group.copies
    assert sum(run.is_named for run in idle) == n_free, "an idle run has holders"
    assert all(number == run.number and run.n > 0 for number, run in cache._idle.runs.items()), "its number"
    assert cache._idle.runs.keys() <= set(cache._idle._numbers), "an idle run is out of order"
    assert all(run.n_gone < run.n for run in idle), "a part is gone"
    n_idle = sum(run.n * (run.n_parts if run.is_named else 1) - run.n_gone for run in idle)
    assert cache.idle_blocks == n_idle, (cache.idle_blocks, n_idle)
    assert cache.pinned_blocks == n_pinned, (cache.pinned_blocks, n_pinned)
    assert cache.n_doubled == n_doubled, (cache.n_doubled, n_doubled)


def check_memory(memory: HostMemory) -> None:
    """Assert that host memory and disk hold no more than they have room for, and an id in one place."""
    host, disk = list(memory._host), list(memory._disk)
    assert (len(host), len(disk)) == (memory._host.n, memory._disk.n), "the counts of ids"
    assert len(disk) <= memory._most_on_disk, (len(disk), memory._most_on_disk)
    assert 0 <= memory.swapped_blocks <= memory.total_blocks - len(host), (len(host), memory.swapped_blocks)
    both, readers = {*host} & {*disk}, getattr(memory, "_readers", {})
    assert all(readers.get(block) == WRITING for block in both), "an id is on host and disk"
    assert readers.keys() <= {*host}, "what is read is not there"
