"""Answer of a dry run: of each pool the memory ledger of its GPUs, and the cost of typical steps."""

from dataclasses import dataclass
from typing import Any

from simserve.scenario.model_sizes import KvGroupAnswer


@dataclass(frozen=True)
class TypicalStep:
    """The cost of one step; duration_s is the sum of its parts."""

    phase: str
    """decode: one token of each of n_requests; prefill: the n_tokens of one whole prompt."""
    n_requests: int
    n_tokens: int
    context_tokens: int
    """Keys that each request attends, at the end of a prefill."""
    duration_s: float
    tokens_s: float
    """The part that depends on the number of tokens alone: matrix products, launches, all-reduce, the host."""
    attention_s: float
    sampling_s: float
    """The LM head, and the host's time per request."""
    tokens_per_s: float
    """Tokens delivered; with speculation, one per request plus the expected accepted proposals."""
    drafting_s: float = 0.0
    """Proposing tokens."""
    host_wait_s: float = 0.0
    """What the step waits for the host, where planning ahead hides its work behind the kernels and it takes longer."""
    exchange_s: float = 0.0
    """The part of tokens_s that moves tokens to their experts and outputs back, between ranks that share experts."""
    context_s: float = 0.0
    """The part of attention_s in which GPUs that divide contexts or prompts exchange queries, keys and outputs."""


@dataclass(frozen=True)
class ExchangeAnswer:
    """Copies of a token that cross between the GPUs of a replica with experts over several nodes, in each layer."""

    n_nodes: int
    experts_per_gpu: int
    """Copies included."""
    kernels: str
    """normal: one copy to each node, forwarded there; low_latency: one to each expert; by_batch: by the tokens;
    gather: an all-gather to all GPUs, and a reduce-scatter."""
    far_nodes: float
    """Other nodes with one of a token's experts, which a normal exchange sends it to."""
    gpus: float
    """GPUs with one of its experts, which it is forwarded to."""
    far_experts: float
    """Its experts on other nodes, which a low-latency exchange sends it to."""
    near_experts: float
    """Its experts on other GPUs of its node."""
    low_latency_tokens: int
    """Most tokens of a GPU for which by_batch takes low-latency kernels."""
    bytes_per_s: float
    """Link of a GPU to other nodes, one direction."""
    latency_s: float


@dataclass(frozen=True)
class ReservationAnswer:
    """What requests reserve and use, where reservations will keep others waiting; keys as in summary.json."""

    at_once: int
    """Requests that a scheduler runs before its blocks are reserved."""
    reserved_tokens: int
    """Median."""
    used_tokens: int
    """Mean."""
    longest_output_tokens: int
    max_tokens: int | None
    """Median; None: no request has a limit, so the model's holds."""
    without: str | None
    """Setting of the scheduler under which it reserves nothing."""


@dataclass(frozen=True)
class PoolAnswer:
    """One pool: its model, GPUs and engine, the memory ledger of each GPU, and the cost of its steps."""

    name: str
    role: str
    n_replicas: int
    gpus_per_replica: int
    ranks_per_replica: int
    """Schedulers with their own KV blocks: data-parallel ranks times the lanes of a pipeline."""
    balance_iters: tuple[int, int] | None
    """Steps for which ranks hold prompts back: while some rank has none, and then to batch more; None: not at all."""
    model: str
    gpu: str
    engine: str
    engine_version: str
    constants_of: str
    """Version in the catalog that the engine's constants are of: the nearest that it has."""
    fitted_to: str | None
    """Version of the servers that host times were fitted to, before what changed up to constants_of; None: assumed."""
    plans_ahead: bool
    """Whether a step is planned while the one before it runs."""
    hides_host: bool
    """Whether the host's work for it hides behind the kernels of that one."""
    calibrated: bool
    calibration: str | None
    """Card and engine version that the kernels were timed on; None: a plain roofline."""
    fitted_runs: str | None
    """The serving runs that factors on kernels of another card were fitted to, and these factors; None: none."""
    experts: str | None
    """The kernels of experts, where these were timed with another dtype; else None."""
    all_reduces: str | None
    """Where the times of all-reduces between nodes are from; None without any."""
    server_error_sd: dict[str, float]
    """Spread of mean latencies between servers that prediction intervals allow for, where nothing was fitted to them:
    standard deviations of logarithms."""
    wide_intervals: str | None
    """Why, in a sentence; None where that is nothing."""
    accuracy: str
    """How close predictions come to nine of ten such servers, and why: their spread beyond errors of kernels."""
    slow_dtypes: tuple[str, ...]
    """Typical steps that take longer in the dtype of weights or KV cache than in bf16, a sentence each."""
    memory_bytes: dict[str, float]
    """Memory of one GPU: its parts and the total."""
    n_blocks: int
    """KV blocks of a rank."""
    kv_tokens: int | None
    """Tokens of the longest request that they hold, whatever the model allows; None: any number."""
    fills_blocks: bool
    """Whether the tokens of a request fill blocks; else it has a block for its state, whatever its length."""
    kv_verified: bool
    max_model_len: int
    kv_groups: tuple[KvGroupAnswer, ...]
    """What a request holds by kind of layer, as vLLM's hybrid manager counts it."""
    steps: tuple[TypicalStep, ...]
    block_tokens: int
    """Tokens of a KV block: the engine's block_size, raised where a state would not fit."""
    host_tokens: int
    """Tokens that host memory and its disk hold; 0 without."""
    disk_tokens: int
    host_scope: str
    """Whether they do for each scheduler, `replica`, or for all of the `pool` together."""
    host_token_s: float
    """Copy time of one token's keys and values between GPU and host, one way."""
    tokens_per_step: float = 1.0
    """Expected tokens per step of a decoding request."""
    exchange: ExchangeAnswer | None = None
    """None where experts are not spread over several nodes."""
    reservation: ReservationAnswer | None = None
    """None where the policy reserves nothing, or enough requests fit at once."""
    start: str | None = None
    """How long a replica takes to start, by phases; None where none does."""
    step_notes: tuple[str, ...] = ()
    """What steps take by options of the engine that are off by default, a line each."""


@dataclass(frozen=True)
class Answer:
    """The answer of a dry run."""

    name: str
    digest: str
    pools: tuple[PoolAnswer, ...]
    scenario: dict[str, Any]
    """The resolved scenario, every default filled in."""
    origins: dict[str, str]
    """The origin of each value by dotted path; values not listed were written in the file."""
    one_process: str | None
    """Why one process serves all replicas of a run; None: those of a long run have processes of their own."""
