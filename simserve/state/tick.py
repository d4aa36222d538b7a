"""Tick: an inner loop of a controller that decides less often than it is asked."""


class Tick:
    """A loop that is due at once, and then at intervals."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._due_at_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Return whether the loop runs now, and count the time from now if so."""
        if now_s < self._due_at_s - 1e-6:  # instants are sums of intervals
            return False
        self._due_at_s = now_s + self._interval_s
        return True
