"""Members: the replicas of a fleet and the instants of their lives."""

from collections.abc import Sequence
from dataclasses import dataclass

from simserve.engine.replica import Replica


@dataclass(eq=False)
class Member:
    """A replica of the fleet, with all its ranks; None for an instant that has not come."""

    ranks: Sequence[Replica]
    ordered_ps: int
    why: str
    """Reasons for its joining and its leaving."""
    ready_ps: int | None = None
    """It receives requests from then on."""
    draining_ps: int | None = None
    """It receives none from then on, and finishes those it has."""
    gone_ps: int | None = None
