"""Queues: waiting requests in an order other than that of arrival, kept without sorting."""

from abc import ABC, abstractmethod
from bisect import insort
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from itertools import chain, takewhile
from typing import Generic, Protocol, SupportsIndex, TypeVar

from simserve.state.request import Request


class Waiting(Protocol):
    """Operations of a replica on its queue; a `deque` is first come, first served."""

    def append(self, request: Request, /) -> None:
        """Add an arrival."""

    def appendleft(self, request: Request, /) -> None:
        """Requeue a preempted request."""

    def extend(self, requests: Iterable[Request], /) -> None:
        """Add several arrivals, in this order."""

    def popleft(self) -> Request:
        """Remove the head."""

    def remove(self, request: Request, /) -> None:
        """Remove a request."""

    def __contains__(self, request: object, /) -> bool: ...

    def __getitem__(self, place: SupportsIndex, /) -> Request: ...

    def __iter__(self) -> Iterator[Request]: ...

    def __len__(self) -> int: ...


class Ordered(Waiting, Protocol):
    """A queue in which an arrival may go before a waiting request."""

    def may_lead(self, request: Request) -> bool:
        """Return whether an arrival may become the head, or may be admitted although the head is blocked."""


Key = TypeVar("Key", bound=Hashable)


def came_at(request: Request) -> tuple[int, int]:
    """Return the key of arrival order; within an instant, the order of the load."""
    return request.arrival_ps, request.row


class Lines(ABC, Generic[Key]):
    """Waiting requests in several lines, each in the order of arrival; subclasses choose the next line.

    Arrivals nearly always go last (unless steps are planned ahead and the replica was idle meanwhile), preempted
    requests nearly always first: both are O(1) in the number of requests that are not out of turn.

    Invariant: no line is empty; n = the sum of their lengths.
    """

    def __init__(self) -> None:
        self._lines: dict[Key, deque[Request]] = {}
        self._n = 0

    @abstractmethod
    def _line_of(self, request: Request) -> Key:
        """Return the key of a request's line."""

    @abstractmethod
    def _first(self) -> Key:
        """Return the key of the line that has the head."""

    @abstractmethod
    def __iter__(self) -> Iterator[Request]: ...

    @abstractmethod
    def may_lead(self, request: Request) -> bool:
        """See `Ordered`."""

    def _add_line(self, key: Key) -> None:
        """Handle the first request of a line."""

    def _drop_line(self, key: Key) -> None:
        """Handle the removal of a line's last request."""

    def append(self, request: Request) -> None:
        """Add an arrival: after all of its line that arrived earlier."""
        line, at = self._line(request), came_at(request)
        n_after = sum(1 for _ in takewhile(lambda other: came_at(other) > at, reversed(line)))
        line.insert(len(line) - n_after, request)
        self._n += 1

    def appendleft(self, request: Request) -> None:
        """Requeue a preempted request: before all of its line that arrived later."""
        line, at = self._line(request), came_at(request)
        n_before = sum(1 for _ in takewhile(lambda other: came_at(other) < at, line))
        line.insert(n_before, request)
        self._n += 1

    def extend(self, requests: Iterable[Request]) -> None:
        """Add several arrivals."""
        for request in requests:
            self.append(request)

    def popleft(self) -> Request:
        """Remove the head."""
        request = self[0]
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        """Remove a request: O(1) if it is the first of its line."""
        key = self._line_of(request)
        line = self._lines[key]
        if line[0] is request:
            line.popleft()
        else:
            line.remove(request)
        self._n -= 1
        if not line:
            del self._lines[key]
            self._drop_line(key)

    def _line(self, request: Request) -> deque[Request]:
        key = self._line_of(request)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = deque()
            self._add_line(key)
        return line

    def __contains__(self, request: object) -> bool:
        return isinstance(request, Request) and request in self._lines.get(self._line_of(request), ())

    def __getitem__(self, place: SupportsIndex) -> Request:
        if place.__index__() or not self._n:
            raise IndexError("only the head of a queue that is not empty has a place")
        return self._lines[self._first()][0]

    def __len__(self) -> int:
        return self._n


class ByPriority(Lines[int]):
    """Lowest priority value first, then in the order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self._priorities: list[int] = []
        """Priorities of the lines, ascending."""

    def may_lead(self, request: Request) -> bool:
        """Return whether it has a better priority than all waiting requests, or came before the first of the best: a
        request from another replica may have."""
        if not self._priorities:
            return True
        first = self[0]
        return (request.priority, came_at(request)) < (first.priority, came_at(first))

    def _line_of(self, request: Request) -> int:
        return request.priority

    def _first(self) -> int:
        return self._priorities[0]

    def _add_line(self, key: int) -> None:
        insort(self._priorities, key)

    def _drop_line(self, key: int) -> None:
        self._priorities.remove(key)

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(self._lines[priority] for priority in self._priorities)
