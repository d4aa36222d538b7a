"""Pareto fronts: who is not beaten in one respect without being better in the other."""

from collections.abc import Sequence


def pareto_front(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """The places that nobody dominates, the lowest cost first; equals are all there.

    One dominates another if it costs at most as much and gains at least as much, and one of both strictly. No NaN.
    """
    order = sorted(range(len(costs)), key=lambda place: (costs[place], -gains[place]))
    front: list[int] = []
    for place in order:
        best = front[-1] if front else None
        if best is None or gains[place] > gains[best] or (costs[place], gains[place]) == (costs[best], gains[best]):
            front.append(place)
    return front
