"""Host memory: the eviction order, and moves to disk; compared with a walk through all ids."""

from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.state.host_memory import HostMemory
from tests.effort import examples


def test_the_prefix_used_longest_ago_goes_first_and_from_its_end() -> None:
    memory = HostMemory(total_blocks=4)
    assert memory.keep([1, 2, 3], 3, [], []) == (3, 0)
    assert memory.keep([7, 8], 2, [], []) == (2, 0)
    assert [memory.match(chain, 3) for chain in ([1, 2, 3], [7, 8])] == [(2, 2), (2, 2)]


def test_what_the_host_gives_up_goes_to_the_disk_and_comes_back_unwritten() -> None:
    memory = HostMemory(total_blocks=2, disk_blocks=10)
    memory.keep([1, 2], 2, [], [])
    assert memory.keep([7, 8], 2, [], []) == (2, 2)  # both written by the GPU, and two others go down
    assert memory.match([1, 2], 2) == (0, 2)
    assert memory.keep([1, 2], 2, [1, 2], []) == (0, 2)
    assert (memory.match([1, 2], 2), memory.match([7, 8], 2)) == ((2, 2), (0, 2))


def test_prefixes_make_way_for_requests_that_are_swapped_out_and_these_for_nobody() -> None:
    memory = HostMemory(total_blocks=4)
    memory.keep([1, 2, 3], 3, [], [])
    assert memory.has_room(4)
    memory.swap_out(3)
    assert memory.match([1, 2, 3], 3) == (1, 1)
    assert not memory.has_room(2)
    memory.keep([7, 8], 2, [], [])
    assert (memory.swapped_blocks, memory.n_host_ids) == (3, 1)
    memory.swap_in(3)
    memory.check()


USES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 6)), max_size=40)


@settings(max_examples=examples(200))
@given(st.integers(0, 12), st.integers(0, 12), USES, st.lists(st.integers(0, 8), max_size=5))
def test_a_match_finds_what_a_walk_finds(
    n_blocks: int, n_disk: int, uses: list[tuple[int, int, int]], swaps: list[int]
) -> None:
    memory = HostMemory(n_blocks, disk_blocks=n_disk)
    chains = [[*range(stem), *(1000 * stem + 100 * end + i for i in range(1, end + 1))] for end, stem, _ in uses]
    for (_, _, n), chain in zip(uses, chains, strict=True):
        memory.keep(chain, min(n, len(chain)), [], [])
        if swaps and memory.has_room(swaps[-1]):
            memory.swap_out(swaps.pop())
        memory.check()
        for each in chains:
            n_host = next((i for i, block in enumerate(each) if block not in memory._host), len(each))
            both = memory._host.keys() | memory._disk.keys()
            n_both = next((i for i, block in enumerate(each) if block not in both), len(each))
            assert memory.match(each, len(each)) == (n_host, n_both)
