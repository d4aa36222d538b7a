"""Why: reasons for which replicas join and leave, and what slows them for a time."""

from dataclasses import dataclass
from enum import StrEnum


class Why(StrEnum):
    """Kinds of reasons, as each is written; {} stands for what it is of."""

    START = "at the start"
    SCALED = "{}"
    SPARE = "a {} spare"
    ROLLED_OUT = "rolled out"
    RESTARTED = "restarted after a {} failure"
    TAKES_OVER = "takes over after a {} failure"
    REPLACES = "replaces one after a {}"
    FAILED = "a {} failed"
    EVICTED = "evicted ({})"
    RECLAIMED = "its node is gone"
    GRACE = "its grace ended"
    TIMEOUT = "its server timed out"
    NO_DRAIN = "it does not drain"
    SLOW = ""
    LINK = "the link {} "


@dataclass(frozen=True)
class Reason:
    """Something that happened to a replica."""

    kind: Why
    of: str = ""
    """What failed, the kind of a spare, a policy with its numbers, or the pool of a link."""
    window_s: tuple[float, float | None] | None = None
    """[s] From when and until when it was slow; None: for good."""
    speed_frac: float = 1.0
    """[share] Speed that it had meanwhile."""

    @property
    def words(self) -> str:
        """Return it as tables and pages have it."""
        if self.window_s is None:
            return self.kind.format(self.of)
        link = self.kind.format(f"of pool {self.of}" if self.of else "between pools")
        how = f"ran at {100 * self.speed_frac:g}% of its speed" if self.speed_frac else "was down"
        start_s, end_s = self.window_s
        return f"{link}{how} from {start_s:g} s {'on' if end_s is None else f'to {end_s:g} s'}"


@dataclass(frozen=True)
class MemberFacts:
    """The instants of a rank in the fleet, in seconds, None for one that never came; why; and its first lane."""

    ordered_s: float = 0.0
    ready_s: float | None = 0.0
    draining_s: float | None = None
    gone_s: float | None = None
    reasons: tuple[Reason, ...] = ()
    first_lane: int | None = None  # the rank that is the first of a pipeline on the same GPUs; None: itself
    called_s: float | None = 0.0

    @property
    def joined(self) -> Why | None:
        """Why it joined."""
        return self.reasons[0].kind if self.reasons else None

    def has(self, *kinds: Why) -> bool:
        """Return whether something of some kinds happened to it."""
        return any(reason.kind in kinds for reason in self.reasons)

    @property
    def why(self) -> str:
        """Its reasons in words."""
        return "; ".join(reason.words for reason in self.reasons)
