"""Queues: who waits, in an order other than that of arrival, kept without ever being sorted again."""

from abc import ABC, abstractmethod
from bisect import insort
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from itertools import chain
from typing import Generic, Protocol, SupportsIndex, TypeVar

from simserve.state.request import Request


class Waiting(Protocol):
    """What a replica does with its queue; a `deque` is the one of first come, first served."""

    def append(self, request: Request, /) -> None:
        """Somebody came."""

    def appendleft(self, request: Request, /) -> None:
        """Somebody was preempted, and waits again."""

    def extend(self, requests: Iterable[Request], /) -> None:
        """Several came, in this order."""

    def popleft(self) -> Request:
        """Take out the head."""

    def remove(self, request: Request, /) -> None:
        """Take out anybody."""

    def __contains__(self, request: object, /) -> bool: ...

    def __getitem__(self, place: SupportsIndex, /) -> Request: ...

    def __iter__(self) -> Iterator[Request]: ...

    def __len__(self) -> int: ...


class Ordered(Waiting, Protocol):
    """A queue in which who comes may be before who waits."""

    def may_lead(self, request: Request) -> bool:
        """What kept the head out may not keep out who comes now, or it changes who is the head."""


Key = TypeVar("Key", bound=Hashable)


def came_at(request: Request) -> tuple[int, int]:
    """What the order of arrival goes by; of one instant, the order of the load."""
    return request.arrival_ps, request.row


class Lines(ABC, Generic[Key]):
    """Waiting requests in several lines, each in the order of arrival; which line is next, kinds of it decide.

    Who comes is nearly always the last of its line (not if steps are planned ahead and the replica was idle meanwhile),
    who is preempted came before most who wait in it: both are O(1) but for the few that are out of turn too.

    Invariant: no line is empty; n = the sum of their lengths.
    """

    def __init__(self) -> None:
        self._lines: dict[Key, deque[Request]] = {}
        self._n = 0

    @abstractmethod
    def _line_of(self, request: Request) -> Key:
        """In which line it waits."""

    @abstractmethod
    def _first(self) -> Key:
        """The line whose first request is the head."""

    @abstractmethod
    def __iter__(self) -> Iterator[Request]: ...

    @abstractmethod
    def may_lead(self, request: Request) -> bool:
        """See `Ordered`."""

    def _opened(self, key: Key) -> None:
        """A line has got its first request."""

    def _closed(self, key: Key) -> None:
        """A line has lost its last request."""

    def append(self, request: Request) -> None:
        """Somebody came: after all of its line who arrived earlier."""
        line, n_after = self._line(request), 0
        for other in reversed(line):
            if came_at(other) < came_at(request):
                break
            n_after += 1
        line.insert(len(line) - n_after, request)
        self._n += 1

    def appendleft(self, request: Request) -> None:
        """Somebody was preempted: before all of its line who arrived later."""
        line, n_before = self._line(request), 0
        for other in line:
            if came_at(other) > came_at(request):
                break
            n_before += 1
        line.insert(n_before, request)
        self._n += 1

    def extend(self, requests: Iterable[Request]) -> None:
        """Several came."""
        for request in requests:
            self.append(request)

    def popleft(self) -> Request:
        """Take out the head."""
        request = self[0]
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        """Take out anybody: at once if it is the first of its line."""
        key = self._line_of(request)
        line = self._lines[key]
        if line[0] is request:
            line.popleft()
        else:
            line.remove(request)
        self._n -= 1
        if not line:
            del self._lines[key]
            self._closed(key)

    def _line(self, request: Request) -> deque[Request]:
        key = self._line_of(request)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = deque()
            self._opened(key)
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
    """The lowest priority value first, and within it the order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self._priorities: list[int] = []
        """Of the lines, ascending."""

    def may_lead(self, request: Request) -> bool:
        """It is of a better priority than all who wait."""
        return not self._priorities or request.priority < self._priorities[0]

    def _line_of(self, request: Request) -> int:
        return request.priority

    def _first(self) -> int:
        return self._priorities[0]

    def _opened(self, key: int) -> None:
        insort(self._priorities, key)

    def _closed(self, key: int) -> None:
        self._priorities.remove(key)

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(self._lines[priority] for priority in self._priorities)
