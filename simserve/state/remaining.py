"""RemainingTokens: how many tokens the decoding requests may still produce, each counted up to a limit."""

from heapq import heapify, heappop, heappush

from simserve.state.request import Request


class RemainingTokens:
    """The sum over members of min(max_tokens - tokens out, limit), O(1) a step and O(log n) a member.

    A member whose remainder is above the limit counts as `limit` until the step in which it comes down to it; from
    then on one less a step.

    Invariant: n = open members + those in the calendar; total = limit * calendar members + sum(ends) - n_open * step.
    """

    __slots__ = ("_calendar", "_due", "_ends", "_limit", "_n_capped", "_n_open", "_open_ends", "step")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.step = 0
        """Decode steps done."""
        self._ends: dict[Request, int] = {}
        """For each member the step at which it will have produced max_tokens."""
        self._n_open = 0
        self._open_ends = 0
        self._n_capped = 0
        self._calendar: dict[int, int] = {}
        """How many capped members come down to the limit in which step."""
        self._due: list[int] = []

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, request: Request) -> bool:
        return request in self._ends

    @property
    def total(self) -> int:
        """Tokens that the members may still produce, each counted up to the limit."""
        return self._n_capped * self._limit + self._open_ends - self._n_open * self.step

    def emitted_tokens(self, request: Request) -> int:
        """Tokens that a member has produced by now."""
        return request.max_tokens - (self._ends[request] - self.step)

    def sums(self) -> tuple[int, int]:
        """Tokens that all members have produced, and max_tokens of all; O(n)."""
        most_tokens = sum(request.max_tokens for request in self._ends)
        return most_tokens - sum(self._ends.values()) + len(self._ends) * self.step, most_tokens

    def least_done(self) -> Request:
        """The member with the fewest tokens out, of several the longest prompt, then the last to join; O(n)."""
        ends = self._ends
        return min(reversed(ends), key=lambda request: (request.max_tokens - ends[request], -request.prompt_tokens))

    def join(self, request: Request) -> None:
        """Add a member, whose emitted_tokens are those of now."""
        end = self._ends[request] = self.step + request.max_tokens - request.emitted_tokens
        down_at = end - self._limit
        if down_at <= self.step:
            self._n_open += 1
            self._open_ends += end
            return
        self._n_capped += 1
        if down_at not in self._calendar:
            heappush(self._due, down_at)
        self._calendar[down_at] = self._calendar.get(down_at, 0) + 1

    def leave(self, request: Request) -> None:
        """Take a member out."""
        end = self._ends.pop(request)
        down_at = end - self._limit
        if down_at <= self.step:
            self._n_open -= 1
            self._open_ends -= end
            return
        self._n_capped -= 1
        self._calendar[down_at] -= 1
        if not self._calendar[down_at]:
            del self._calendar[down_at]
            if len(self._due) > 2 * len(self._calendar) + 64:  # steps at which nobody is left to come down
                self._due = list(self._calendar)
                heapify(self._due)

    def advance(self, n_steps: int) -> None:
        """So many steps are done: each member has produced as many tokens more."""
        self.step += n_steps
        while self._due and self._due[0] <= self.step:
            down_at = heappop(self._due)
            n = self._calendar.pop(down_at, 0)
            self._n_capped -= n
            self._n_open += n
            self._open_ends += n * (down_at + self._limit)
