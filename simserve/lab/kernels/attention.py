"""Fit of attention: prefill and decode, for each dtype of the cache."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simserve.catalog.specs import BYTES_PER_VALUE, GpuSpec
from simserve.cost.forms.attention import TILE, WIDE, DecodeAttention, PrefillAttention
from simserve.cost.forms.base import Form
from simserve.lab.kernels import KernelFit, Residuals, fit_form, held_out
from simserve.lab.kernels.table import rows_of

F = TypeVar("F", bound=Form)

HEADS = ("n_heads", "n_kv_heads", "head_dim")
"""Columns of a shape; whole shapes are held out."""

WIDTHS = (64, 128, 256)
"""Head widths of the main kernels; other widths (192, 512) run separate kernels."""

MOST_GROUPED = 16
"""Query heads per KV head in decode; with more, TensorRT-LLM uses a kernel four times slower. Few models have more."""

SHORTEST_CONTEXT = 2 * TILE
"""Fewest keys in decode; below, start and end of thread blocks dominate, and a line does not fit both regimes."""

L2_MARGIN = 1.25
"""A cache read repeatedly stays in an L2 that is larger; a quarter above its size, none of that is left."""

MEMORY_BOUND = 0.15
"""Share of the measured time that the bytes take at the full bandwidth; below, their location hardly matters."""

FEWEST = 50
"""Fewest rows for a fit."""

FLASH = "fa3"
"""Part of the name of kernels of FlashAttention 3."""

SM_BYTES_PER_S = {"bf16": 76e9, "fp8": 33e9}
"""Most bytes that an SM of Hopper reads per second in these kernels, by the cache's dtype: what fits our timings of
unequal contexts on an H100 best (`python -m benchmarks.context_spread`)."""

Seconds = Callable[[Any, pd.DataFrame], NDArray[np.float64]]
"""(form, rows) -> seconds of every row."""


class PrefillIn8Bits(PrefillAttention):
    """Prefill attention of kernels that multiply in fp8."""

    BOUNDS: ClassVar[dict[str, tuple[float, float, float]]] = {
        **PrefillAttention.BOUNDS,
        "compute_bits": (8.0, 8.0, 8.0),
    }


def fit(table: pd.DataFrame, gpu: GpuSpec) -> list[KernelFit]:
    """Fit each operation and dtype of the cache.

    `dtype` is the cache's. Where a cache was measured under prefill in both 16 and 8 bits, the latter is named
    "fp8/fp8".
    """
    return [
        *_fit_prefill(rows_of(table, "prefill_attention"), gpu),
        *_fit_decode(rows_of(table, "decode_attention"), gpu),
    ]


def _fit_prefill(rows: pd.DataFrame, gpu: GpuSpec) -> list[KernelFit]:
    fits: list[KernelFit] = []
    for kv_dtype, part in _by_cache(rows):
        for dtype, form in (("bf16", PrefillAttention), ("fp8", PrefillIn8Bits)):
            kept, excluded = _usable_prefill(part[part["dtype"] == dtype], gpu, dtype)
            seconds = _prefill_seconds(gpu, kv_dtype)
            fit = _fit_one("prefill_attention", kv_dtype, form, seconds, kept, excluded)
            if fit:
                known = any(one.dtype == kv_dtype for one in fits)
                fits.append(
                    replace(
                        fit,
                        dtype=f"{kv_dtype}/{dtype}" if known else kv_dtype,
                        form=PrefillAttention(**asdict(fit.form)),
                    )
                )
    return fits


def _fit_decode(rows: pd.DataFrame, gpu: GpuSpec) -> list[KernelFit]:
    fits = []
    for kv_dtype, part in _by_cache(rows):
        kept, excluded = _usable_decode(part[part["dtype"] == "bf16"], gpu, kv_dtype)
        seconds = _decode_seconds(gpu, kv_dtype)
        fit = _fit_one("decode_attention", kv_dtype, DecodeAttention, seconds, kept, excluded)
        fits += [replace(fit, form=_in_servers(fit.form, kept, kv_dtype))] if fit else []
    return fits


def _in_servers(form: Form, rows: pd.DataFrame, kv_dtype: str) -> Form:
    """Return a form of equal contexts with what unequal ones cost the same kernels."""
    kernels = getattr(rows, "kernel", pd.Series(dtype=str))
    is_flash = len(kernels) and kernels.str.contains(FLASH, na=False).all()
    return DecodeAttention(**{**asdict(form), "sm_bytes_per_s": SM_BYTES_PER_S[kv_dtype]}) if is_flash else form


def _by_cache(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(kv_dtype, rows[rows["kv_dtype"] == kv_dtype]) for kv_dtype in ("bf16", "fp8")]


def _prefill_seconds(gpu: GpuSpec, kv_dtype: str) -> Seconds:
    """Return the times of whole prompts without a cached context, as in all tables."""

    def seconds(form: PrefillAttention, rows: pd.DataFrame) -> NDArray[np.float64]:
        n_tokens = (rows["batch"] * rows["tokens"]).to_numpy()
        n_pairs = n_tokens * (rows["tokens"].to_numpy() + 1) / 2
        n_heads, n_kv_heads, head_dim = (rows[name].to_numpy() for name in HEADS)
        cost = form.at(gpu, n_heads, n_kv_heads, head_dim, kv_dtype)
        return np.asarray(cost.seconds(n_tokens, n_pairs, n_tokens), dtype=np.float64)

    return seconds


def _decode_seconds(gpu: GpuSpec, kv_dtype: str) -> Seconds:
    def seconds(form: DecodeAttention, rows: pd.DataFrame) -> NDArray[np.float64]:
        n = rows["batch"].to_numpy()
        n_heads, n_kv_heads, head_dim = (rows[name].to_numpy() for name in HEADS)
        intercept_s, slope_s = form.line(gpu, n_heads, n_kv_heads, head_dim, kv_dtype, n)
        return np.asarray(intercept_s + slope_s * n * rows["tokens"].to_numpy(), dtype=np.float64)

    return seconds


def _fit_one(
    op: str, dtype: str, form: type[Form], seconds: Seconds, rows: pd.DataFrame, excluded: dict[str, int]
) -> KernelFit | None:
    """Return residuals on held-out shapes and coefficients fitted to all; None with too few rows."""
    if len(rows) < FEWEST:
        return None
    held = held_out(rows, HEADS)
    if not held.any() or held.all():
        return None
    fitted = _fit_rows(form, seconds, rows[~held])
    residuals = Residuals.of(seconds(fitted, rows[held]), rows["latency_s"].to_numpy()[held])
    return KernelFit(op, dtype, _fit_rows(form, seconds, rows), len(rows), excluded, residuals)


def _fit_rows(form: type[F], seconds: Seconds, rows: pd.DataFrame) -> F:
    fitted = _tidy(fit_form(form, lambda guess: seconds(guess, rows), rows["latency_s"].to_numpy()))
    unmeasured = {} if (rows["head_dim"] > WIDE).any() else {"wide": 0.0}  # no row determines that coefficient
    return replace(fitted, **unmeasured)


def _tidy(form: F) -> F:
    """Round coefficients near their least value to it: 0 reads better than 7e-23."""
    least = {name: low for name, (start, low, _) in form.BOUNDS.items() if getattr(form, name) - low < 1e-4 * start}
    return replace(form, **least)


class _Rows:
    """Rows that a fit may use, and how many were excluded, by reason."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows = rows
        self.excluded: dict[str, int] = {}

    def leave_out(self, reason: str, bad: "pd.Series[bool]") -> None:
        self.excluded[reason] = int(bad.sum())
        self.rows = self.rows[~bad]

    def leave_out_other_kernels(self) -> None:
        """Keep whole contexts, common widths, and the kernel of most of those."""
        self.leave_out("windowed", self.rows["window"] != 0)
        self.leave_out("other head width", ~self.rows["head_dim"].isin(WIDTHS))
        if "kernel" in self.rows and self.rows["kernel"].notna().any():
            self.leave_out("other kernel", self.rows["kernel"] != self.rows["kernel"].mode().iloc[0])


