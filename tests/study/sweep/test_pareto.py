"""The Pareto front against its definition, pair by pair."""

from hypothesis import given
from hypothesis import strategies as st

from simserve.study.sweep.facts import pareto_front

# Few different values, so that ties and equals come up all the time.
VALUES = st.integers(0, 5)
POINTS = st.lists(st.tuples(VALUES, VALUES), max_size=12)


def beats(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """At most the cost, at least the gain, and not the same."""
    return one[0] <= other[0] and one[1] >= other[1] and one != other


@given(POINTS)
def test_the_front_is_whoever_is_beaten_by_nobody(points: list[tuple[int, int]]) -> None:
    naive = {at for at, point in enumerate(points) if not any(beats(other, point) for other in points)}
    front = pareto_front([cost for cost, _ in points], [gain for _, gain in points])
    assert set(front) == naive
    assert len(front) == len(naive)


@given(POINTS)
def test_along_the_front_both_rise(points: list[tuple[int, int]]) -> None:
    front = pareto_front([cost for cost, _ in points], [gain for _, gain in points])
    on_it = [points[at] for at in front]
    assert on_it == sorted(on_it)


def test_a_front_by_hand() -> None:
    #          beaten by 2 · front · front · equal to 2 · dearer than 1 for less
    costs = [3.0, 1.0, 2.0, 2.0, 1.5]
    gains = [5.0, 4.0, 6.0, 6.0, 3.0]
    assert pareto_front(costs, gains) == [1, 2, 3]
