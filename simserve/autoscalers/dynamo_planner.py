"""NVIDIA Dynamo's planner: thresholds of queues and KV cache each 5 s, a forecast each 180 s, and a GPU budget."""

from collections.abc import Mapping, Sequence
from math import ceil, inf, isnan, nan
from operator import mul
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.autoscalers.base import STRICT, Autoscaler, Interval, OneOrMore, Share, Threshold, common_interval_s
from simserve.state.forecast import Predictor, forecaster
from simserve.state.metric_values import Increase
from simserve.state.pool_view import PoolView
from simserve.state.tick import Tick

KV, WAITING = "kv_cache_usage_perc", "prompt_tokens_waiting"
OF_REPLICAS = ("request_success_total", "prompt_tokens_total", "generation_tokens_total")
OF_GATEWAY = "gateway_arrival_total"

THRESHOLDS = {"throughput": ((1.0, 0.1), (1.0, 0.6)), "latency": ((0.1, 0.0), (0.4, 0.1))}
"""Up and down by target: queued prompt tokens of a prefill replica, by the longest context, and KV cache use, queued
tokens included, of others."""


@dataclass(config=STRICT)
class PlannerPools:
    """The two pools of disaggregated serving that a planner scales together."""

    prefill: str
    """Name of the pool with `role: prefill`."""
    decode: str
    """Name of the pool with `role: decode`."""


