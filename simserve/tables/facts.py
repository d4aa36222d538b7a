"""Facts: what the metrics need beyond the tables of a run."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from simserve.tables.columns import Flags
from simserve.tables.why import MemberFacts as MemberFacts


@dataclass(frozen=True)
class WorkFacts:
    """The work of a rank's model and the peaks of its GPUs: the two sides of MFU and MBU."""

    flop_per_token: float
    flop_per_pair: float
    flop_per_sampled: float
    weight_bytes_per_step: float
    """Weights that every step reads; of experts, those of one token."""
    kv_bytes_per_token: float
    peak_flop_per_s: float
    hbm_bytes_per_s: float
    state_bytes_per_request: float = 0.0
    """States that a step reads and writes for a request that decodes."""


@dataclass(frozen=True)
class SpeculationFacts:
    """Speculative decoding of a pool."""

    kind: str
    tokens: int
    """Tokens proposed for each request in a step."""
    acceptance: tuple[float, ...]
    """Acceptance rate of each position."""
    model: str | None
    draft: WorkFacts | None
    """Work of each of the `tokens` passes of the draft a step; None where nothing is computed."""


@dataclass(frozen=True)
class ReservingFacts:
    """A scheduler that reserves the blocks of a request's longest possible answer, or admits by counting on them."""

    slots: int | None
    """Most running requests; None: no limit."""
    longest_tokens: int
    """Most tokens of a request: what one without max_tokens reserves."""
    without: str | None
    """Setting of the scheduler under which it reserves nothing, or less; None: it has none."""
    most_output_tokens: int | None = None
    """Most output tokens that it counts on for a request; None: it reserves the blocks of all."""


@dataclass(frozen=True)
class PoolFacts:
    """A pool: replicas that are alike."""

    name: str
    role: str
    n_replicas: int
    gpus_per_replica: int
    ranks_per_replica: int
    """Schedulers with KV blocks of their own, replicas in the tables: data-parallel ranks, and a pipeline's lanes."""
    gpu: str
    model: str
    engine: str
    scheduler: str
    slots_argument: str | None
    """Argument of the scheduler for the most running requests."""
    budget_argument: str | None
    """Argument of the scheduler for the most tokens of a step."""
    calibrated: bool
    calibration: str | None
    """Card and engine version of its kernels, `h100-sxm/vllm 0.24.0`; None: a plain roofline."""
    kv_verified: bool
    n_blocks: int
    """Blocks of a rank."""
    block_size: int
    streamed: bool
    """False: an answer leaves whole at finish_s, so first_token_s = finish_s, TPOT is 0 and all gaps are 0."""
    price_per_gpu_hour_usd: float
    tdp_w: float
    work: WorkFacts
    speculation: SpeculationFacts | None = None
    blocks_per_tokens: int | float = 1
    """Blocks that all layers together take for the same block_size tokens."""
    engine_version: str = ""
    """The engine's version, or its default; empty in earlier runs."""
    reserving: ReservingFacts | None = None
    """None: blocks are taken as tokens come."""


@dataclass(frozen=True)
class KvSizes:
    """What crosses the link of a prompt, where layers keep different tokens: in tokens of all layers that attend."""

    n_layers: int = 1
    """Layers that attend; 0: all states together count as a token."""
    windows: tuple[tuple[int, int, bool], ...] = ()
    """For each group of them with a window: layers, tokens of the window, and whether it is a chunk."""
    state_tokens: int = 0
    """Size of a request's states, in tokens of one layer."""

    @property
    def is_plain(self) -> bool:
        """Whole prompts are sent: all layers keep all tokens."""
        return not self.windows and not self.state_tokens

    def sent_tokens(self, first: Any, end: Any, prompt_tokens: Any) -> Any:
        """Return the tokens of all layers that are as large as what is sent of the tokens [first, end) of a prompt: not
        what windows keep no longer at its end, and with its last token the states. Numbers, or arrays of them."""
        if self.is_plain:
            return end - first
        sent = self.n_layers * (end - first) + self.state_tokens * (end == prompt_tokens)
        for n_layers, size, is_chunk in self.windows:
            kept = prompt_tokens // size * size if is_chunk else prompt_tokens - size + 1
            sent = sent - n_layers * np.clip(kept - first, 0, end - first)
        return sent / (self.n_layers or 1)


WHOLE_PROMPTS = KvSizes()  # all layers keep all tokens


