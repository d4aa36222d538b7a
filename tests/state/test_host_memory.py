"""Host memory: the eviction order, and moves to disk; compared with a walk through all ids."""

from dataclasses import dataclass, field
from random import Random

import pytest

from simserve.state.host_memory import HostMemory, SharedMemory
from tests.doubles import in_runs
from tests.invariants import check_memory


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
    assert (memory.swapped_blocks, len(list(memory._host))) == (3, 1)
    memory.swap_in(3)
    check_memory(memory)


@dataclass
class Naive:
    """Host memory and disk as lists of ids, the least recently used first."""

    total: int
    on_disk: int
    shared: bool
    swapped: int = 0
    host: list[int] = field(default_factory=list)
    disk: list[int] = field(default_factory=list)
    writing: set[int] = field(default_factory=set)
    readers: list[int] = field(default_factory=list)
    """Ids that are read, each as often as it has readers."""
    n_lost: int = 0

    @property
    def whole(self) -> list[int]:
        """Ids in host memory of which the copy is complete."""
        return [block for block in self.host if block not in self.writing]

    def is_busy(self, block: int) -> bool:
        return block in self.writing or block in self.readers

    def shrink(self) -> int:
        """Evict what does not fit; return how many ids moved to the disk."""
        idle = [block for block in self.host if not self.is_busy(block)]
        out = idle[: max(0, len(self.host) + self.swapped - self.total)]
        self.host = [block for block in self.host if block not in out]
        self.disk += out
        n_lost = max(0, len(self.disk) - self.on_disk)
        self.disk = self.disk[n_lost:]
        self.n_lost += n_lost
        return len(out) if self.on_disk else 0

    def keep(self, used: list[int], from_disk: list[int]) -> tuple[int, int, list[int]]:
        """Use ids; return those written, how many moved to the disk, and those that are in copy from now on."""
        new = [block for block in used if block not in self.host]
        if self.shared:
            staying = [block for block in self.host if self.is_busy(block) or block in used]
            new = new[: self.total - len(staying)]
            self.writing |= {*new}
        else:
            used = used[: self.total - self.swapped]
            new = [block for block in used if block not in self.host]
            self.disk = [block for block in self.disk if block not in used]
        kept = [block for block in used if block in self.host or block in new]
        self.host = [block for block in self.host if block not in kept] + kept[::-1]
        return len({*new} - {*from_disk}), self.shrink(), new if self.shared else []

    def end(self, in_copy: list[int], is_lost: bool) -> None:
        """End copies, whole or cut short."""
        for block in in_copy:
            if block not in self.writing:
                self.readers.remove(block)
                continue
            self.writing.remove(block)
            if is_lost:
                self.host.remove(block)
            elif block in self.disk:
                self.disk.remove(block)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_it_keeps_what_lists_keep(seed: int, shared: bool) -> None:
    rng = Random(seed)
    total, on_disk = rng.randint(0, 12), rng.choice([0, rng.randint(1, 12)])
    memory = (SharedMemory if shared else HostMemory)(total, on_disk)
    naive = Naive(total, on_disk, shared)
    lengths = [(rng.randint(0, 4), rng.randint(0, 6)) for _ in range(6)]
    chains = [[*range(stem), *(1000 * stem + 100 * end + i for i in range(1, end + 1))] for end, stem in lengths]
    given = [in_runs(chain) if seed % 2 else chain for chain in chains]
    copies: list[list[int]] = []
    for _ in range(60):
        what, which = rng.choice(["keep", "keep", "out", "in", "read", "end"]), rng.randrange(6)
        chain = chains[which]
        n = rng.randint(0, len(chain))
        if what == "keep":
            in_copy: list[int] = []
            from_disk = [block for block in chain[:n] if block in naive.disk and block not in naive.whole]
            n_written, n_down, begun = naive.keep(chain[:n], from_disk)
            assert memory.keep(given[which], n, from_disk, in_copy) == (n_written, n_down)
            assert in_copy == begun
            copies.append(in_copy)
        elif what == "out" and not shared:
            assert memory.has_room(n) == (naive.swapped + n <= total)
            if memory.has_room(n):
                naive.swapped += n
                assert memory.swap_out(n) == naive.shrink()
        elif what == "in" and naive.swapped:
            n = rng.randint(1, naive.swapped)
            naive.swapped -= n
            memory.swap_in(n)
        elif what == "read":
            found, held = [block for block in chain if memory.has(block)], list[int]()
            assert found == [block for block in chain if block in naive.whole or block in naive.disk]
            assert memory.on_disk(found) == [block for block in found if block not in naive.whole]
            memory.hold(found, held)
            assert held == ([block for block in found if block in naive.whole] if shared else [])
            naive.readers += held
            copies.append(held)
        elif what == "end" and shared and copies:
            ended, is_lost = copies.pop(rng.randrange(len(copies))), rng.random() < 0.3
            (memory.lose if is_lost else memory.complete)(ended)  # type: ignore[attr-defined]
            naive.end(ended, is_lost)
        check_memory(memory)
        assert (memory.swapped_blocks, memory.total_blocks) == (naive.swapped, total)
        assert (list(memory._host), list(memory._disk)) == (naive.host, naive.disk)
        if isinstance(memory, SharedMemory):
            assert memory.n_lost == naive.n_lost
        for each in chains:
            most, n_here = rng.randint(0, len(each) + 1), rng.randint(0, len(each))
            few = each[:most]
            there = [block in naive.whole or block in naive.disk for block in few]
            n_here = min(n_here, len(few))
            n_both = next((i for i in range(n_here if shared else 0, len(few)) if not there[i]), len(few))
            assert memory.hits(each, n_here, most) == max(n_here, n_both)
            if not shared:
                n_host = next((i for i, block in enumerate(few) if block not in naive.host), len(few))
                assert memory.match(each, most) == (n_host, n_both)
