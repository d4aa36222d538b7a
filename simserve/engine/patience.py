"""Patience: clients' timeouts and retries."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff of clients that were refused or timed out."""

    max_attempts: int
    """Attempts in all, including the first."""
    first_ps: int
    multiplier: float
    longest_ps: int
    jitter: float = 0.0
    """Up to this fraction of a wait is cut at random, so that requests refused together do not retry together."""
    seed: int | str = 0

    def wait_ps(self, row: int, attempt: int) -> int:
        """Return the wait from the failure of an attempt of the load's request `row` until the next attempt.

        The jitter depends on these two alone, so runs with other policies share it.
        """
        wait_ps = min(self.first_ps * self.multiplier ** min(attempt - 1, 100), self.longest_ps)
        if self.jitter:
            wait_ps *= 1 - self.jitter * Random(f"retries/{self.seed}/{row}/{attempt}").random()
        return round(wait_ps)


@dataclass(frozen=True)
class Patience:
    """What clients do when an answer is late."""

    ttft_ps: int | None = None
    """Time-out for the first token; None: no limit."""
    e2e_ps: int | None = None
    """Time-out for the whole answer; None: no limit."""
    backoff: Backoff | None = None
    """Backoff of retries; None: no retries."""

    @property
    def is_limited(self) -> bool:
        """Clients have a time-out."""
        return self.ttft_ps is not None or self.e2e_ps is not None