@dataclass(config=STRICT)
class DynamoPlanner(Autoscaler):
    """Scale one pool, or a prefill and a decode pool under one GPU budget, by load and by a forecast.

    Load scaling adds a replica when one is above its threshold: queued prompt tokens for prefill, KV cache use with
    queued tokens for others. It removes one when all are below theirs and N / (N - 1) times the load fits. It waits
    while a replica of its pools starts, or has not reported since the last change. Throughput scaling sets a lower
    bound: the forecast of requests/s × tokens a request over what a replica handles. That is a profile table of the
    planner and a field here, without which it is off. All requests of the gateway count. Above the budget, prefill
    gets its share, rounded down, and decode the rest. The planner reads each step, so give `scrape: {interval_s: 1}`.
    Source: ai-dynamo/dynamo 1.x, planner/core and planner/config; there the guard is part of `sla` alone (dynamo#9294).
    """

    optimization_target: Literal["throughput", "latency", "load"] = "throughput"
    """Thresholds: `throughput` and the earlier ones of `latency`, or your own of `load`; not `sla`."""
    max_gpu_budget: OneOrMore = 8
    """Most GPUs of its pools."""
    min_endpoint: OneOrMore = 1
    """Fewest replicas of each pool."""
    enable_load_scaling: bool = True
    """Scale by thresholds; without, the forecast alone decides."""
    load_adjustment_interval_s: Interval = 5.0
    """[s] Time between two decisions by load."""
    throughput_adjustment_interval_s: Annotated[float, Field(ge=1, le=3600)] = 180.0
    """[s] Time between two forecasts, and the interval that is forecast."""
    load_scaling_down_sensitivity: Annotated[float, Field(gt=0, le=1)] = 0.8
    """[share] Part of the upper threshold that the load must stay below after a replica goes (the planner: percent)."""
    prefill_scale_up_queue_tokens: Threshold | None = None
    """[tokens] Queued prompt tokens at which a prefill replica is added; with `load` alone, which needs it."""
    prefill_scale_down_queue_tokens: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """[tokens] Queued prompt tokens down to which one may go; with `load` alone."""
    decode_scale_up_kv_rate: Share | None = None
    """[share] KV cache use above which another replica is added (the planner: percent); with `load` alone."""
    decode_scale_down_kv_rate: Share | None = None
    """[share] KV cache use below which one may go (the planner: percent); with `load` alone."""
    prefill_tokens_per_s: Threshold | None = None
    """[tokens/s] Prompt tokens that a replica computes within its SLO; null: no bound by prompts."""
    decode_tokens_per_s: Threshold | None = None
    """[tokens/s] Tokens that a replica generates within its SLO; null: no bound by answers."""
    load_predictor: Predictor = "arima"
    """Forecast of the next interval: `constant` (the last one), `kalman` or `arima`."""
    kalman_q_level: Annotated[float, Field(gt=0)] = 1.0
    """Variance of the level's steps in `kalman`."""
    kalman_q_trend: Annotated[float, Field(gt=0)] = 0.1
    """Variance of the trend's steps in `kalman`."""
    kalman_r: Annotated[float, Field(gt=0)] = 10.0
    """Variance of an observation in `kalman`."""
    pools: PlannerPools | None = None
    """Pools that it scales together, as `cluster.autoscaler`; null: the pool that it belongs to."""

    def __post_init__(self) -> None:
        self._forecasts = self.prefill_tokens_per_s is not None or self.decode_tokens_per_s is not None
        if not self._forecasts and not self.enable_load_scaling:
            raise ValueError("enable_load_scaling: false needs prefill_tokens_per_s or decode_tokens_per_s")
        queues = self.prefill_scale_up_queue_tokens, self.prefill_scale_down_queue_tokens
        own = queues, (self.decode_scale_up_kv_rate, self.decode_scale_down_kv_rate)
        self._limits: Sequence[Sequence[float | None]] = THRESHOLDS.get(self.optimization_target, own)
        if self._limits is not own and own != ((None, None), (None, None)):
            raise ValueError("thresholds are for optimization_target: load; leave them out, or set it")
        for up, down in own:
            if up is not None and down is not None and up <= down:
                raise ValueError(f"a threshold to scale up must be above that to scale down, got {up} and {down}")
        self.min_replicas, self.max_replicas = self.min_endpoint, self.max_gpu_budget
        self.interval_s = self.load_adjustment_interval_s
        if self._forecasts:
            self.begin()  # which checks the predictor
            self.interval_s = common_interval_s(self.interval_s, self.throughput_adjustment_interval_s)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Queues and KV cache use; with forecasts, counters of requests and tokens."""
        return (KV, WAITING, *OF_REPLICAS, OF_GATEWAY) if self._forecasts else (KV, WAITING)

    @property
    def pools_by_role(self) -> Mapping[str, str]:
        """The pools of a pair."""
        return {} if self.pools is None else {"prefill": self.pools.prefill, "decode": self.pools.decode}

    def check_pools(self, roles: Sequence[str], n_gpus: Sequence[int]) -> None:
        """Check that the budget holds the fewest replicas, and that `load` has its thresholds. Raises ValueError."""
        n_least = self.min_endpoint * sum(n_gpus)
        if n_least > self.max_gpu_budget:
            got = f"of {n_least} GPUs, got {self.max_gpu_budget}"
            raise ValueError(f"max_gpu_budget must hold min_endpoint replicas, {got}")
        for role in roles:
            if None in self._limits[role != "prefill"]:
                names = "prefill_scale_{}_queue_tokens" if role == "prefill" else "decode_scale_{}_kv_rate"
                needed = " and ".join(map(names.format, ("up", "down")))
                raise ValueError(f"optimization_target: load needs {needed} for a pool with role {role}")

    def most_replicas(self, n_gpus: int) -> int:
        """Return how many replicas the budget holds."""
        return self.max_gpu_budget // n_gpus

    def begin(self) -> None:
        """Start without forecasts or changes."""
        self._load = Tick(self.load_adjustment_interval_s)
        self._throughput = Tick(self.throughput_adjustment_interval_s)
        self._throughput.is_due(0.0)  # a forecast comes at the end of its interval
        series = (self.load_predictor, self.kalman_q_level, self.kalman_q_trend, self.kalman_r)
        roles = ("both", "prefill", "decode") if self._forecasts else ()
        self._series = {role: [forecaster(*series) for _ in range(3)] for role in roles}
        self._bounds, self._changed_s = dict[str, int](), dict[str, float]()

    def desired_replicas(self, pool: PoolView) -> int:
        """Return the replicas of its only pool."""
        return self.desired_of_pools([pool])[0]

    def desired_of_pools(self, pools: Sequence[PoolView]) -> Sequence[int]:
        """Return the replicas of each pool, within the budget."""
        now_s = pools[0].now_s
        if self._forecasts and self._throughput.is_due(now_s):
            for pool in pools:
                self._forecast(pool)
        is_due = self._load.is_due(now_s)
        loads = [self._load_of(pool) if self.enable_load_scaling else 0.0 for pool in pools]
        if not is_due or any(map(isnan, loads)):
            return [pool.wanted for pool in pools]
        wished = self._within_budget(pools, list(map(self._wish, pools, loads)))
        for pool, n_replicas in zip(pools, wished, strict=True):
            if n_replicas != pool.wanted:
                self._changed_s[pool.replica.role] = now_s
        return wished

    def _forecast(self, pool: PoolView) -> None:
        """Store the interval that ends, and set the lower bound for the next one."""
        role, window_s = pool.replica.role, self.throughput_adjustment_interval_s
        n_arrived = Increase(OF_GATEWAY, window_s).total(pool)
        if n_arrived is None:
            return
        rate, *of_request = self._series[role]
        rate.add(n_arrived / window_s)
        n_done, *n_tokens = (Increase(name, window_s).total(pool) or 0.0 for name in OF_REPLICAS)
        full = (self.prefill_tokens_per_s, "decode"), (self.decode_tokens_per_s, "prefill")
        needs = []
        for tokens, n, (capacity, other) in zip(of_request, n_tokens, full, strict=True):
            if n_done:
                tokens.add(n / n_done)
            if capacity is not None and role != other:
                needs.append(rate.ahead() * tokens.ahead() / capacity)
        if needs:
            self._bounds[role] = ceil(round(max(needs), 9))

    def _load_of(self, pool: PoolView) -> float:
        """Return the largest load of a replica: queued tokens of a rank, or a share of KV cache; NaN: not all have
        reported since the last change."""
        facts, loads = pool.replica, list[float]()
        for member in pool.members:
            used, queued = (member.signals.last(name, self._changed_s.get(facts.role, -inf)) for name in (KV, WAITING))
            if used is None or queued is None:
                return nan
            loads.append(queued / facts.n_ranks if facts.role == "prefill" else used + queued / facts.kv_tokens)
        return max(loads, default=nan)

    def _wish(self, pool: PoolView, load: float) -> int:
        """Return one replica more or less than now, or as many, but no fewer than by the forecast; a threshold itself
        counts for queues."""
        n_now, bound = pool.wanted, self._bounds.get(pool.replica.role)
        if not self.enable_load_scaling:
            return max(n_now if bound is None else bound, self.min_endpoint)
        is_queue = pool.replica.role == "prefill"
        unit = pool.replica.max_model_len if is_queue and self.optimization_target != "load" else 1.0
        up, down = (unit * (each or 0.0) for each in self._limits[not is_queue])
        if load > up or (is_queue and load == up):
            n_now += 1
        elif load < down or (is_queue and load == down):
            n_now -= n_now > 1 and load * n_now / (n_now - 1) < self.load_scaling_down_sensitivity * up
        return max(n_now, bound or 0, self.min_endpoint)

    def _within_budget(self, pools: Sequence[PoolView], wished: Sequence[int]) -> list[int]:
        """Return what fits into the budget: the share of a prefill pool, rounded down, then the rest."""
        sizes, budget, result = [pool.replica.n_gpus for pool in pools], self.max_gpu_budget, list(wished)
        n_wished = sum(map(mul, wished, sizes))
        if n_wished <= budget:
            return result
        left, later = budget, self.min_endpoint * sum(sizes)
        for place in sorted(range(len(pools)), key=lambda place: pools[place].replica.role != "prefill"):
            later -= self.min_endpoint * sizes[place]
            share = wished[place] * budget // n_wished if later else wished[place]
            result[place] = max(self.min_endpoint, min(share, (left - later) // sizes[place]))
            left -= result[place] * sizes[place]
        return result
