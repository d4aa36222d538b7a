"""Explain a scenario before it runs: the memory ledger of each GPU, and the cost of typical steps."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simserve.cost.calibrated import Calibrated
from simserve.cost.calibration import launch_factor
from simserve.cost.comm import LOW_LATENCY_TOKENS
from simserve.cost.memory import HostTierSpec, MemoryLedger
from simserve.cost.model import StepShape, shape_ps
from simserve.cost.speculative import SpeculativeCost
from simserve.cost.step import StepCost
from simserve.scenario import PoolSetup, Scenario
from simserve.scenario.cost_warnings import of_nodes, wide_intervals
from simserve.scenario.server_errors import server_errors
from simserve.scenario.typical_steps import decodes, slow_dtypes, whole_prompts
from simserve.units import to_s
from simserve.workload.load import Load, offered_load
from simserve.workload.trace import MOST_TOKENS


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


@dataclass(frozen=True)
class KvGroupAnswer:
    """What the layers of one kind keep of a request, on one GPU."""

    kind: str
    n_layers: int
    window: int | None
    """Tokens of a window or chunk."""
    bytes_per_token: float
    bytes_per_request: float
    """Bytes of states of fixed size."""
    longest_bytes: float
    """Most bytes of a request of max_model_len."""
    is_draft: bool = False
    """Whether they are the layers of a draft model."""


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
    slow_dtypes: tuple[str, ...]
    """Typical steps that take longer in the dtype of weights or KV cache than in bf16, a sentence each."""
    memory_bytes: dict[str, float]
    """Memory of one GPU: its parts and the total."""
    n_blocks: int
    """KV blocks of a rank."""
    kv_tokens: int
    """Tokens of the longest request that they hold, whatever the model allows."""
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


def explain(scenario: Scenario) -> Answer:
    """Dry-run a scenario without simulating it. Raises TraceError and PolicyError for a load that a run refuses."""
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    pools = tuple(_with_reservation(_pool(setup), setup, load) for setup in scenario.setups)
    return Answer(
        scenario.name, scenario.digest, pools, scenario.to_dict(), dict(scenario.origins), scenario.why_one_process()
    )


def _pool(setup: PoolSetup) -> PoolAnswer:
    balance = setup.parallel.balance
    return PoolAnswer(
        name=setup.name,
        role=setup.role,
        n_replicas=setup.n_replicas,
        gpus_per_replica=setup.gpus_per_replica,
        ranks_per_replica=setup.ranks_per_replica,
        balance_iters=None if balance is None else (balance.timeout_iters, balance.batching_wait_iters),
        model=setup.model.name,
        gpu=setup.gpu.name,
        engine=setup.engine.name,
        engine_version=setup.engine.version,
        constants_of=setup.engine.constants_of,
        fitted_to=setup.engine.fitted_to if setup.has_fitted_host else None,
        plans_ahead=setup.plans_ahead,
        hides_host=setup.hides_host,
        calibrated=setup.calibrated,
        calibration=setup.calibration_name,
        fitted_runs=_fitted_runs(setup),
        experts=_experts(setup),
        all_reduces=of_nodes(setup),
        server_error_sd=server_errors().of((setup,)),
        wide_intervals=wide_intervals(setup),
        slow_dtypes=slow_dtypes(setup),
        memory_bytes=_memory_bytes(setup.ledger),
        n_blocks=setup.ledger.lane_blocks,
        kv_tokens=setup.ledger.lane_tokens,
        kv_verified=setup.ledger.verified,
        max_model_len=setup.max_model_len,
        kv_groups=tuple(_kv_groups(setup)),
        steps=tuple(_typical_steps(setup)),
        block_tokens=setup.ledger.block_size,
        **_host_tier(setup),
        tokens_per_step=1.0 if setup.speculation is None else setup.speculation.tokens_per_step,
        exchange=_exchange(setup.step_cost()),
    )


def _with_reservation(pool: PoolAnswer, setup: PoolSetup, load: Load) -> PoolAnswer:
    """Add what requests reserve, where more of them would at times run at once than fit."""
    policy, trace, blocks = setup.scheduler, load.trace, setup.ledger.layout.blocks
    if not policy.reserves:
        return pool
    most_tokens = setup.max_model_len - trace.prompt_tokens
    limits = most_tokens if trace.max_tokens is None else np.minimum(trace.max_tokens, most_tokens)
    outputs, reserved_tokens = np.minimum(trace.output_tokens, limits), int(np.median(trace.prompt_tokens + limits))
    used_tokens = round(float((trace.prompt_tokens + outputs).mean()))
    at_once = setup.ledger.lane_blocks // blocks.most(reserved_tokens)
    is_wasted = 2 * used_tokens < reserved_tokens and at_once < (policy.max_running or math.inf)
    if not is_wasted or _most_running(pool, load, float(outputs.mean())) <= at_once:
        return pool
    given: Any = [] if trace.max_tokens is None else trace.max_tokens[trace.max_tokens < MOST_TOKENS]
    limit = int(np.median(given)) if len(given) else None
    sizes = at_once, reserved_tokens, used_tokens, int(outputs.max())
    return replace(pool, reservation=ReservationAnswer(*sizes, limit, policy.without_reserving))


def _most_running(pool: PoolAnswer, load: Load, output_tokens: float) -> float:
    """Return how many requests a scheduler would run at once, now and then, if none waited: the clients of a closed
    loop; else by Little's law, from the shortest step, with three standard deviations of Poisson arrivals."""
    arrival_s, n_schedulers = load.trace.arrival_s, pool.n_replicas * pool.ranks_per_replica
    span_s = float(np.ptp(arrival_s))
    n = len(arrival_s) if load.concurrency is None else load.concurrency
    if load.concurrency is None and span_s:
        step_s = min((step.duration_s for step in pool.steps if step.phase == "decode"), default=0.0)
        mean = n / span_s * output_tokens * step_s / pool.tokens_per_step / n_schedulers
        return min(n / n_schedulers, mean + 3 * math.sqrt(mean))
    return n / n_schedulers


