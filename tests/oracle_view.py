"""Requests and views that the oracle hands to policies, with counts of its own."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from simserve.state.layer_blocks import STATE_TOKENS
from simserve.state.request import Phase, Request
from simserve.state.view import ReplicaView
from tests.oracle_layers import OracleLayers


class OracleRequest(Request):
    """A request whose derived values are counted here."""

    __slots__ = ("n_idle",)

    n_idle: int
    """Blocks of its cache hit that nobody holds."""

    @property
    def idle_hit_blocks(self) -> int:
        return getattr(self, "n_idle", 0)

    @property
    def is_new(self) -> bool:
        return self.phase == Phase.WAITING

    @property
    def prefill_left_tokens(self) -> int:
        tokens = ["prompt"] * self.prompt_tokens + ["output"] * self.emitted_tokens
        padding = max(self.prefilled_tokens - len(tokens), 0)
        return len(tokens[self.prefilled_tokens :]) - padding


@dataclass(kw_only=True)  # with slots it would hide those of a compiled view
class OracleView(ReplicaView):
    """A replica of the oracle as its scheduler sees it; blocks are listed by number."""

    idle_blocks: Callable[[Request], int]
    """Blocks without holders in the cache hit of a waiting request."""
    layers_by_number: OracleLayers

    missing: Callable[[Request], int | None]
    """The first whole block of a prefill without a copy in the cache."""

    def missing_block(self, request: Request) -> int | None:
        return self.missing(request)

    @property
    def queue(self) -> Iterable[Request]:
        return [*self.prefilling, *self.waiting]

    def blocks_for(self, n_tokens: int) -> int:
        return self.layers_by_number.most(n_tokens)

    def tokens_in(self, n_blocks: int) -> int:
        if not self.layers_by_number.kinds:
            return (n_blocks + 1) * STATE_TOKENS - 1
        n_tokens = 0
        while self.layers_by_number.filled(n_tokens + self.block_size) <= n_blocks:
            n_tokens += self.block_size
        return n_tokens

    def tokens_of_hit(self, request: Request) -> int:
        n_blocks = self.idle_blocks(request) + self.layers_by_number.n_states
        if not self.layers_by_number.kinds:
            return n_blocks * STATE_TOKENS
        n_tokens = 0
        while self.layers_by_number.filled(n_tokens) < n_blocks:
            n_tokens += self.block_size
        return n_tokens

    def blocks_to_admit(self, request: Request, n_tokens: int | None = None) -> int:
        n_new = request.prefill_left_tokens if n_tokens is None else n_tokens
        found = request.prefilled_tokens
        return self.layers_by_number.most(found + n_new, found) + self.idle_blocks(request)

    def blocks_for_chunk(self, request: Request, n_tokens: int) -> int:
        done = request.prefilled_tokens
        n_blocks = self.layers_by_number.filled(done + n_tokens) - self.layers_by_number.filled(done)
        return n_blocks + (0 if done else self.layers_by_number.n_states)
