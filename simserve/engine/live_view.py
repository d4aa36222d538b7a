"""LiveView: a replica as routers and admission see it at this instant."""

from collections.abc import Callable, Sequence, Sized

from simserve.engine.alarm import Clock
from simserve.engine.in_flight import InFlight
from simserve.engine.memory import Memory
from simserve.state.request import Request


class LiveView:
    """What a replica has to do and what it holds, the step in flight included."""

    def __init__(self, index: int, memory: Memory, in_flight: InFlight, clock: Clock) -> None:
        self.id = index
        self._memory, self._pool, self._in_flight, self._clock = memory, memory.pool, in_flight, clock
        self.total_blocks, self.block_size = memory.pool.total_blocks, memory.pool.block_size
        self.block_tokens = self.block_size if memory.caches else None
        self.n_outstanding = 0
        self.n_arrived = 0
        """Requests that it was sent so far."""
        self.prompt_tokens = 0
        """Tokens of their prompts, computed here or not."""
        self.on_fewer: Callable[[int, int], None] | None = None
        """Called with its id when fewer requests are outstanding, and their number, if its router asks for that."""
        self.queues: Sequence[Sized] = ()
        """Requests without a slot or blocks."""
        self.count_uncomputed: Callable[[], int] = int
        """Counts the prefill tokens left to compute."""
        self.count_waiting: Callable[[], int] = int
        """Counts the prompt tokens of the requests without a slot or blocks; O(queue)."""

    def count_out(self) -> None:
        """Count a request out that is no longer outstanding here."""
        self.n_outstanding -= 1
        if self.on_fewer is not None:
            self.on_fewer(self.id, self.n_outstanding)

    @property
    def n_waiting(self) -> int:
        """Requests without a slot or blocks."""
        return sum(map(len, self.queues))

    def uncomputed_tokens(self) -> int:
        """Return the prefill tokens left to compute after the committed steps; O(queue)."""
        return self.count_uncomputed()

    def blocks_for(self, n_tokens: int) -> int:
        """Return the most blocks that a request of n_tokens ever holds here."""
        return self._pool.most_blocks(n_tokens)

    def held_blocks(self) -> int:
        """Return the KV blocks used or reserved at this instant, including those of the step in flight."""
        return self._in_flight.held_blocks(self._clock.now_ps)

    def found_tokens(self, request: Request) -> int:
        """Return the prompt tokens in the prefix cache at this instant."""
        if self.block_tokens is None:
            return 0
        self._in_flight.reclaim(self._clock.now_ps)
        return self._memory.found_tokens(request)
