"""Members finish when and in the order in which a plain list says, after any joins, cancellations and steps."""

from hypothesis import given
from hypothesis import strategies as st

from simserve.state.cohort import NO_FINISH, Cohort
from simserve.state.request import Request


@given(st.data())
def test_finishes_are_those_of_a_list(data: st.DataObject) -> None:
    cohort = Cohort(block_size=4)
    ends: list[tuple[int, Request]] = []
    """Step at which each member finishes, in the order of joining."""
    waiting: list[Request] = [Request(row, 0, prompt_tokens=3, max_tokens=9) for row in range(8)]
    for _ in range(data.draw(st.integers(1, 60))):
        move = data.draw(st.sampled_from(["join", "join", "drop", "advance"]))
        if move == "join" and waiting:
            request = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            n_left = data.draw(st.integers(1, 6))
            cohort.join(request, n_left)
            ends.append((cohort.step + n_left, request))
        elif move == "drop" and ends:
            gone = data.draw(st.sampled_from(ends))
            cohort.drop(gone[1])
            ends.remove(gone)
            waiting.append(gone[1])  # it may come back, and finish at another step
        elif move == "advance" and ends:
            cohort.advance(1)
            finished = [request for step, request in sorted(ends, key=lambda end: end[0]) if step == cohort.step]
            assert cohort.pop_finished() == finished
            for request in finished:
                cohort.leave(request)
            ends = [end for end in ends if end[0] != cohort.step]
            waiting += finished
        assert cohort.next_finish_step == min((step for step, _ in ends), default=NO_FINISH)
