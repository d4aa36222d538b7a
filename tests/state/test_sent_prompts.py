"""Record of a router's own sends, compared with plain lists."""

from collections.abc import Sequence
from typing import overload

from hypothesis import given
from hypothesis import strategies as st

from simserve.state.request import Request
from simserve.state.sent_prompts import SentPrompts

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


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=6), st.integers(1, 30)), max_size=30), st.integers(0, 12)
)
def test_it_agrees_with_plain_lists(branches: list[tuple[list[int], int]], most_ids: int) -> None:
    names: dict[tuple[int, ...], int] = {}
    sent = SentPrompts(BLOCK_TOKENS, most_ids)
    by_age: list[int] = []
    """Ids, the next to forget first."""
    for branch, prompt_tokens in branches:
        chain = [names.setdefault(tuple(branch[: n + 1]), len(names)) for n in range(len(branch))]
        mine = chain[: prompt_tokens // BLOCK_TOKENS]
        n_found = 0
        while n_found < len(mine) and mine[n_found] in by_age:
            n_found += 1
        request = prompt(chain, prompt_tokens)
        assert sent.found_tokens(request) == n_found * BLOCK_TOKENS
        sent.add(request)
        by_age = [block for block in by_age if block not in mine] + mine[::-1]
        by_age = by_age[max(len(by_age) - most_ids, 0) :]
        assert len(sent) == len(by_age)
