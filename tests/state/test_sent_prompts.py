"""Record of a router's own sends, compared with plain lists."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import overload

import pytest

from simserve.state.request import Request
from simserve.state.sent_prompts import OwnSends, SentPrompts
from tests.doubles import in_runs

BLOCK_TOKENS = 4


def prompt(chain: Sequence[int], prompt_tokens: int) -> Request:
    request = Request(row=0, arrival_ps=0, prompt_tokens=prompt_tokens, max_tokens=1)
    request.chains = {BLOCK_TOKENS: chain}
    return request


def test_it_finds_what_was_sent_from_the_beginning_on() -> None:
    sent = SentPrompts(BLOCK_TOKENS, most_ids=10)
    sent.add(prompt([1, 2, 3], 12))
    assert sent.found_tokens(prompt([1, 2, 3, 4], 17)) == 12
    assert sent.found_tokens(prompt([1, 2, 9], 12)) == 8
    assert sent.found_tokens(prompt([5, 6, 7], 12)) == 0


def test_the_prompts_sent_longest_ago_are_forgotten_first_and_of_each_its_end() -> None:
    sent = SentPrompts(BLOCK_TOKENS, most_ids=4)
    sent.add(prompt([1, 2, 3], 12))
    sent.add(prompt([1, 7], 8))
    sent.add(prompt([8], 4))
    assert sent.found_tokens(prompt([1, 2, 3], 12)) == 8  # 3 is gone
    assert sent.found_tokens(prompt([1, 7], 8)) == 8
    sent.add(prompt([9], 4))
    assert sent.found_tokens(prompt([1, 2, 3], 12)) == 4  # then 2
    assert len(sent) == 4


class PromptOnly(Sequence[int]):
    """A chain with ids in the output that must not be read."""

    def __init__(self, ids: list[int], n_visible: int) -> None:
        self.ids, self.n_visible = ids, n_visible

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        last = at.stop - 1 if isinstance(at, slice) else at
        assert 0 <= last < self.n_visible, "that block lies in the answer"
        return self.ids[at]


def test_no_id_of_the_answer_is_looked_at() -> None:
    sent = SentPrompts(BLOCK_TOKENS, most_ids=10)
    request = prompt(PromptOnly([1, 2, 3, 4, 5], n_visible=2), 11)
    sent.add(request)
    assert len(sent) == 2
    assert sent.found_tokens(request) == 8


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_plain_lists(seed: int) -> None:
    rng = Random(seed)
    most_ids = rng.randint(0, 12)
    names: dict[tuple[int, ...], int] = {}
    sent = SentPrompts(BLOCK_TOKENS, most_ids)
    by_age: list[int] = []
    """Ids, the next to forget first."""
    for _ in range(40):
        branch, prompt_tokens = [rng.randint(0, 1) for _ in range(rng.randint(0, 6))], rng.randint(1, 30)
        chain = [names.setdefault(tuple(branch[: n + 1]), len(names)) for n in range(len(branch))]
        mine = chain[: prompt_tokens // BLOCK_TOKENS]
        n_found = 0
        while n_found < len(mine) and mine[n_found] in by_age:
            n_found += 1
        request = prompt(in_runs(chain) if seed % 2 else chain, prompt_tokens)
        assert sent.found_tokens(request) == n_found * BLOCK_TOKENS
        sent.add(request)
        by_age = [block for block in by_age if block not in mine] + mine[::-1]
        by_age = by_age[max(len(by_age) - most_ids, 0) :]
        assert len(sent) == len(by_age)


@dataclass
class View:
    """A member with a KV cache of 48 tokens."""

    id: int = 0
    block_tokens: int | None = BLOCK_TOKENS
    total_blocks: int = 6
    block_size: int = 8


@pytest.mark.parametrize(
    ("view", "most_tokens", "n_held"),
    [(View(), None, 12), (View(), 20, 5), (View(), 100, 20), (View(block_tokens=None), None, 0), (View(), 0, 0)],
)
def test_a_record_is_as_large_as_the_cache_or_as_asked(view: View, most_tokens: int | None, n_held: int) -> None:
    sent = SentPrompts.of(view, most_tokens)  # type: ignore[arg-type]
    long = prompt(range(20), 80)
    long.chains[1] = range(80)  # type: ignore[index]
    sent.add(long)
    assert (len(sent), sent.found_tokens(long)) == (n_held, n_held * BLOCK_TOKENS)


@pytest.mark.parametrize("seed", range(5))
def test_a_member_keeps_its_record_while_it_is_there(seed: int) -> None:
    rng, own, sent = Random(seed), OwnSends(None), dict[int, int]()
    for _ in range(40):
        present = rng.sample(range(5), rng.randint(0, 5)) if rng.random() < 0.5 else list(sent)
        sent = {member: sent.get(member, 0) for member in present}
        records = own.of([View(member) for member in present])  # type: ignore[misc]
        assert [len(record) for record in records] == list(sent.values())
        for member, record in zip(present, records, strict=True):
            if rng.random() < 0.5 and sent[member] < 12:
                record.add(prompt(range(20), (sent[member] + 1) * BLOCK_TOKENS))
                sent[member] += 1


def test_a_copy_of_a_router_has_sent_nothing() -> None:
    own = OwnSends(20)
    own.of([View()])[0].add(prompt(range(20), 80))  # type: ignore[list-item]
    (record,) = deepcopy(own).of([View()])  # type: ignore[list-item]
    record.add(prompt(range(20), 80))
    assert (len(record), len(own.of([View()])[0])) == (5, 5)  # type: ignore[list-item]
    assert len(deepcopy(own).of([View()])[0]) == 0  # type: ignore[list-item]
