"""llm-d's workload variant autoscaler: by spare KV cache and queue lengths (version 1), or by tokens (version 2)."""

from collections import deque
from math import ceil, floor
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
from simserve.state.metric_values import OverTime, Series
from simserve.state.pool_view import PoolView
from simserve.state.tick import Tick

PEAK_S = 60.0
"""[s] Window of the peaks that it reads (WVA's queries: max_over_time(...[1m]))."""

N_OBSERVED = 10
"""Last observations of saturated replicas that version 2 averages."""

Tokens = Annotated[float, Field(gt=0, le=1e12)]


@dataclass(config=STRICT)
class Wva(Autoscaler):
    """Add a replica when the spare capacity of the unsaturated replicas is low; remove one if the rest keeps enough.

    It publishes a number of replicas, and a Kubernetes autoscaler behind it follows. It changes nothing while that
    number is not reached, or while some replica reports nothing. `v2` compares the tokens of requests with those that
    the replicas hold, those that start included, and may add or remove several. Source: llm-d
    workload-variant-autoscaler, internal/saturation/analyzer.go, docs/developer-guide/saturation-scaling-config.md.
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
    """[share] v2: demand over supply above which replicas are added (`scaleUpThreshold`)."""
    scale_down_boundary: Annotated[float, Field(gt=0, le=1)] = 0.70
    """[share] v2: demand over supply below which replicas are removed (`scaleDownBoundary`)."""
    kv_cache_tokens: Tokens | None = None
    """v2: tokens that a replica's KV cache holds (blocks times their size in `vllm:cache_config_info`)."""
    avg_input_tokens: Tokens | None = None
    """v2: mean prompt tokens of a request, which WVA measures over 5 minutes."""
    avg_output_tokens: Tokens | None = None
    """v2: mean output tokens of a request, which WVA measures over 5 minutes."""
    max_num_batched_tokens: Tokens | None = None
    """v2: token budget of a step, from the server's flags; null: until a queue is seen, only the KV cache limits."""
    max_num_seqs: Tokens = 256
    """v2: slots of a replica, from the server's flags."""
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
        names = ("kv_cache_tokens", "avg_input_tokens", "avg_output_tokens")
        if self.version == "v2" and (lacking := [name for name in names if getattr(self, name) is None]):
            raise ValueError(f"version: v2 needs {', '.join(lacking)}; give them, or use version: v1")
        if self.scale_down_boundary >= self.scale_up_threshold:
            raise ValueError(f"scale_down_boundary must be below scale_up_threshold, got {self.scale_down_boundary}")
        for name, threshold, trigger in (
            ("kv", self.kv_cache_threshold, self.kv_spare_trigger),
            ("queue", self.queue_length_threshold, self.queue_spare_trigger),
        ):
            if trigger >= threshold:
                raise ValueError(
                    f"{name}_spare_trigger must be below the {name} threshold, got {trigger} >= {threshold}"
                )
        self.interval_s = common_interval_s(self.optimization_interval_s, self.hpa_interval_s)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Metrics of its version."""
        return (
            "kv_cache_usage_perc",
            "num_requests_waiting",
            *(["gateway_queue_size"] if self.version == "v2" else []),
        )

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
            n_replicas += self.token_change(reported, n_replicas, Series("gateway_queue_size").total(pool) or 0.0)
        elif self._published is not None and self._published != n_replicas:
            return self._published
        elif len(reported) == n_replicas:
            n_replicas += self.change(reported)
        return min(max(n_replicas, self.min_replicas), self.max_replicas)

    def token_change(self, replicas: list[tuple[float, float]], n_replicas: int, n_queued: float) -> int:
        """Return how many replicas to add, by version 2: from the peaks of those that report, and the gateway's
        queue."""
        if not replicas:
            return 0
        request_tokens = (self.avg_input_tokens or 0.0) + (self.avg_output_tokens or 0.0)
        in_use = [(int(kv * (self.kv_cache_tokens or 0.0)), queue) for kv, queue in replicas]
        capacity = int(median(self._capacity(*each) for each in in_use))
        demand = sum(tokens + int(queue * request_tokens) for tokens, queue in in_use) + n_queued * request_tokens
        if capacity <= 0:
            return 0
        required = demand / self.scale_up_threshold - n_replicas * capacity
        spare = len(replicas) * capacity - demand / self.scale_down_boundary
        return ceil(required / capacity) if required > 0 else -floor(max(0.0, spare) / capacity)

    def _capacity(self, tokens: int, queue: float) -> int:
        """Return the tokens that a replica can hold: those of its KV cache, or as many as it had with a full queue."""
        by_memory = int((self.kv_cache_tokens or 0.0) * self.kv_cache_threshold)
        if queue >= int(self.queue_length_threshold) and tokens:
            self._observed.append(tokens)
            return min(by_memory, tokens)
        if self._observed:
            return min(by_memory, int(fmean(self._observed)))
        prompt, output = self.avg_input_tokens or 0.0, self.avg_output_tokens or 0.0
        if self.max_num_batched_tokens is None:
            return by_memory
        n_steady = min(self.max_num_batched_tokens * output / (prompt + output), self.max_num_seqs)
        return min(by_memory, int(n_steady * (prompt + output / 2)) or by_memory)

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
