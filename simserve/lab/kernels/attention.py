"""Fit of attention: prefill and decode, for each dtype of the cache."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pandas as pd

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.catalog.specs import GpuSpec
from simserve.cost.calibration import FORMS
from simserve.cost.forms.attention import TILE, WIDE, DecodeAttention, PrefillAttention
from simserve.cost.forms.base import Coefficient, Form
from simserve.lab.kernels import KernelFit, Residuals, fit_form, fixed, held_out
from simserve.lab.kernels.table import rows_of

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

Seconds = Callable[[Any, pd.DataFrame], Any]
"""(form, rows) -> seconds of every row."""


def fit(table: pd.DataFrame, gpu: GpuSpec) -> list[KernelFit]:
    """Fit each operation and dtype of the cache. `dtype` is the cache's. Where a cache was measured under prefill in
    both 16 and 8 bits, the latter is named "fp8/fp8"."""
    return [
        *_fit_prefill(rows_of(table, "prefill_attention"), gpu),
        *_fit_decode(rows_of(table, "decode_attention"), gpu),
    ]


def _fit_prefill(rows: pd.DataFrame, gpu: GpuSpec) -> Iterator[KernelFit]:
    for kv_dtype, part in _by_cache(rows):
        name, seconds = kv_dtype, partial(_prefill_s, gpu, kv_dtype)
        for dtype, bits in (("bf16", 16.0), ("fp8", 8.0)):
            bounds = PrefillAttention.BOUNDS | {"compute_bits": fixed(bits)}
            kept, excluded = _usable_prefill(part[part["dtype"] == dtype], gpu, dtype)
            if fit := _fit_one("prefill_attention", name, bounds, seconds, kept, excluded):
                yield fit
                name = f"{kv_dtype}/fp8"


def _fit_decode(rows: pd.DataFrame, gpu: GpuSpec) -> Iterator[KernelFit]:
    for kv_dtype, part in _by_cache(rows):
        kept, excluded = _usable_decode(part[part["dtype"] == "bf16"], gpu, kv_dtype)
        seconds = partial(_decode_s, gpu, kv_dtype)
        if fit := _fit_one("decode_attention", kv_dtype, DecodeAttention.BOUNDS, seconds, kept, excluded):
            yield replace(fit, form=_in_servers(fit.form, kept, kv_dtype))


def _in_servers(form: Form, rows: pd.DataFrame, kv_dtype: str) -> Form:
    """Return a form of equal contexts with what unequal ones cost the same kernels."""
    kernels = getattr(rows, "kernel", pd.Series(dtype=str))
    is_flash = len(kernels) and kernels.str.contains(FLASH, na=False).all()
    return DecodeAttention(**{**asdict(form), "sm_bytes_per_s": SM_BYTES_PER_S[kv_dtype]}) if is_flash else form


def _by_cache(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(kv_dtype, rows[rows["kv_dtype"] == kv_dtype]) for kv_dtype in ("bf16", "fp8")]


def _prefill_s(gpu: GpuSpec, kv_dtype: str, form: PrefillAttention, rows: pd.DataFrame) -> Any:
    """Return the times of whole prompts without a cached context, as in all tables."""
    n_tokens = (rows["batch"] * rows["tokens"]).to_numpy()
    n_pairs = n_tokens * (rows["tokens"].to_numpy() + 1) / 2
    n_heads, n_kv_heads, head_dim = (rows[name].to_numpy() for name in HEADS)
    return form.at(gpu, n_heads, n_kv_heads, head_dim, kv_dtype).seconds(n_tokens, n_pairs, n_tokens)


def _decode_s(gpu: GpuSpec, kv_dtype: str, form: DecodeAttention, rows: pd.DataFrame) -> Any:
    n = rows["batch"].to_numpy()
    n_heads, n_kv_heads, head_dim = (rows[name].to_numpy() for name in HEADS)
    intercept_s, slope_s = form.line(gpu, n_heads, n_kv_heads, head_dim, kv_dtype, n)
    return intercept_s + slope_s * n * rows["tokens"].to_numpy()


def _fit_one(
    op: str,
    dtype: str,
    bounds: Mapping[str, Coefficient],
    seconds: Seconds,
    rows: pd.DataFrame,
    excluded: Mapping[str, int],
) -> KernelFit | None:
    """Return residuals on held-out shapes and coefficients fitted to all; None with too few rows."""
    if len(rows) < FEWEST:
        return None
    held = held_out(rows, HEADS)
    if not held.any() or held.all():
        return None
    fitted = _fit_rows(FORMS[op], bounds, seconds, rows[~held])
    residuals = Residuals.of(seconds(fitted, rows[held]), rows["latency_s"].to_numpy()[held])
    return KernelFit(op, dtype, _fit_rows(FORMS[op], bounds, seconds, rows), len(rows), excluded, residuals)


def _fit_rows(form: type[Form], bounds: Mapping[str, Coefficient], seconds: Seconds, rows: pd.DataFrame) -> Form:
    """Return coefficients fitted to rows, those near their least value rounded to it: 0 reads better than 7e-23."""
    fitted = fit_form(form, lambda guess: seconds(guess, rows), rows["latency_s"].to_numpy(), bounds)
    least = {name: low for name, (start, low, _) in bounds.items() if getattr(fitted, name) - low < 1e-4 * start}
    unmeasured = {} if (rows["head_dim"] > WIDE).any() else {"wide": 0.0}  # no row determines that coefficient
    return replace(fitted, **least | unmeasured)


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
    rows = kept.rows
    flop = 4 * rows["n_heads"] * rows["head_dim"] * (rows["batch"] * rows["tokens"] * (rows["tokens"] + 1) / 2)
    at_peak_s = flop / gpu.flop_per_s.get(dtype, gpu.flop_per_s["bf16"])  # of scores and values: 4 a pair, head, width
    kept.leave_out("faster than the roof", at_peak_s > rows["latency_s"])
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


def _cache_bytes(rows: pd.DataFrame, kv_dtype: str) -> "pd.Series[float]":
    """Return the bytes of keys and values that all requests attend."""
    numbers = 2 * rows["n_kv_heads"] * rows["head_dim"] * rows["batch"] * rows["tokens"]
    return numbers * BYTES_PER_VALUE[kv_dtype]
