"""The experts of a mixture-of-experts layer: from router logits to summed outputs, without gate and collectives."""

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from simserve.catalog.specs import BYTES_PER_VALUE, GpuSpec
from simserve.cost.forms.base import Form, smooth_max
from simserve.cost.ops import ACTIVATION_BYTES

MATRICES = 3
"""Of an expert: gate, up, down."""

TILE_DEPTH = 64
"""Values of the inner dimension that a tile takes at a step, as usual in Triton and CUTLASS."""

TOUCHED_WITH_ROWS = 0.6
"""How far the GPU with the most rows also has the most experts touched: their correlation, roughly."""


@dataclass(frozen=True)
class ExpertLoad:
    """What the busiest of the GPUs that share the experts has to do; `(n,)` each."""

    rows: Any
    """Pairs of a token and one of its experts here."""
    touched: Any
    """Experts here that get at least one row."""
    remote_rows: Any
    """Pairs whose expert lives on another GPU."""


@dataclass(frozen=True)
class MoeLayer(Form):
    """launch + experts touched + max(compute, weights read, depth) + activations moved.

    compute: 6 FLOP a row, hidden and inner value, on rows padded by half a tile an expert. weights: of the experts
    touched, once. depth: the inner dimensions are walked through in steps that nothing shortens, which is the floor
    when few rows leave most of the GPU idle. activations: gather, activation function and weighted sum.
    """

    BOUNDS: ClassVar[dict[str, tuple[float, float, float]]] = {
        "launch_s": (3e-5, 5e-6, 3e-4),
        "expert_s": (1e-7, 1e-9, 5e-6),
        "flop_share": (0.5, 0.05, 1.0),
        "byte_share": (0.85, 0.1, 1.0),
        "tile_rows": (16.0, 0.1, 200.0),
        "step_s": (2e-7, 1e-9, 2e-6),
        "traffic_share": (1.0, 0.1, 10.0),
        "remote_frac": (0.3, 0.001, 1.0),
        "sharpness": (2.0, 1.0, 4.0),
    }

    launch_s: float
    expert_s: float
    """For each expert touched: setting up its product."""
    flop_share: float
    byte_share: float
    tile_rows: float
    """Rows that padding adds to every expert touched."""
    step_s: float
    """For TILE_DEPTH values of the inner dimension."""
    traffic_share: float
    """Of the memory bandwidth, for the activations; above 1 when they stay in the cache."""
    remote_frac: float
    """Share of the activation traffic that a row of an expert elsewhere still causes."""
    sharpness: float

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
        routing: str = "uniform",
    ) -> Any:
        """For `(n,)` tokens of all GPUs together, as the busiest GPU sees it; 0 without tokens.

        inter is an expert's inner size before `tensor` GPUs divide it; `expert` GPUs share the experts.
        """
        load = load_of(routing, tokens, top_k, n_experts, expert)
        return (np.asarray(tokens) > 0) * self.loaded_s(gpu, dtype, load, hidden, inter / tensor)

    def loaded_s(self, gpu: GpuSpec, dtype: str, load: ExpertLoad, hidden: Any, inter: Any) -> Any:
        """For a load that is known; inter is what one GPU has of it."""
        weights = MATRICES * hidden * inter
        rows = load.rows + self.tile_rows * load.touched
        compute = 2 * weights * rows / (gpu.peak_flop_per_s(dtype) * self.flop_share)
        memory = load.touched * weights * BYTES_PER_VALUE[dtype] / (gpu.hbm_bytes_per_s * self.byte_share)
        depth = self.step_s * (hidden + inter) / TILE_DEPTH
        products = smooth_max(smooth_max(compute, memory, self.sharpness), depth, self.sharpness)
        # In and out of two products, of the activation function and of the sum: 3 hidden and 6 inner values a row.
        values = (load.rows + self.remote_frac * load.remote_rows) * (3 * hidden + 6 * inter)
        traffic = values * ACTIVATION_BYTES / (gpu.hbm_bytes_per_s * self.traffic_share)
        return self.launch_s + self.expert_s * load.touched + products + traffic


