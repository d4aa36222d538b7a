"""Link: carries keys and values between replicas, one request after another."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from simserve.engine.slowness import Slowness, Window
from simserve.tables.facts import WHOLE_PROMPTS, KvSizes
from simserve.units import to_ps


@dataclass(frozen=True)
class LinkSpec:
    """Speed of the ports of a link, and the unit of transfer."""

    token_s: float
    """Time of one token's KV through a port."""
    latency_ps: int
    """Delay of a byte; the notice that blocks are allocated takes as long."""
    is_shared: bool = False
    """All replicas share one port, rather than each having its own."""
    n_layers: int | None = None
    """KV of a chunk is sent layer by layer as it is computed, in this many layers; 1: chunk by chunk. None: whole
    prompts."""

    sizes: KvSizes = WHOLE_PROMPTS
    """What a prompt's tokens come to, where layers keep different tokens."""

    def busy_ps(self, kv_tokens: float) -> int:
        """Return how long tokens of all layers occupy a port; at least 1 ps."""
        return max(1, to_ps(kv_tokens * self.token_s))

    @property
    def notice_ps(self) -> int:
        """Time of a message between replicas; at least 1 ps."""
        return max(1, self.latency_ps)


class Port:
    """A replica's sending or receiving side: transfers in the order in which they were requested."""

    __slots__ = ("_is_own", "free_at_ps", "slowness")

    def __init__(self, slowness: Slowness | None = None) -> None:
        self.free_at_ps, self.slowness, self._is_own = 0, slowness or Slowness(), False

    def through_ps(self, busy_ps: int, now_ps: int) -> int:
        """Enqueue a transfer; return when its last byte is through."""
        free_at_ps = self.free_at_ps
        if free_at_ps < now_ps:
            free_at_ps = now_ps
        if self.slowness.windows and not self._is_own:
            self.slowness, self._is_own = self.slowness.split(), True
        slow = self.slowness
        self.free_at_ps = slow.through_ps(busy_ps, free_at_ps) if slow.windows else free_at_ps + busy_ps
        return self.free_at_ps


class Link:
    """Ports of replicas, and the transfers between them."""

    def __init__(self, spec: LinkSpec) -> None:
        self.spec = spec
        self._slowness, self._is_ever_slow = defaultdict[int, Slowness](Slowness), False
        self._shared = (Port(self._slowness[0]),)
        self._busy_ps: dict[float, int] = {}
        """Times of transfers by their tokens, as far as they were needed."""

    def weaken(self, pool: int, windows: Iterator[Window]) -> None:
        """Let the ports of a pool, or the one that all replicas share, carry less in windows that are to come."""
        self._is_ever_slow = True
        self._slowness[0 if self.spec.is_shared else pool].add(windows)

    def ports(self, n_stages: int = 1, pool: int = 0) -> tuple[Port, ...]:
        """Return new ports, one for the GPUs of each pipeline stage, or the one that all replicas share.

        Each stage has an equal part of the keys and values, and of the port's speed.
        """
        return self._shared if self.spec.is_shared else tuple(Port(self._slowness[pool]) for _ in range(n_stages))

    def arrival_ps(self, kv_tokens: float, ports: Iterable[Port], now_ps: int) -> int:
        """Return when all KV has arrived: through the last of the ports, which work in parallel, plus the latency.

        ports: different ones. No port idles while a transfer waits for it.
        """
        busy_ps, last_ps = self._busy_ps.get(kv_tokens), now_ps
        if busy_ps is None:
            busy_ps = self._busy_ps[kv_tokens] = self.spec.busy_ps(kv_tokens)
        if self._is_ever_slow:
            return max(port.through_ps(busy_ps, now_ps) for port in ports) + self.spec.latency_ps
        for port in ports:
            free_at_ps = port.free_at_ps  # fast: through_ps, inlined
            if free_at_ps < now_ps:
                free_at_ps = now_ps
            port.free_at_ps = through_ps = free_at_ps + busy_ps
            if through_ps > last_ps:
                last_ps = through_ps
        return last_ps + self.spec.latency_ps

    def streamed_arrival_ps(
        self, kv_tokens: float, ports: tuple[Port, Port], step: tuple[int, int], n_stages: int = 1
    ) -> int:
        """Return when all KV of a chunk, computed layer by layer in one of n_stages from start to end, has arrived.

        ports: those of the stage and of the receiver; the receiver carries each layer n_stages times as fast. A layer
        is sent once it is computed and the previous one is through. Layers are equally long and ready at equal
        intervals, so the port either keeps up, waiting only for the last one, or falls behind from the first on.
        """
        start_ps, end_ps = step
        own, other = ports
        n_layers = -(-(self.spec.n_layers or 1) // n_stages)
        first_ps = end_ps - (n_layers - 1) * ((end_ps - start_ps) // n_layers)
        at_ps = 0
        for port, n_parts in {own: n_layers, other: n_layers * n_stages}.items():
            layer_ps = -(-self.spec.busy_ps(kv_tokens) // n_parts)
            if not port.slowness.windows:
                port.through_ps((n_layers - 1) * layer_ps, first_ps)
            else:  # it may keep up with some layers and fall behind with others
                for layer in range(n_layers - 1):
                    port.through_ps(layer_ps, first_ps + layer * ((end_ps - start_ps) // n_layers))
            at_ps = max(at_ps, port.through_ps(layer_ps, end_ps))
        return at_ps + self.spec.latency_ps
