"""What policies see of a replica. They read it and return a value; they change nothing."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from simserve.state.request import Request


@dataclass(slots=True)
class ReplicaView:
    """A replica between two steps, as its scheduler sees it."""

    waiting: Collection[Request]
    """Requests that hold nothing, in the order of their arrival, preempted ones first, or last if the policy says so;
    or in the order of the policy's own `queue`."""
    prefilling: Sequence[Request]
    """Requests whose prompt is half done, in the order of their admission."""
    running: Collection[Request]
    """All that hold a seat, in the order of their admission."""
    total_blocks: int
    block_size: int
    max_model_len: int
    now_ps: int = 0
    n_decoding: int = 0
    n_running: int = 0
    """Seats taken."""
    free_blocks: int = 0
    """Blocks left after the decoding requests have taken theirs for the next step."""
    just_preempted: bool = False
    """Blocks ran out at this very boundary and somebody was preempted."""
    decode_tokens: int = 1
    """Of a step's tokens, what each decoding request takes: one, and those that are proposed for it."""

    @property
    def queue(self) -> Iterable[Request]:
        """All that want prefill: the half-done first, then the waiting."""
        return chain(self.prefilling, self.waiting) if self.prefilling else self.waiting

    def blocks_for(self, n_tokens: int) -> int:
        """Blocks that n_tokens of one request fill."""
        return -(-n_tokens // self.block_size)

    def blocks_to_admit(self, request: Request, n_tokens: int | None = None) -> int:
        """Blocks that the first n_tokens of a new request take from those that are free, by default its whole prefill:
        what it fills, and what it finds in the cache and nobody else holds."""
        left_tokens = request.prefill_left_tokens if n_tokens is None else n_tokens
        return -(-left_tokens // self.block_size) + request.idle_hit_blocks

    def blocks_for_chunk(self, request: Request, n_tokens: int) -> int:
        """Blocks that n_tokens more of its prefill begin."""
        done = request.prefilled_tokens
        return -(-(done + n_tokens) // self.block_size) - -(-done // self.block_size)


class LoadView(Protocol):
    """A replica as a router sees it: true at this instant, mid-step too, or as it was at the last refresh."""

    @property
    def n_outstanding(self) -> int:
        """Requests sent there that have not ended."""

    @property
    def n_waiting(self) -> int:
        """Of these, those that no step has begun with, or that were preempted."""

    @property
    def total_blocks(self) -> int:
        """KV blocks it has."""

    @property
    def block_size(self) -> int:
        """Tokens of a KV block."""

    @property
    def block_tokens(self) -> int | None:
        """Tokens that an id of `request.chain` stands for; None: it keeps no prefixes, and a request may have none."""

    def held_blocks(self) -> int:
        """KV blocks that hold tokens or are set aside, those of the step in flight included."""

    def found_tokens(self, request: Request) -> int:
        """Tokens of its prompt that the replica's prefix cache has now; 0 without one."""