def _usable_prefill(rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """Leave out prompts shorter than a tile: sums cannot tell many of them, each padded, from one long prompt."""
    kept = _Rows(rows)
    kept.leave_out_other_kernels()
    kept.leave_out("prompt shorter than a tile", kept.rows["tokens"] < TILE)
    kept.leave_out("faster than the roof", _pairs_s(kept.rows, gpu, dtype) > kept.rows["latency_s"])
    return kept.rows.reset_index(drop=True), kept.excluded


def _usable_decode(rows: pd.DataFrame, gpu: GpuSpec, kv_dtype: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """Leave out a cache timed in the L2: in a model, a layer's weights pass between two reads of its cache."""
    kept = _Rows(rows)
    kept.leave_out_other_kernels()
    kept.leave_out("context shorter than two tiles", kept.rows["tokens"] < SHORTEST_CONTEXT)
    kept.leave_out("many query heads a KV head", kept.rows["n_heads"] > MOST_GROUPED * kept.rows["n_kv_heads"])
    n_bytes = _cache_bytes(kept.rows, kv_dtype)
    seen = n_bytes > MEMORY_BOUND * gpu.hbm_bytes_per_s * kept.rows["latency_s"]
    kept.leave_out("cache stays in the L2", seen & (n_bytes < L2_MARGIN * gpu.l2_bytes))
    least_s = _cache_bytes(kept.rows, kv_dtype) / gpu.hbm_bytes_per_s
    kept.leave_out("faster than the roof", least_s > kept.rows["latency_s"])
    return kept.rows.reset_index(drop=True), kept.excluded


def _pairs_s(rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> "pd.Series[float]":
    """Return the seconds at the peak for scores and values of whole prompts: 4 FLOP per pair, head and width."""
    pairs = rows["batch"] * rows["tokens"] * (rows["tokens"] + 1) / 2
    return 4 * rows["n_heads"] * rows["head_dim"] * pairs / gpu.flop_per_s.get(dtype, gpu.flop_per_s["bf16"])


def _cache_bytes(rows: pd.DataFrame, kv_dtype: str) -> "pd.Series[float]":
    """Return the bytes of keys and values that all requests attend."""
    numbers = 2 * rows["n_kv_heads"] * rows["head_dim"] * rows["batch"] * rows["tokens"]
    return numbers * BYTES_PER_VALUE[kv_dtype]
