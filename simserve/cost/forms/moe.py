"""The experts of a mixture-of-experts layer: from router logits to summed outputs, without gate and collectives."""

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.catalog.layers import UNIFORM_ROUTING
from simserve.catalog.specs import GpuSpec
from simserve.cost.forms.base import Coefficient, Form, LaunchTime, PeakShare, WorkTime, smooth_max
from simserve.cost.shard import ACTIVATION_BYTES

MATRICES = 3
"""Matrices of an expert: gate, up, down."""

TILE_DEPTH = 64
"""Values of the inner dimension per step of a tile, as is common in Triton and CUTLASS."""

TOUCHED_WITH_ROWS = 0.6
"""Approximate correlation between the rows and the touched experts of a GPU."""


@dataclass(frozen=True)
class ExpertLoad:
    """The work of the busiest of the GPUs that share the experts; `(n,)` each."""

    rows: Any
    """Pairs of a token and one of its experts on this GPU."""
    touched: Any
    """Experts on this GPU with at least one row."""
    remote_rows: Any
    """Pairs with the expert on another GPU."""
    held: Any
    """Experts on this GPU."""


@dataclass(frozen=True)
class MoeLayer(Form):
    """launch + experts held + experts touched + max(compute, weights read, depth) + activations moved.

    compute: 6 FLOP per row, hidden and inner value, on rows padded by half a tile per expert. weights: of the touched
    experts, once. depth: the sequential steps over the inner dimensions, the floor when few rows leave most of the
    GPU idle. activations: gather, activation function and weighted sum.
    """

    launch_s: Annotated[float, LaunchTime(3e-5, 5e-6, 3e-4)]
    held_s: Annotated[float, WorkTime(5e-8, 0.0, 2e-6)]
    """Seconds per expert of the GPU, touched or not: sorting rows by expert, and grouped products that look at each."""
    expert_s: Annotated[float, WorkTime(1e-7, 1e-9, 5e-6)]
    """Seconds per touched expert to set up its product."""
    flop_share: Annotated[float, PeakShare(0.5, 0.05, 1.0)]
    byte_share: Annotated[float, PeakShare(0.85, 0.1, 1.0)]
    tile_rows: Annotated[float, Coefficient(16.0, 0.1, 200.0)]
    """Padding rows per touched expert."""
    step_s: Annotated[float, WorkTime(2e-7, 1e-9, 2e-6)]
    """Seconds per TILE_DEPTH values of the inner dimension."""
    traffic_share: Annotated[float, PeakShare(1.0, 0.1, 10.0)]
    """Share of the memory bandwidth for the activations; above 1 when they stay in the cache."""
    remote_frac: Annotated[float, Coefficient(0.3, 0.001, 1.0)]
    """Share of the activation traffic that a row with a remote expert still causes."""
    sharpness: Annotated[float, Coefficient(2.0, 1.0, 4.0)]

    def seconds(
        self,
        gpu: GpuSpec,
        dtype: str,
        tokens: Any,
        *,
        hidden: int,
        inter: int,
        top_k: int,
        n_experts: int,
        tensor: int = 1,
        expert: int = 1,
        routing: str = UNIFORM_ROUTING,
    ) -> Any:
        """Return the seconds for `(n,)` tokens of all GPUs together, on the busiest GPU; 0 without tokens.

        inter is an expert's inner size before `tensor` GPUs divide it; `expert` GPUs share the experts.
        """
        load = load_of(routing, tokens, top_k, n_experts, expert)
        return (np.asarray(tokens) > 0) * self.loaded_s(gpu, dtype, load, hidden, inter / tensor)

    def loaded_s(self, gpu: GpuSpec, dtype: str, load: ExpertLoad, hidden: Any, inter: Any) -> Any:
        """Return the seconds of a known load; inter is one GPU's part of it."""
        weights = MATRICES * hidden * inter
        rows = load.rows + self.tile_rows * load.touched
        compute = 2 * weights * rows / (gpu.peak_flop_per_s(dtype) * self.flop_share)
        memory = load.touched * weights * BYTES_PER_VALUE[dtype] / (gpu.hbm_bytes_per_s * self.byte_share)
        depth = self.step_s * (hidden + inter) / TILE_DEPTH
        products = smooth_max(smooth_max(compute, memory, self.sharpness), depth, self.sharpness)
        # Reads and writes of two products, activation function and sum: 3 hidden and 6 inner values per row.
        values = (load.rows + self.remote_frac * load.remote_rows) * (3 * hidden + 6 * inter)
        traffic = values * ACTIVATION_BYTES / (gpu.hbm_bytes_per_s * self.traffic_share)
        return self.launch_s + self.held_s * load.held + self.expert_s * load.touched + products + traffic


