"""Link: what carries keys and values from replica to replica, one request after another."""

from dataclasses import dataclass

from simserve.units import to_ps


@dataclass(frozen=True)
class LinkSpec:
    """How fast the ports of a link are, and what is sent through them at once."""

    token_s: float
    """Keys and values of one token through a port."""
    latency_ps: int
    """From a byte sent until it is there; word that there is room takes as long."""
    is_shared: bool = False
    """All replicas share one port, rather than each having its own."""
    n_layers: int | None = None
    """Keys and values of a chunk are sent layer by layer as they are computed, so many layers; 1: chunk by chunk.
    None: a prompt's are sent whole."""

    def busy_ps(self, kv_tokens: int) -> int:
        """How long the keys and values of a request take a port; never nothing."""
        return max(1, to_ps(kv_tokens * self.token_s))

    @property
    def word_ps(self) -> int:
        """How long a replica takes to tell another something; never nothing."""
        return max(1, self.latency_ps)


class Port:
    """Where a replica sends, or receives: byte after byte, in the order in which transfers were asked for."""

    __slots__ = ("free_at_ps",)

    def __init__(self) -> None:
        self.free_at_ps = 0

    def through_ps(self, busy_ps: int, now_ps: int) -> int:
        """Take a transfer on; returns when its last byte is through."""
        self.free_at_ps = max(now_ps, self.free_at_ps) + busy_ps
        return self.free_at_ps


class Link:
    """Ports of replicas, and what passes between two of them."""

    def __init__(self, spec: LinkSpec) -> None:
        self.spec = spec
        self.ports: list[Port] = []

    def port(self) -> Port:
        """A port of its own, unless all share one."""
        if not self.ports or not self.spec.is_shared:
            self.ports.append(Port())
        return self.ports[-1]

    def arrival_ps(self, kv_tokens: int, ports: tuple[Port, Port], now_ps: int) -> int:
        """When all of it is there: through the later of the two ports, which work at it side by side, and the latency.

        So no port stands idle while anything waits for it, as where many transfers share it.
        """
        busy_ps = self.spec.busy_ps(kv_tokens)
        one, other = ports
        at_ps = one.through_ps(busy_ps, now_ps)
        if other is not one:
            at_ps = max(at_ps, other.through_ps(busy_ps, now_ps))
        return at_ps + self.spec.latency_ps

    def follow_ps(self, kv_tokens: int, ports: tuple[Port, Port], step: tuple[int, int]) -> int:
        """When all of a chunk is there that was computed in a step, (start, end): each layer in an equal part of it.

        A layer is sent once it is computed and the one before it is through. As layers are ready at equal distances
        and are equally long, the port keeps up and waits for the last one alone, or falls behind from the first on.
        """
        start_ps, end_ps = step
        n_layers = self.spec.n_layers or 1
        layer_ps = -(-self.spec.busy_ps(kv_tokens) // n_layers)
        first_ps = end_ps - (n_layers - 1) * ((end_ps - start_ps) // n_layers)
        at_ps = 0
        for port in dict.fromkeys(ports):
            port.through_ps((n_layers - 1) * layer_ps, first_ps)
            at_ps = max(at_ps, port.through_ps(layer_ps, end_ps))
        return at_ps + self.spec.latency_ps