@dataclass(frozen=True)
class LinkFacts:
    """Link that carries keys and values from prefill to decode replicas: `cluster.kv_link`, and the sizes of these."""

    bytes_per_s: float
    """Bandwidth of a port."""
    latency_s: float
    shared: bool
    kv_bytes_per_token: float
    """Size of a token's keys and values in all layers that attend; of the states where none does."""
    how: str = "pull"
    """push: the decode side reserves room before the prefill, so that this wait is part of queue_s."""
    transfer: str = "whole"
    """by_chunk or by_layer: sent while the prompt is computed."""
    sizes: KvSizes = WHOLE_PROMPTS


@dataclass(frozen=True)
class HostFacts:
    """Copies of all replicas to and from host memory and disk in a run: swapped_out = swapped_in + dropped + left."""

    swapped_out_bytes: float
    """Copied out for preempted requests."""
    swapped_in_bytes: float
    """Copied back for resumed requests."""
    dropped_bytes: float
    """Not copied back, as they were still on the GPU."""
    left_bytes: float
    """Still out when the run ended."""
    written_bytes: float
    """Prefixes from GPU to host."""
    read_bytes: float
    """Prefixes to the GPU."""
    disk_written_bytes: float
    disk_read_bytes: float
    wait_s: float
    """Time that steps waited for copies, summed over replicas."""
    read_s: float = 0.0
    """Time that requests waited for their prefixes while others went on, summed."""


@dataclass(frozen=True)
class BenchFacts:
    """What `vllm bench serve` would be told of the load; None where it has no such thing. A rate of inf: at once."""

    request_rate: float | Literal["inf"] | None = None
    burstiness: float | None = None
    max_concurrency: int | None = None


@dataclass(frozen=True)
class RunFacts:
    """Facts of one run."""

    name: str
    seed: int
    digest: str
    pools: tuple[PoolFacts, ...]
    replica_pool: tuple[int, ...]
    """The pool of each rank."""
    peak_kv_blocks: tuple[int, ...]
    """The most KV blocks that each rank ever held."""
    slo: dict[str, float]
    measure: dict[str, Any]
    last_arrival_s: float
    end_s: float
    wall_s: float
    notes: tuple[str, ...] = ()
    """Notes of the load's reader or generator for the user."""
    warnings: tuple[str, ...] = ()
    link: LinkFacts | None = None
    host_tier: HostFacts | None = None
    slo_classes: dict[str, dict[str, float]] = field(default_factory=dict)
    """Targets of requests of a named class; all others have those of `slo`."""
    drafting_s: tuple[float, ...] = ()
    """Time that each rank spent on proposals."""
    respond_s: float = 0.0
    """From the end of a step until the client has its token."""
    members: tuple[MemberFacts, ...] = ()
    """When each rank was in the fleet; empty: all from start to end."""
    bench: BenchFacts | None = None
    changes: bool = False
    """Replicas may come and go."""

    @property
    def pools_by_replica(self) -> list[PoolFacts]:
        """The facts of each rank's pool."""
        return [self.pools[pool] for pool in self.replica_pool]

    def in_pools(self, replica: Any, is_one: Callable[[PoolFacts], object]) -> Flags:
        """Return which rows are of replicas in some pools, `(n_rows,)`; rows without a replica, -1, are not."""
        flags: Flags = np.array([*(bool(is_one(pool)) for pool in self.pools_by_replica), False])[replica]
        return flags

    @property
    def is_consistent(self) -> bool:
        """Return whether each rank has a pool that there is, a peak and, where there are any, instants."""
        n_ranks = len(self.replica_pool)
        has_lengths = len(self.peak_kv_blocks) == n_ranks and len(self.members) in (0, n_ranks)
        return has_lengths and all(0 <= pool < len(self.pools) for pool in self.replica_pool)


def facts_to_dict(facts: RunFacts) -> dict[str, Any]:
    """Return all facts but the wall time, which differs from run to run, for JSON."""
    return {name: value for name, value in asdict(facts).items() if name != "wall_s"}


def facts_from_dict(given: dict[str, Any], wall_s: float) -> RunFacts:
    """Reverse `facts_to_dict`; JSON's lists become tuples again. Raises ValueError for facts of other types."""
    from pydantic import TypeAdapter  # late: only folders that are read back need it

    return TypeAdapter(RunFacts).validate_python({**given, "wall_s": wall_s})
