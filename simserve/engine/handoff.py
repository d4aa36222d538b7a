"""Handoff: which decode replica takes a prompt, and when its keys and values have crossed the link."""

from collections.abc import Callable
from dataclasses import dataclass

from simserve.engine.link import Link, LinkSpec, Port
from simserve.engine.replica import Replica
from simserve.routers.base import Router
from simserve.splitters.base import Splitter
from simserve.state.request import Request


@dataclass(frozen=True)
class Disaggregation:
    """How prefill and decode replicas are connected."""

    router: Router
    """Picks the decode replica of a request."""
    link: LinkSpec
    is_pushed: bool = False
    """Decode replicas allocate blocks before the prompt is computed, and KV is pushed to them."""
    splitter: Splitter | None = None
    """Decides which requests are prefilled remotely; None: all."""

    @property
    def keeps(self) -> bool:
        """Prefill replicas decode some requests themselves."""
        return self.splitter is not None and self.splitter.keeps


PickReceiver = Callable[[Request], Replica | None]
"""Returns the decode replica of a request; None: none is ready."""


class Handoff:
    """The router of decode replicas, and the ports of all that keys and values leave and reach.

    Prompts are fetched by their decode replicas (vLLM V1, NixlConnector), or pushed to these once they have blocks:
    whole, or chunk by chunk as they are computed. Sources: SGLang, disaggregation/decode.py and prefill.py (decode
    allocates first, the prefill waits for it, chunks are sent as they are computed); Splitwise, ISCA '24, and Mooncake,
    FAST '25 (layer by layer).
    """

    def __init__(self, how: Disaggregation, link: Link, pick: PickReceiver, *, has_roles: bool = True) -> None:
        """Without roles, replicas hand over only what they have not finished when they leave."""
        self.has_roles = has_roles
        self.router, self.pick, self.is_pushed = how.router, pick, how.is_pushed
        """The router of decode replicas, what asks it, and whether these give blocks before a prompt is computed."""
        self.weaken = link.weaken
        self._link = link
        self._sends_all = link.spec.sizes.is_plain
        """All layers keep all tokens, so no size needs to be computed."""
        self._ports: dict[int, tuple[Port, ...]] = {}
        """Ports by the id of the first lane on the same GPUs."""
        self._paths: dict[tuple[int, int], tuple[Port, ...]] = {}
        """Ports on the way from a prefill to a decode replica, as far as they were needed."""

    @property
    def streams(self) -> bool:
        """Chunks are sent as they are computed, rather than whole prompts."""
        return self.is_pushed and self._link.spec.n_layers is not None

    @property
    def notice_ps(self) -> int:
        """Time of a message between replicas."""
        return self._link.spec.notice_ps

    def connect(self, replica: Replica, pool: int, *, sends: bool) -> None:
        """Give a replica of a pool its ports: a prefill replica has one for each stage."""
        if replica.id == replica.stepping.first_lane:
            self._ports[replica.id] = self._link.ports(replica.stepping.n_stages if sends else 1, pool)

    def _ports_of(self, replica: Replica) -> tuple[Port, ...]:
        return self._ports[replica.stepping.first_lane]

    def chunk_tokens(self, prompt_tokens: int, first: int, end: int) -> float:
        """Return what the tokens [first, end) of a prompt come to, in tokens of all layers."""
        kv_tokens: float = self._link.spec.sizes.sent_tokens(first, end, prompt_tokens)
        return kv_tokens

    def arrival_ps(self, prompt_tokens: int, first: int, sender: Replica, receiver: Replica, now_ps: int) -> int:
        """Return when a prompt's tokens from the first on, that are sent now from all stages, have arrived."""
        kv_tokens = float(prompt_tokens - first)
        if not self._sends_all:
            kv_tokens = self.chunk_tokens(prompt_tokens, first, prompt_tokens)
        path = self._paths.get((sender.id, receiver.id))
        if path is None:
            ports = dict.fromkeys((*self._ports_of(sender), *self._ports_of(receiver)))
            path = self._paths[sender.id, receiver.id] = tuple(ports)
        return self._link.arrival_ps(kv_tokens, path, now_ps)

    def staged_ps(self, kv_tokens: float, stage: int, sender: Replica, receiver: Replica, step: tuple[int, int]) -> int:
        """Return when the layers of one stage of a chunk, computed from start to end there, have arrived."""
        ports = self._ports_of(sender)
        one, (other,) = ports[stage % len(ports)], self._ports_of(receiver)
        return self._link.streamed_arrival_ps(kv_tokens, (one, other), step, sender.stepping.n_stages)
