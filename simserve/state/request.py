"""Request: counters and phase of one live request."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, Protocol

from mypy_extensions import mypyc_attr


class Phase(Enum):
    """Phase of a request. Preemption returns it from PREFILL or DECODE to WAITING; TRANSFER is the way from a prefill
    to a decode replica."""

    WAITING = "waiting"
    PREFILL = "prefill"
    TRANSFER = "transfer"
    DECODE = "decode"
    DONE = "done"


# fast: a member of an Enum is found three times as fast under a name of its own.
WAITING: Final = Phase.WAITING
PREFILL: Final = Phase.PREFILL
TRANSFER: Final = Phase.TRANSFER
DECODE: Final = Phase.DECODE
DONE: Final = Phase.DONE


class Finder(Protocol):
    """A prefix cache that waiting requests will be looked up in."""

    def hit(self, request: "Request") -> tuple[int, int]:
        """Return the tokens that a waiting request finds, and how many of their blocks are idle: once held, they are
        not free."""

    def missing(self, request: "Request") -> int | None:
        """Return the id of the first whole block to compute; None: all are there, or have no id."""


NO_CHAINS: Mapping[int, Sequence[int]] = {}


@mypyc_attr(allow_interpreted_subclasses=True)
class Request:
    """One live request, as policies and the engine see it.

    Its true output length is not here: no policy may know it. The engine keeps it by `row`.

    Invariant: while in PREFILL, prefilled_tokens <= prompt_tokens + emitted_tokens.
    """

    __slots__ = (
        "arrival_ps",
        "chains",
        "copies",
        "emitted_tokens",
        "finder",
        "join_step",
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

    # Set where a cohort knows its members: its step when one joined, and the stored tokens minus that step.
    join_step: int
    kv_offset: int
    # With prefix caching: how many ids of its blocks it holds, and which of these are copies of others' blocks.
    n_held_ids: int
    copies: set[int]

    # Set for routers that need it: its session, "" without one.
    session: str

    def __init__(self, row: int, arrival_ps: int, prompt_tokens: int, max_tokens: int) -> None:
        self.row = row
        """Row in the trace."""
        self.arrival_ps = arrival_ps
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        """Limit on its output: max_tokens of the client, or what the model's length leaves."""
        self.phase = WAITING
        self.prefilled_tokens = 0
        """Tokens of prompt and earlier output with computed keys and values that it holds."""
        self.finder: Finder | None = None
        """The prefix cache of its replica, while it waits there."""
        self.emitted_tokens = 0
        """Tokens produced, as of the last time it joined or left a cohort."""
        self.padding_tokens = 0
        """Dummy prompt tokens that a padded batch computes for it."""
        self.reserved_blocks = 0
        """KV blocks reserved at admission, used ones included."""
        self.n_preemptions = 0
        self.preempted_at_ps = 0
        """Instant of the last preemption; valid only if n_preemptions > 0."""
        self.priority = 0
        """A lower value is better, for policies that use it."""
        self.tenant = ""
        self.chains: Mapping[int, Sequence[int]] = NO_CHAINS
        """Ids of its blocks by block size, where a replica caches prefixes."""

    @property
    def is_new(self) -> bool:
        """It has no slot and no blocks: never admitted, or preempted since."""
        return self.phase is WAITING

    @property
    def prefill_left_tokens(self) -> int:
        """Tokens to compute before it can produce its next one: without its prefix cache hit, and after a preemption
        with its output so far."""
        left_tokens = self.prompt_tokens + self.emitted_tokens - self.prefilled_tokens
        return left_tokens if self.finder is None else left_tokens - self.finder.hit(self)[0]

    @property
    def idle_hit_blocks(self) -> int:
        """Free blocks that its prefix cache hit takes at admission."""
        return 0 if self.finder is None else self.finder.hit(self)[1]

    def __repr__(self) -> str:
        return f"Request(row={self.row}, prompt_tokens={self.prompt_tokens}, {self.phase.value})"