def _fitted_runs(setup: PoolSetup) -> str | None:
    calibration = setup.calibration
    if calibration is None or calibration.runs is None:
        return None
    runs = calibration.runs
    factors = {name: factor for name, factor in runs.fitted.items() if not name.startswith("launches")}
    factors["launches"] = launch_factor(calibration.launches, setup.engine.version)
    times = ", ".join(f"{name} x {factor:.3g}" for name, factor in factors.items())
    on = f"{runs.n_rows} serving runs of {', '.join(runs.models)} on {calibration.gpu}"
    return f"those of {runs.kernels_of.replace('/', ' under ', 1)}, fitted to {on}: {times}"


def _experts(setup: PoolSetup) -> str | None:
    if setup.model.experts is None or setup.calibration is None:
        return None
    kernels, dtype = Calibrated(setup.gpu, setup.calibration, setup.engine), setup.weight_dtype
    timed = kernels.experts_dtype(dtype)
    return None if timed == dtype else f"{dtype} by {setup.engine.moe_backend}, timed as {timed}"


def _exchange(cost: StepCost) -> ExchangeAnswer | None:
    exchange = cost.exchange
    if exchange is None:
        return None
    return ExchangeAnswer(
        n_nodes=exchange.n_nodes,
        experts_per_gpu=cost.shard.n_experts,
        kernels=exchange.kernels,
        far_nodes=exchange.far_nodes,
        gpus=exchange.gpus,
        far_experts=exchange.far_experts,
        near_experts=exchange.near_experts,
        low_latency_tokens=LOW_LATENCY_TOKENS,
        bytes_per_s=exchange.link.bytes_per_s,
        latency_s=exchange.link.latency_s,
    )


def _kv_groups(setup: PoolSetup) -> Iterator[KvGroupAnswer]:
    layout = setup.ledger.layout
    for part, n_bytes in zip(layout.parts, layout.bytes_by_group(setup.max_model_len), strict=True):
        group = part.group
        sizes = part.bytes_per_token, part.bytes_per_request, n_bytes
        yield KvGroupAnswer(group.kind, group.n_layers, group.window, *sizes, part.is_draft)


def _host_tier(setup: PoolSetup) -> dict[str, Any]:
    """Return the host tier's capacity in tokens."""
    tier = setup.host_tier or HostTierSpec(0, 0.0)
    blocks = setup.ledger.layout.blocks
    return {
        "host_tokens": blocks.tokens_in(tier.n_blocks),
        "disk_tokens": blocks.tokens_in(tier.disk_blocks),
        "host_scope": "replica" if tier.store is None else "pool",
        "host_token_s": tier.block_s * blocks.filled(blocks.common_tokens) / blocks.common_tokens,
    }


