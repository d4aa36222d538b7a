"""RemainingTokens: the tokens that decoding requests may still produce, each capped at a limit."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush


class RemainingTokens:
    """Sum over members of min(most tokens - emitted tokens, limit), in O(1) per step and O(log n) per member.

    A member with a remainder above the limit counts as `limit` until the step in which it reaches the limit, and one
    less per step from then on.

    Invariant: n = open members + those in the calendar; total = limit * calendar members + sum(ends) - n_open * step.
    """

    __slots__ = ("_calendar", "_due", "_limit", "_members", "_n_capped", "_n_open", "_open_ends", "step")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.step = 0
        """Number of decode steps so far."""
        self._members: dict[Hashable, tuple[int, int, int]] = {}
        """The step at which each member will have produced its most tokens, this number and its prompt tokens."""
        self._n_open = 0
        self._open_ends = 0
        self._n_capped = 0
        self._calendar: dict[int, int] = {}
        """Number of capped members that reach the limit in each step."""
        self._due: list[int] = []

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member: Hashable) -> bool:
        return member in self._members

    @property
    def total(self) -> int:
        """Tokens that the members may still produce, each capped at the limit."""
        return self._n_capped * self._limit + self._open_ends - self._n_open * self.step

    def emitted_tokens(self, member: Hashable) -> int:
        """Return the tokens that a member has produced by now."""
        end, most_tokens, _ = self._members[member]
        return most_tokens - (end - self.step)

    def sums(self) -> tuple[int, int]:
        """Return the sums of emitted tokens and of the most tokens over all members; O(n)."""
        all_ends = all_tokens = 0
        for end, most_tokens, _ in self._members.values():
            all_ends += end
            all_tokens += most_tokens
        return all_tokens - all_ends + len(self._members) * self.step, all_tokens

    def fewest_tokens(self) -> Hashable:
        """Return the member with the fewest emitted tokens, then the longest prompt, then the latest join; O(n)."""
        first: tuple[int, int] | None = None
        fewest: Hashable = None
        for member, (end, most_tokens, prompt_tokens) in self._members.items():
            key = most_tokens - end, -prompt_tokens
            if first is None or key <= first:
                first, fewest = key, member
        return fewest

    def join(self, member: Hashable, prompt_tokens: int, most_tokens: int, emitted_tokens: int) -> None:
        """Add a member that has produced some of the most tokens of its answer."""
        end = self.step + most_tokens - emitted_tokens
        self._members[member] = end, most_tokens, prompt_tokens
        self._count(end)

    def accept(self, member: Hashable, n_tokens: int) -> None:
        """Move a member n_tokens nearer to its end, besides those of `advance`."""
        end, most_tokens, prompt_tokens = self._members[member]
        self._discount(end)
        self._members[member] = end - n_tokens, most_tokens, prompt_tokens
        self._count(end - n_tokens)

    def leave(self, member: Hashable) -> None:
        """Remove a member."""
        self._discount(self._members.pop(member)[0])

    def _count(self, end: int) -> None:
        """Add a member that will have produced its most tokens at step `end` to the sums."""
        down_at = end - self._limit
        if down_at <= self.step:
            self._n_open += 1
            self._open_ends += end
            return
        self._n_capped += 1
        if down_at not in self._calendar:
            heappush(self._due, down_at)
        self._calendar[down_at] = self._calendar.get(down_at, 0) + 1

    def _discount(self, end: int) -> None:
        """Remove such a member from the sums."""
        down_at = end - self._limit
        if down_at <= self.step:
            self._n_open -= 1
            self._open_ends -= end
            return
        self._n_capped -= 1
        self._calendar[down_at] -= 1
        if not self._calendar[down_at]:
            del self._calendar[down_at]
            if len(self._due) > 2 * len(self._calendar) + 64:  # steps at which no member is left to reach the limit
                self._due = list(self._calendar)
                heapify(self._due)

    def advance(self, n_steps: int) -> None:
        """Advance n_steps steps: each member has produced n_steps more tokens."""
        self.step += n_steps
        while self._due and self._due[0] <= self.step:
            down_at = heappop(self._due)
            n = self._calendar.pop(down_at, 0)
            self._n_capped -= n
            self._n_open += n
            self._open_ends += n * (down_at + self._limit)
