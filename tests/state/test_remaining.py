"""The O(1) sum of remaining tokens equals the sum over the members, after any joins and leaves."""

from heapq import heapify
from random import Random
from unittest.mock import Mock

import pytest

from simserve.state.remaining import RemainingTokens
from simserve.state.request import Request


def request(row: int, max_tokens: int, emitted_tokens: int = 0, prompt_tokens: int = 1) -> Request:
    made = Request(row, 0, prompt_tokens, max_tokens)
    made.emitted_tokens = emitted_tokens
    return made


def test_a_member_counts_as_the_limit_until_it_has_come_down_to_it() -> None:
    remaining = RemainingTokens(limit=4)
    remaining.join(request(0, max_tokens=7, emitted_tokens=1), 1, 7, 1)
    totals = []
    for _ in range(5):
        totals.append(remaining.total)
        remaining.advance(1)
    assert totals == [4, 4, 4, 3, 2]


@pytest.mark.parametrize("seed", range(20))
def test_the_sums_are_those_of_a_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, tidied = Random(seed), Mock(side_effect=heapify)
    monkeypatch.setattr("simserve.state.remaining.heapify", tidied)
    limit, longest = rng.randint(1, 20), rng.choice([60, 2000])
    remaining = RemainingTokens(limit)
    left: dict[Request, int] = {}
    moves = rng.choice([["join", "join", "leave", "advance", "accept"], ["join"] * 9 + ["leave"] * 9 + ["advance"]])
    for row in range(n_moves := 300):
        move, member = rng.choice(moves), rng.choice([*left, None])
        if move == "join":
            emitted = rng.randint(0, 5)
            member = request(row, emitted + rng.randint(1, longest), emitted, rng.randint(1, 3))
            remaining.join(member, member.prompt_tokens, member.max_tokens, emitted)
            left[member] = member.max_tokens - emitted
        elif move == "advance":
            n_steps = rng.randint(0, min([30, *left.values()]))
            remaining.advance(n_steps)
            left = {each: n - n_steps for each, n in left.items()}
        elif member is not None and move == "leave":
            remaining.leave(member)
            del left[member]
            assert member not in remaining
        elif member is not None and move == "accept":
            n_tokens = rng.randint(0, left[member])
            remaining.accept(member, n_tokens)
            left[member] -= n_tokens
        out = {member: member.max_tokens - n for member, n in left.items()}
        assert remaining.total == sum(min(n, limit) for n in left.values())
        assert remaining.sums() == (sum(out.values()), sum(member.max_tokens for member in left))
        assert len(remaining) == len(left)
        assert all(each in remaining for each in left)
        days = {n for n in left.values() if n > limit}
        assert len(remaining._due) <= 2 * len(days) + 64  # those who leave early leave little behind
        assert all(remaining.emitted_tokens(member) == n for member, n in out.items())
        if left:
            order = sorted(left, key=lambda member: (out[member], -member.prompt_tokens, -list(left).index(member)))
            assert remaining.fewest_tokens() is order[0]
    assert tidied.call_count <= n_moves / 64


def test_who_leaves_early_leaves_nothing_behind() -> None:
    remaining = RemainingTokens(limit=4)
    for row in range(1000):
        member = request(row, max_tokens=10_000 + row)
        remaining.join(member, 1, member.max_tokens, 0)
        remaining.advance(1)
        remaining.leave(member)
    assert remaining.total == 0
    assert len(remaining._due) <= 64
    assert remaining.step == 1000