def _memory_bytes(ledger: MemoryLedger) -> dict[str, float]:
    """Return the parts of one GPU's memory, in the order an engine takes them, the rest of its share, and what it keeps
    free outside it."""
    taken = {
        "weights": ledger.weights_bytes,
        "activations": ledger.activations_bytes,
        "reserve": ledger.reserve_bytes,
        "kv": ledger.kv_bytes,
    }
    unused = max(0.0, ledger.usable_bytes - sum(taken.values()))
    kept_free = ledger.total_bytes - sum(taken.values()) - unused
    return {**taken, "unused": unused, "kept_free": kept_free, "total": ledger.total_bytes}


def _typical_steps(setup: PoolSetup) -> Iterator[TypicalStep]:
    """Yield decode steps and prefills, as far as the pool has room for them. Ranks that step together all decode, or
    one computes a prompt."""
    cost, how = setup.step_cost(), setup.speculation
    if how is not None:
        yield from _speculating_steps(setup, cost, how.running_cost(cost), how.tokens_per_step)
        return
    for _, shape in decodes(setup):
        yield _step(cost, "decode", shape, setup.n_sharing)
    for _, prompt in whole_prompts(setup):
        yield _step(cost, "prefill", prompt)


def _speculating_steps(
    setup: PoolSetup, target: StepCost, cost: SpeculativeCost, tokens_per_step: float
) -> Iterator[TypicalStep]:
    """Yield steps that propose and verify tokens, and prefills by target and draft."""
    for phase, shapes in (("decode", decodes(setup)), ("prefill", whole_prompts(setup))):
        for n, shape in shapes:
            n_more = shape.decode_requests * cost.n_proposed
            n_tokens = shape.prefill_tokens + shape.decode_requests + n_more
            group_ps = cost.group_ps((setup.n_sharing if n_more else 1) * n_tokens, n_tokens)
            total_ps, tokens_ps = shape_ps(cost, shape) + group_ps, cost.tokens_ps(n_tokens) + group_ps
            sampling_ps = cost.sampled_ps(shape.sampled_rows + n_more) - n_more * cost.row_host_ps
            prompts = shape.prefill_tokens, shape.prefill_pairs, shape.prefill_context_tokens
            drafting_ps = cost.draft_ps(*prompts, shape.decode_requests, shape.kv_tokens)
            of_draft = shape.windows[len(shape.windows) - cost.drafting.n_windows :]
            reads, keys = [(pairs, read) for pairs, read, _ in of_draft], [keys for _, _, keys in of_draft]
            drafting_ps += cost.draft_windows_ps(shape.prefill_tokens, reads, shape.decode_requests, keys)
            step_ps = max(total_ps, cost.host_ps(shape.sampled_rows))
            yield TypicalStep(
                phase=phase,
                n_requests=shape.decode_requests or 1,
                n_tokens=n_tokens,
                context_tokens=shape.kv_tokens // n if shape.decode_requests else n,
                duration_s=to_s(step_ps),
                tokens_s=to_s(tokens_ps),
                attention_s=to_s(total_ps - tokens_ps - sampling_ps - drafting_ps),
                sampling_s=to_s(sampling_ps),
                tokens_per_s=n * (tokens_per_step if shape.decode_requests else 1) / to_s(step_ps),
                drafting_s=to_s(drafting_ps),
                host_wait_s=to_s(step_ps - total_ps),
                exchange_s=to_s(target.exchange_ps(n_tokens)),
            )


def _step(cost: StepCost, phase: str, shape: StepShape, n_ranks: int = 1) -> TypicalStep:
    """Return a step that n_ranks of those that share experts take alike."""
    n_tokens = shape.prefill_tokens + shape.decode_requests
    group_ps = cost.group_ps(n_ranks * n_tokens, n_tokens)
    total_ps, tokens_ps = shape_ps(cost, shape) + group_ps, cost.tokens_ps(n_tokens) + group_ps
    sampling_ps = cost.sampled_ps(shape.sampled_rows)
    step_ps = max(total_ps, cost.host_ps(shape.sampled_rows))
    return TypicalStep(
        phase=phase,
        n_requests=shape.decode_requests or 1,
        n_tokens=n_tokens,
        context_tokens=shape.kv_tokens // shape.decode_requests if shape.decode_requests else n_tokens,
        duration_s=to_s(step_ps),
        tokens_s=to_s(tokens_ps),
        attention_s=to_s(total_ps - tokens_ps - sampling_ps),
        sampling_s=to_s(sampling_ps),
        tokens_per_s=n_tokens / to_s(step_ps),
        host_wait_s=to_s(step_ps - total_ps),
        exchange_s=to_s(cost.exchange_ps(n_tokens)),
    )
