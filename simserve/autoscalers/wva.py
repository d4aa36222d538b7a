"""llm-d's workload variant autoscaler: by spare KV cache and queue lengths (version 1), or by tokens (version 2)."""

from collections import deque
from math import ceil, floor, inf
from statistics import fmean, median
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.autoscalers.base import (
    STRICT,
    Autoscaler,
    Behavior,
    Interval,
    OneOrMore,
    ScaleDown,
    ScaleUp,
    Share,
    Threshold,
    check_bounds,
    common_interval_s,
)
from simserve.state.horizontal import HorizontalScaler, tolerance_of, wish_by_average
from simserve.state.metric_values import Increase, OverTime, Series
from simserve.state.pool_view import OF_REQUESTS, PoolView
from simserve.state.tick import Tick

PEAK_S = 60.0
"""[s] Window of the peaks that it reads (WVA's queries: max_over_time(...[1m]))."""

MEANS_S = 300.0
"""[s] Window of the mean tokens of a request ([5m])."""

TOKENS = (*OF_REQUESTS, "generation_tokens_total")

N_OBSERVED = 10
"""Last observations of saturated replicas that version 2 averages."""


@dataclass(config=STRICT)
class Wva(Autoscaler):
    """Add a replica when the spare capacity of the unsaturated replicas is low; remove one if the rest keeps enough.

    It publishes a number of replicas, and a Kubernetes autoscaler behind it follows. It changes nothing while that
    number is not reached, or while some replica reports nothing. `v2` compares the tokens of requests with those that
    the replicas hold, those that start included, and may add or remove several; prompts count wherever they
    were computed. Source: llm-d workload-variant-autoscaler, internal/saturation/analyzer.go,
    internal/engines/analyzers/saturation_v2, docs/developer-guide/saturation-scaling-config.md.
    """

    max_replicas: OneOrMore
    """Most replicas."""
    min_replicas: OneOrMore = 1
    """Fewest replicas."""
    version: Literal["v1", "v2"] = "v1"
    """Rule: `v1`, by shares of KV cache and queue lengths; `v2`, by tokens (`analyzers: [saturation]`)."""
    kv_cache_threshold: Annotated[float, Field(gt=0, le=1)] = 0.80
    """[share] Peak KV cache use at which a replica is saturated."""
    queue_length_threshold: Threshold = 5.0
    """Peak of waiting requests at which a replica is saturated."""
    kv_spare_trigger: Share = 0.10
    """[share] Mean spare KV cache of the unsaturated replicas below which one is added."""
    queue_spare_trigger: Annotated[float, Field(ge=0, le=1e12)] = 3.0
    """Mean spare queue length of the unsaturated replicas below which one is added."""
    scale_up_threshold: Annotated[float, Field(gt=0, le=1)] = 0.85
    """[share] Demand over supply above which `v2` adds replicas (`scaleUpThreshold`)."""
    scale_down_boundary: Annotated[float, Field(gt=0, le=1)] = 0.70
    """[share] Demand over supply below which `v2` removes replicas (`scaleDownBoundary`)."""
    max_num_batched_tokens: Threshold | None = None
    """[tokens] Budget of a step that `v2` counts with; null: until a queue is seen, only the KV cache limits."""
    max_num_seqs: Threshold = 256
    """Slots of a replica that `v2` counts with."""
    optimization_interval_s: Interval = 60.0
    """[s] Time between two decisions of WVA (`GLOBAL_OPT_INTERVAL`)."""
    behavior: Behavior = Field(
        default_factory=lambda: Behavior(ScaleUp(stabilization_window_s=240), ScaleDown(stabilization_window_s=240))
    )
    """How fast the Kubernetes autoscaler behind it adds and removes replicas."""
    hpa_interval_s: Interval = 15.0
    """[s] Time between two decisions of the Kubernetes autoscaler behind it."""
    tolerance: Share = 0.1
    """Distance of published / present replicas from 1 at which the Kubernetes autoscaler changes nothing."""

    def __post_init__(self) -> None:
        check_bounds(self.min_replicas, self.max_replicas)
        if self.scale_down_boundary >= self.scale_up_threshold:
            raise ValueError(f"scale_down_boundary must be below scale_up_threshold, got {self.scale_down_boundary}")
        for of, threshold, trigger in (
            ("kv", self.kv_cache_threshold, self.kv_spare_trigger),
            ("queue", self.queue_length_threshold, self.queue_spare_trigger),
        ):
            if trigger >= threshold:
                raise ValueError(f"{of}_spare_trigger must be below the {of} threshold, got {trigger} >= {threshold}")
        self.interval_s = common_interval_s(self.optimization_interval_s, self.hpa_interval_s)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Metrics of its version."""
        of_tokens = ("gateway_queue_size", *TOKENS) if self.version == "v2" else ()
        return ("kv_cache_usage_perc", "num_requests_waiting", *of_tokens)

    def begin(self) -> None:
        """Start without a published number."""
        up, down = self.behavior.scale_up, self.behavior.scale_down
        self._tolerance = tolerance_of(up, down, self.tolerance)
        self._scaler = HorizontalScaler(up, down, self.min_replicas, self.max_replicas)
        self._optimize, self._sync = Tick(self.optimization_interval_s), Tick(self.hpa_interval_s)
        self._published: int | None = None
        self._observed: deque[int] = deque(maxlen=N_OBSERVED)

    def desired_replicas(self, pool: PoolView) -> int:
        """Return the replicas that the Kubernetes autoscaler sets, after the number that WVA publishes."""
        if self._optimize.is_due(pool.now_s):
            self._published = self.published_replicas(pool)
        if not self._sync.is_due(pool.now_s):
            return pool.wanted
        wish = wish_by_average(self._published, 1.0, pool.wanted, self._tolerance)
        return self._scaler.decide(pool.now_s, pool.wanted, [wish])

    def published_replicas(self, pool: PoolView) -> int:
        """Return the number that WVA publishes."""
        kv = OverTime("kv_cache_usage_perc", PEAK_S, "max").values(pool)
        queues = OverTime("num_requests_waiting", PEAK_S, "max").values(pool)
        reported = [(a, b) for a, b in zip(kv, queues, strict=True) if a is not None and b is not None]
        n_replicas = pool.wanted
        if self.version == "v2":
            n_replicas += self.token_change(reported, pool)
        elif self._published is not None and self._published != n_replicas:
            return self._published
        elif len(reported) == n_replicas:
            n_replicas += self.change(reported)
        return min(max(n_replicas, self.min_replicas), self.max_replicas)

    def token_change(self, replicas: list[tuple[float, float]], pool: PoolView) -> int:
        """Return how many replicas to add, by version 2, from the peaks of those that report."""
        kv_tokens, n_queued = pool.replica.kv_tokens, Series("gateway_queue_size").total(pool) or 0.0
        n_done, n_come, *n_tokens = (Increase(name, MEANS_S).total(pool) or 0.0 for name in TOKENS)
        prompt, output = (n / (n_of or inf) for n, n_of in zip(n_tokens, (n_come, n_done), strict=True))
        in_use = [(int(kv * kv_tokens), queue) for kv, queue in replicas]
        by_memory = int(kv_tokens * self.kv_cache_threshold)
        n_steady = min((self.max_num_batched_tokens or 0.0) * output / (prompt + output or 1.0), self.max_num_seqs)
        by_steps = int(n_steady * (prompt + output / 2)) or by_memory
        capacity = int(median(min(by_memory, self._seen(*each) or by_steps) for each in in_use)) if in_use else 0
        if capacity <= 0:
            return 0
        demand = sum(tokens + int(queue * (prompt + output)) for tokens, queue in in_use) + n_queued * (prompt + output)
        required = demand / self.scale_up_threshold - pool.wanted * capacity
        spare = len(replicas) * capacity - demand / self.scale_down_boundary
        return ceil(required / capacity) if required > 0 else -floor(max(0.0, spare) / capacity)

    def _seen(self, tokens: int, queue: float) -> int:
        """Return the tokens that a replica has with a full queue, or that replicas had; 0: none was seen."""
        if queue >= int(self.queue_length_threshold) and tokens:
            self._observed.append(tokens)
            return tokens
        return int(fmean(self._observed)) if self._observed else 0

    def change(self, replicas: list[tuple[float, float]]) -> int:
        """Return 1, 0 or -1 from the peak KV cache use and queue length of each replica."""
        kv_full, queue_full = self.kv_cache_threshold, self.queue_length_threshold
        left = [(kv, queue) for kv, queue in replicas if kv < kv_full and queue < queue_full]
        n_left = len(left)
        if not n_left:
            return 1
        kv, queue = (sum(loads) / n_left for loads in zip(*left, strict=True))
        if kv_full - kv < self.kv_spare_trigger or queue_full - queue < self.queue_spare_trigger:
            return 1
        if n_left < 2:
            return 0
        growth = n_left / (n_left - 1)
        keeps_kv = kv_full - kv * growth >= self.kv_spare_trigger
        keeps_queue = queue_full - queue * growth >= self.queue_spare_trigger
        return -1 if keeps_kv and keeps_queue else 0
