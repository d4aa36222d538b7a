"""Pareto fronts: points that no other point dominates."""

from collections.abc import Sequence


def pareto_front(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """Return the places of non-dominated points, the lowest cost first, including equal points.

    A point dominates another if its cost is at most and its gain at least as large, one of them strictly. No NaN.
    """
    order = sorted(range(len(costs)), key=lambda place: (costs[place], -gains[place]))
    front: list[int] = []
    for place in order:
        best = front[-1] if front else None
        if best is None or gains[place] > gains[best] or (costs[place], gains[place]) == (costs[best], gains[best]):
            front.append(place)
    return front