def load_of(routing: str, tokens: Any, top_k: int, n_experts: int, n_gpus: int) -> ExpertLoad:
    """Return the load that `(n,)` tokens put on the experts of the busiest of n_gpus.

    routing: balanced (equal counts, few tokens on few experts), uniform (each token draws its experts
    at random), lognormal_S (likewise, by popularity, with logarithms of standard deviation S), or
    power_law_A (counts follow a power law of exponent A, as `aiconfigurator` measures it).
    """
    tokens = np.asarray(tokens, dtype=np.float64)
    pairs = tokens * top_k
    if routing == "balanced":
        rows, touched = pairs / n_gpus, np.maximum(np.minimum(n_experts, pairs) / n_gpus, np.minimum(1, pairs / n_gpus))
    elif routing == UNIFORM_ROUTING:
        rows = pairs / n_gpus + _most(n_gpus) * np.sqrt(pairs / n_gpus)
        touched = _busiest(n_experts * (1 - (1 - top_k / n_experts) ** tokens), n_experts, n_gpus)
    elif routing.startswith("lognormal_"):
        popularity = _lognormal(float(routing.removeprefix("lognormal_")), top_k, n_experts)
        spread = popularity.std() / popularity.mean()
        rows = pairs / n_gpus + _most(n_gpus) * np.sqrt(pairs / n_gpus + (pairs * spread) ** 2 / (n_gpus * n_experts))
        touched = _busiest((1 - (1 - popularity) ** tokens[..., None]).sum(axis=-1), n_experts, n_gpus)
    else:
        counts = _power_law(float(routing.removeprefix("power_law_")), tokens, top_k, n_experts)
        spread = counts.std(axis=-1) / np.maximum(counts.mean(axis=-1), 1e-9)
        rows = pairs / n_gpus * (1 + _most(n_gpus) * spread / sqrt(n_experts / n_gpus))
        touched = _busiest(np.minimum(counts, 1).sum(axis=-1), n_experts, n_gpus)
    rows = np.minimum(rows, tokens * min(top_k, n_experts / n_gpus))
    return ExpertLoad(rows, np.minimum(touched, n_experts / n_gpus), pairs - rows, n_experts / n_gpus)


def _most(n_gpus: int) -> float:
    """Return by how many standard deviations the fullest of n_gpus exceeds the mean (Blom 1958), with the standard
    deviation reduced by the fixed sum."""
    return NormalDist().inv_cdf((n_gpus - 0.375) / (n_gpus + 0.25)) * sqrt(1 - 1 / n_gpus) if n_gpus > 1 else 0.0


def _busiest(touched: Any, n_experts: int, n_gpus: int) -> Any:
    """Return the experts touched on the GPU with the most rows, out of all touched ones."""
    mean = touched / n_gpus
    return mean + TOUCHED_WITH_ROWS * _most(n_gpus) * np.sqrt(mean * (1 - touched / n_experts))


def _lognormal(spread: float, top_k: int, n_experts: int) -> NDArray[np.float64]:
    """Return how likely a token draws each expert, `(n_experts,)`: quantiles of the law, which sum to top_k; none
    exceeds 1, as no expert has a token twice."""
    law = NormalDist(sigma=spread)
    share = np.exp([law.inv_cdf((i + 0.5) / n_experts) for i in range(n_experts)]) if spread else np.ones(n_experts)
    certain = 0
    while True:  # the most popular ones are certain, and the others share the rest
        rest = share[: n_experts - certain]
        popularity = (top_k - certain) * rest / rest.sum()
        if certain == top_k or popularity[-1] <= 1:
            return np.concatenate([popularity, np.ones(certain)])
        certain += 1


def _power_law(exponent: float, tokens: NDArray[np.float64], top_k: int, n_experts: int) -> NDArray[np.float64]:
    """Return the rows of every expert, `(..., n_experts)`, most popular last: scaled and rounded quantiles of the law.

    Bounds and rounding are those of the measurements: popularity in [1, 0.8 tokens], or [0.01, 2] while there are no
    more pairs than experts; no expert has a token twice; excess pairs go to the least popular.
    """
    pairs = tokens * top_k
    few = pairs <= n_experts
    least = np.where(few, 0.01, 1.0)[..., None]
    most = np.where(few, 2.0, np.maximum(0.8 * tokens, 1.001))[..., None]
    power = 1 - exponent if exponent != 1 else 1e-6
    quantile = (np.arange(n_experts) + 0.5) / n_experts
    popularity = ((most**power - least**power) * quantile + least**power) ** (1 / power)
    counts = np.round(popularity / popularity.sum(axis=-1, keepdims=True) * pairs[..., None])
    return _filled(np.minimum(counts, tokens[..., None]), pairs)


def _filled(counts: NDArray[np.float64], sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ascending counts with the lowest raised to one level so that rows reach their sums."""
    lost = np.maximum(sums - counts.sum(axis=-1), 0.0)[..., None]
    levels = (lost + counts.cumsum(axis=-1)) / np.arange(1, counts.shape[-1] + 1)
    above = np.concatenate([counts[..., 1:], np.full_like(lost, np.inf)], axis=-1)
    level = np.take_along_axis(levels, np.argmax(levels <= above, axis=-1)[..., None], axis=-1)
    return np.asarray(np.maximum(counts, level))
