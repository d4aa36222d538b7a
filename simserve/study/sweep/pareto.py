"""Pareto fronts: points that no other point beats in both respects."""

from collections.abc import Sequence


def pareto_front(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """Return the indices of points that no other dominates, the lowest cost first, with all equals.

    One dominates another if it costs at most as much and gains at least as much, and one of both strictly. No NaN.
    """
    order = sorted(range(len(costs)), key=lambda place: (costs[place], -gains[place]))
    front: list[int] = []
    for place in order:
        best = front[-1] if front else None
        if best is None or gains[place] > gains[best] or (costs[place], gains[place]) == (costs[best], gains[best]):
            front.append(place)
    return front
