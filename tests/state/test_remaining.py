"""The O(1) sum of remaining tokens equals the sum over the members, after any joins and leaves."""

from hypothesis import given
from hypothesis import strategies as st

from simserve.state.remaining import RemainingTokens
from simserve.state.request import Request


def request(row: int, max_tokens: int, emitted_tokens: int = 0, prompt_tokens: int = 1) -> Request:
    made = Request(row, 0, prompt_tokens, max_tokens)
    made.emitted_tokens = emitted_tokens
    return made


def test_a_member_counts_as_the_limit_until_it_has_come_down_to_it() -> None:
    remaining = RemainingTokens(limit=4)
    remaining.join(request(0, max_tokens=7, emitted_tokens=1))
    totals = []
    for _ in range(5):
        totals.append(remaining.total)
        remaining.advance(1)
    assert totals == [4, 4, 4, 3, 2]


@given(st.data(), st.integers(1, 20))
def test_the_sums_are_those_of_a_loop(data: st.DataObject, limit: int) -> None:
    remaining = RemainingTokens(limit)
    left: dict[Request, int] = {}
    for row in range(data.draw(st.integers(1, 40))):
        move = data.draw(st.sampled_from(["join", "join", "leave", "advance", "accept"]))
        if move == "join":
            emitted = data.draw(st.integers(0, 5))
            member = request(row, emitted + data.draw(st.integers(1, 60)), emitted, data.draw(st.integers(1, 3)))
            remaining.join(member)
            left[member] = member.max_tokens - emitted
        elif move == "leave" and left:
            member = data.draw(st.sampled_from(list(left)))
            remaining.leave(member)
            del left[member]
        elif move == "advance":
            n_steps = data.draw(st.integers(0, min([30, *left.values()])))
            remaining.advance(n_steps)
            left = {member: n - n_steps for member, n in left.items()}
        elif move == "accept" and left:
            member = data.draw(st.sampled_from(list(left)))
            n_tokens = data.draw(st.integers(0, left[member]))
            remaining.accept(member, n_tokens)
            left[member] -= n_tokens
        out = {member: member.max_tokens - n for member, n in left.items()}
        assert remaining.total == sum(min(n, limit) for n in left.values())
        assert remaining.sums() == (sum(out.values()), sum(member.max_tokens for member in left))
        assert len(remaining) == len(left)
        assert all(remaining.emitted_tokens(member) == n for member, n in out.items())
        if left:
            order = sorted(left, key=lambda member: (out[member], -member.prompt_tokens, -list(left).index(member)))
            assert remaining.fewest_tokens() is order[0]


def test_who_leaves_early_leaves_nothing_behind() -> None:
    remaining = RemainingTokens(limit=4)
    for row in range(1000):
        member = request(row, max_tokens=10_000 + row)
        remaining.join(member)
        remaining.advance(1)
        remaining.leave(member)
    assert remaining.total == 0
    assert len(remaining._due) <= 65
