"""Patience: how long clients wait for an answer, and how they ask again."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Backoff:
    """Who was refused or gave up asks again after a while, which grows from one attempt to the next."""

    max_attempts: int
    """In all, the first included."""
    first_ps: int
    multiplier: float
    longest_ps: int
    jitter: float = 0.0
    """Up to so much of a wait is left out, by chance, so that those refused together do not come back together."""
    seed: int | str = 0

    def wait_ps(self, row: int, attempt: int) -> int:
        """From the failure of that attempt of the load's request `row` until the next one is sent.

        Chance depends on the two alone, so runs with other policies share it.
        """
        wait_ps = min(self.first_ps * self.multiplier ** min(attempt - 1, 100), self.longest_ps)
        if self.jitter:
            wait_ps *= 1 - self.jitter * Random(f"retries/{self.seed}/{row}/{attempt}").random()
        return round(wait_ps)


@dataclass(frozen=True)
class Patience:
    """What clients do when an answer does not come."""

    ttft_ps: int | None = None
    """A client gives up when it has no first token so long after it sent its request; None: it waits."""
    e2e_ps: int | None = None
    """It gives up when it has not the whole answer by then."""
    backoff: Backoff | None = None
    """None: nobody asks again."""

    @property
    def is_limited(self) -> bool:
        """Clients give up at all."""
        return self.ttft_ps is not None or self.e2e_ps is not None
