"""Newcomers: arrivals that a scheduler sees some steps later, as it plans steps ahead."""

from simserve.state.queues import Waiting
from simserve.state.request import Request


class Newcomers:
    """Arrivals in their order, on the way to the queue."""

    __slots__ = ("_waiting", "coming")

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self.coming: list[tuple[Request, int]] = []
        """(request, steps that begin before the scheduler sees it)."""

    def show(self, n_steps: int) -> None:
        """Let n_steps begin: queue the arrivals that have waited for as many."""
        self._waiting.extend(request for request, n in self.coming if n <= n_steps)
        self.coming[:] = [(request, n - n_steps) for request, n in self.coming if n > n_steps]

    def withdraw(self, request: Request) -> bool:
        """Drop a request; return whether it was on the way."""
        n_before = len(self.coming)
        self.coming[:] = [each for each in self.coming if each[0] is not request]
        return len(self.coming) < n_before
