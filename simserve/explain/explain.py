"""Explain a scenario before it runs: the memory ledger of each GPU, and the cost of typical steps."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from simserve.cost.calibrated import Calibrated
from simserve.cost.calibration import launch_factor
from simserve.cost.exchange import LOW_LATENCY_TOKENS
from simserve.cost.memory import HostTierSpec, MemoryLedger
from simserve.cost.model import StepShape, shape_ps
from simserve.cost.speculative import SpeculativeCost
from simserve.cost.step import StepCost
from simserve.explain.answer import Answer, ExchangeAnswer, PoolAnswer, ReservationAnswer, TypicalStep
from simserve.scenario import PoolSetup, Scenario
from simserve.scenario.cost_warnings import accuracy, of_nodes, wide_intervals
from simserve.scenario.model_sizes import kv_groups
from simserve.scenario.pool import Pool
from simserve.scenario.server_errors import server_errors
from simserve.scenario.typical_steps import decodes, slow_dtypes, whole_prompts
from simserve.units import to_s
from simserve.workload.load import Load, offered_load
from simserve.workload.trace import MOST_TOKENS


def explain(scenario: Scenario) -> Answer:
    """Dry-run a scenario without simulating it. Raises TraceError and PolicyError for a load that a run refuses."""
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    pairs = zip(scenario.setups, scenario.cluster.versions, strict=True)
    pools = tuple(_with_reservation(_pool(setup, pool), setup, load) for setup, pool in pairs)
    return Answer(
        scenario.name, scenario.digest, pools, scenario.to_dict(), dict(scenario.origins), scenario.why_one_process()
    )


def _pool(setup: PoolSetup, pool: Pool) -> PoolAnswer:
    balance, weights_bytes = setup.parallel.balance, setup.ledger.weights_bytes * setup.gpus_per_replica
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
        accuracy=accuracy(setup),
        slow_dtypes=slow_dtypes(setup),
        memory_bytes=_memory_bytes(setup.ledger),
        n_blocks=setup.ledger.lane_blocks,
        kv_tokens=setup.ledger.longest_tokens,
        fills_blocks=setup.ledger.layout.blocks.grows,
        kv_verified=setup.ledger.verified,
        max_model_len=setup.max_model_len,
        kv_groups=tuple(kv_groups(setup.ledger.layout, setup.max_model_len)),
        steps=tuple(_typical_steps(setup)),
        block_tokens=setup.ledger.block_size,
        **_host_tier(setup),
        tokens_per_step=1.0 if setup.speculation is None else setup.speculation.tokens_per_step,
        exchange=_exchange(setup.step_cost()),
        start=None if pool.startup is None else pool.startup.explained(weights_bytes),
        step_notes=tuple(_step_notes(setup)),
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
    copies = ("n_nodes", "kernels", "far_nodes", "gpus", "far_experts", "near_experts")
    return ExchangeAnswer(
        experts_per_gpu=cost.shard.n_experts,
        low_latency_tokens=LOW_LATENCY_TOKENS,
        bytes_per_s=exchange.link.bytes_per_s,
        latency_s=exchange.link.latency_s,
        **{name: getattr(exchange, name) for name in copies},
    )


def _step_notes(setup: PoolSetup) -> Iterator[str]:
    """Yield what options of the engine do to steps."""
    if setup.engine.enforce_eager:
        yield f"CUDA graphs: none; no step takes less than {setup.step_cost().eager_ps / 1e9:.3g} ms of launches"
    if setup.structured_frac:
        yield f"Structured output: masks take {setup.mask_s * 1e6:.3g} us of host time a request and step, on average"
    if setup.engine.enable_dbo:
        yield "Two-batch overlap: exchange hides behind the compute of two half batches, or they behind it"


def _host_tier(setup: PoolSetup) -> dict[str, Any]:
    """Return the host tier's capacity in tokens."""
    tier = setup.host_tier or HostTierSpec(0, 0.0)
    blocks = setup.ledger.layout.blocks
    return {
        "host_tokens": blocks.tokens_in(tier.n_blocks),
        "disk_tokens": blocks.tokens_in(tier.disk_blocks),
        "host_scope": "replica" if tier.store is None else "pool",
        "host_token_s": tier.block_s * (blocks.filled(blocks.common_tokens) or 1) / blocks.common_tokens,
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
    """Yield decode steps and prefills, as far as the pool has room for them; with speculation, steps that propose and
    verify tokens, and prefills by target and draft. Ranks that step together all decode, or one computes a prompt."""
    target, how = setup.step_cost(), setup.speculation
    speculative = None if how is None else how.running_cost(target)
    cost = speculative or target
    for phase, shapes in (("decode", decodes(setup)), ("prefill", whole_prompts(setup))):
        for n, shape in shapes:
            is_decode = phase == "decode"
            n_more = 0 if speculative is None else shape.decode_requests * speculative.n_proposed
            n_others = shape.decode_requests + n_more
            n_tokens = cost.own_tokens(shape.prefill_tokens) + n_others
            n_all, own_ps = (setup.n_sharing if is_decode else 1) * n_tokens, shape_ps(cost, shape)
            sent_ps = cost.overlapped_ps(n_tokens, False) if is_decode else 0
            total_ps = max(own_ps + cost.group_ps(n_all, n_tokens, sent_ps > 0), sent_ps)
            tokens_ps = cost.tokens_ps(n_tokens) + total_ps - own_ps
            sampling_ps, drafting_ps = cost.sampled_ps(shape.sampled_rows + n_more), 0
            if speculative is not None:
                sampling_ps -= n_more * speculative.row_host_ps
                drafting_ps = _drafting_ps(speculative, shape)
            step_ps = max(total_ps, cost.host_ps(shape.sampled_rows))
            tokens_per_step = how.tokens_per_step if how is not None and is_decode else 1
            yield TypicalStep(
                phase=phase,
                n_requests=shape.decode_requests or 1,
                n_tokens=shape.prefill_tokens + n_others,
                context_tokens=shape.kv_tokens // n if is_decode else n,
                duration_s=to_s(step_ps),
                tokens_s=to_s(tokens_ps),
                attention_s=to_s(total_ps - tokens_ps - sampling_ps - drafting_ps),
                sampling_s=to_s(sampling_ps),
                tokens_per_s=n * tokens_per_step / to_s(step_ps),
                drafting_s=to_s(drafting_ps),
                host_wait_s=to_s(step_ps - total_ps),
                exchange_s=to_s(sent_ps or target.exchange_ps(n_tokens)),
                context_s=target.context.step_s(shape.prefill_tokens, n_others),
            )


def _drafting_ps(cost: SpeculativeCost, shape: StepShape) -> int:
    """Return the part of a step that is spent on proposals."""
    prompts = shape.prefill_tokens, shape.prefill_pairs, shape.prefill_context_tokens
    of_draft = shape.windows[len(shape.windows) - cost.drafting.n_windows :]
    reads, keys = [(pairs, read) for pairs, read, _ in of_draft], [keys for _, _, keys in of_draft]
    drafting_ps = cost.draft_ps(*prompts, shape.decode_requests, shape.kv_tokens)
    return drafting_ps + cost.draft_windows_ps(shape.prefill_tokens, reads, shape.decode_requests, keys)
