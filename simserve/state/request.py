"""One request while it lives: counters and one Phase."""

from collections.abc import Sequence
from enum import Enum


class Phase(Enum):
    """Where a request stands. It goes back from PREFILL or DECODE to WAITING when it is preempted, and through TRANSFER
    only from a prefill to a decode replica."""

    WAITING = "waiting"
    PREFILL = "prefill"
    TRANSFER = "transfer"
    DECODE = "decode"
    DONE = "done"


# fast: a member of an Enum is looked up three times as fast under a name of its own.
WAITING, PREFILL, TRANSFER, DECODE, DONE = Phase


class Request:
    """One request while it lives, as policies and the engine see it.

    The number of tokens it will really produce is not here: no policy may know it. The engine keeps it by `row`.

    Invariant: while in PREFILL, prefilled_tokens <= prompt_tokens + emitted_tokens.
    """

    __slots__ = (
        "arrival_ps",
        "chain",
        "copies",
        "emitted_tokens",
        "idle_hit_blocks",
        "join_step",
        "joined_ps",
        "kv_offset",
        "max_tokens",
        "n_held_ids",
        "n_preemptions",
        "padding_tokens",
        "phase",
        "preempted_at_ps",
        "prefilled_tokens",
        "priority",
        "prompt_tokens",
        "reserved_blocks",
        "row",
        "session",
        "tenant",
    )

    # From the moment it joins a Cohort: the cohort's step and the instant then, and the tokens it had stored less
    # that step.
    join_step: int
    joined_ps: int
    kv_offset: int
    # Of a request whose replica caches prefixes: the ids of its blocks, how many of them it holds, and of which
    # of those it has a copy while others have them too.
    chain: Sequence[int]
    n_held_ids: int
    copies: set[int]

    # Where a router asks for it: whose request it is, "" if nobody's.
    session: str

    def __init__(self, row: int, arrival_ps: int, prompt_tokens: int, max_tokens: int) -> None:
        self.row = row
        """Its row in the trace."""
        self.arrival_ps = arrival_ps
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        """The most tokens it may produce: what its client allowed, or what the model's length leaves."""
        self.phase = WAITING
        self.prefilled_tokens = 0
        """Tokens of prompt and earlier output whose keys and values are computed; while it waits, those that a prefix
        cache had for it when its scheduler was last asked."""
        self.idle_hit_blocks = 0
        """Blocks of these that nobody holds."""
        self.emitted_tokens = 0
        """Tokens produced, as of the last time it joined or left a cohort."""
        self.padding_tokens = 0
        """Dummy prompt tokens that a padded batch computes for it."""
        self.reserved_blocks = 0
        """KV blocks set aside for it on admission, used ones included."""
        self.n_preemptions = 0
        self.preempted_at_ps = 0
        """When it last lost its blocks; means something only while n_preemptions > 0."""
        self.priority = 0
        """The lower, the better, for policies that look at it."""
        self.tenant = ""

    @property
    def is_new(self) -> bool:
        """It holds no seat and no blocks: never admitted, or preempted since."""
        return self.phase is WAITING

    @property
    def prefill_left_tokens(self) -> int:
        """Tokens still to compute before it can produce its next one; after a preemption its output so far too."""
        return self.prompt_tokens + self.emitted_tokens - self.prefilled_tokens

    def __repr__(self) -> str:
        return f"Request(row={self.row}, prompt_tokens={self.prompt_tokens}, {self.phase.value})"