def load_of(routing: str, tokens: Any, top_k: int, n_experts: int, n_gpus: int) -> ExpertLoad:
    """What `(n,)` tokens make of the experts of the busiest of n_gpus.

    routing: balanced (as many to each expert, as few tokens as can be on one), uniform (each token draws its experts
    at random), or power_law_A (popularity follows a power law of exponent A, as `aiconfigurator` measures it).
    """
    tokens = np.asarray(tokens, dtype=np.float64)
    pairs = tokens * top_k
    if routing == "balanced":
        rows, touched = pairs / n_gpus, np.maximum(np.minimum(n_experts, pairs) / n_gpus, np.minimum(1, pairs / n_gpus))
    elif routing == "uniform":
        rows = pairs / n_gpus + _most(n_gpus) * np.sqrt(pairs / n_gpus)
        touched = _busiest(n_experts * (1 - (1 - top_k / n_experts) ** tokens), n_experts, n_gpus)
    else:
        counts = _power_law(float(routing.removeprefix("power_law_")), tokens, top_k, n_experts)
        spread = counts.std(axis=1) / np.maximum(counts.mean(axis=1), 1e-9)
        rows = pairs / n_gpus * (1 + _most(n_gpus) * spread / sqrt(n_experts / n_gpus))
        touched = _busiest(np.minimum(counts, 1).sum(axis=1), n_experts, n_gpus)
    rows = np.minimum(rows, tokens * min(top_k, n_experts / n_gpus))
    return ExpertLoad(rows, np.minimum(touched, n_experts / n_gpus), pairs - rows)


def _most(n_gpus: int) -> float:
    """By how many standard deviations of one of them the fullest of n_gpus exceeds the mean (Blom 1958), that standard
    deviation being lower by what the others must have less."""
    return NormalDist().inv_cdf((n_gpus - 0.375) / (n_gpus + 0.25)) * sqrt(1 - 1 / n_gpus) if n_gpus > 1 else 0.0


def _busiest(touched: Any, n_experts: int, n_gpus: int) -> Any:
    """Experts touched on the GPU with the most rows, of those touched in all."""
    mean = touched / n_gpus
    return mean + TOUCHED_WITH_ROWS * _most(n_gpus) * np.sqrt(mean * (1 - touched / n_experts))


def _power_law(exponent: float, tokens: NDArray[np.float64], top_k: int, n_experts: int) -> NDArray[np.float64]:
    """Rows of every expert, `(n, n_experts)`, most popular last: quantiles of the law, scaled and rounded.

    Bounds, rounding and what follows are those of the measurements: popularity in [1, 0.8 tokens], or [0.01, 2] while
    there are no more pairs than experts; no expert has a token twice; pairs without a place go to the least popular.
    """
    pairs = tokens * top_k
    few = pairs <= n_experts
    least = np.where(few, 0.01, 1.0)[:, None]
    most = np.where(few, 2.0, np.maximum(0.8 * tokens, 1.001))[:, None]
    power = 1 - exponent if exponent != 1 else 1e-6
    quantile = (np.arange(n_experts) + 0.5) / n_experts
    popularity = ((most**power - least**power) * quantile + least**power) ** (1 / power)
    counts = np.round(popularity / popularity.sum(axis=1, keepdims=True) * pairs[:, None])
    return _filled(np.minimum(counts, tokens[:, None]), pairs)


def _filled(counts: NDArray[np.float64], sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Counts, ascending in every row, with the lowest raised to one level so that rows reach their sums."""
    lost = np.maximum(sums - counts.sum(axis=1), 0.0)[:, None]
    levels = (lost + counts.cumsum(axis=1)) / np.arange(1, counts.shape[1] + 1)
    above = np.concatenate([counts[:, 1:], np.full((len(counts), 1), np.inf)], axis=1)
    level = np.take_along_axis(levels, np.argmax(levels <= above, axis=1)[:, None], axis=1)
    return np.asarray(np.maximum(counts, level))
