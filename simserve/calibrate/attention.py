"""Fit of attention: prefill and decode, for each dtype of the cache."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simserve.calibrate.fit import Fit, Residuals, fit_form, held_out
from simserve.calibrate.table import rows_of
from simserve.catalog.specs import BYTES_PER_VALUE, GpuSpec
from simserve.cost.forms.attention import DecodeAttention, PrefillAttention
from simserve.cost.forms.base import Form

HEADS = ("n_heads", "n_kv_heads", "head_dim")
"""A shape: whole ones are held out."""

WIDTHS = (64, 128, 256)
"""Head widths of the main kernels; others (192, 512) run kernels of their own."""

FEWEST = 50
"""Rows without which a fit says nothing."""

Seconds = Callable[..., NDArray[np.float64]]
"""(form, rows, dtype of the cache) -> seconds of every row."""


def fit(table: pd.DataFrame, gpu: GpuSpec) -> list[Fit]:
    """A Fit for each operation and dtype of the cache, from the rows that compute in 16 bits."""

    def prefill_s(form: PrefillAttention, rows: pd.DataFrame, kv_dtype: str) -> NDArray[np.float64]:
        n_tokens = (rows["batch"] * rows["tokens"]).to_numpy()
        n_pairs = n_tokens * (rows["tokens"].to_numpy() + 1) / 2
        n_heads, n_kv_heads, head_dim = (rows[name].to_numpy() for name in HEADS)
        cost = form.at(gpu, n_heads, n_kv_heads, head_dim, kv_dtype)
        return np.asarray(cost.seconds(n_tokens, n_pairs, n_tokens), dtype=np.float64)

    def decode_s(form: DecodeAttention, rows: pd.DataFrame, kv_dtype: str) -> NDArray[np.float64]:
        n = rows["batch"].to_numpy()
        n_heads, n_kv_heads, head_dim = (rows[name].to_numpy() for name in HEADS)
        intercept_s, slope_s = form.line(gpu, n_heads, n_kv_heads, head_dim, kv_dtype, n)
        return np.asarray(intercept_s + slope_s * n * rows["tokens"].to_numpy(), dtype=np.float64)

    return [
        *_fit_op(table, gpu, "prefill_attention", PrefillAttention, prefill_s),
        *_fit_op(table, gpu, "decode_attention", DecodeAttention, decode_s),
    ]


def _fit_op(table: pd.DataFrame, gpu: GpuSpec, op: str, form: type[Form], seconds: Seconds) -> list[Fit]:
    rows = rows_of(table, op)
    fits = []
    for kv_dtype in sorted(set(rows["kv_dtype"]) & {"bf16", "fp8"}):
        kept, excluded = _usable(rows[rows["kv_dtype"] == kv_dtype], gpu, op, kv_dtype)
        if len(kept) < FEWEST:
            continue
        held = held_out(kept, HEADS)
        train, report = kept[~held], kept[held]
        found = _fit_rows(form, seconds, train, kv_dtype)
        residuals = Residuals.of(seconds(found, report, kv_dtype), report["latency_s"].to_numpy())
        shipped = _fit_rows(form, seconds, kept, kv_dtype)
        fits.append(Fit(op, kv_dtype, shipped, len(kept), excluded, residuals))
    return fits


def _fit_rows(form: type[Form], seconds: Seconds, rows: pd.DataFrame, kv_dtype: str) -> Form:
    return fit_form(form, lambda guess: seconds(guess, rows, kv_dtype), rows["latency_s"].to_numpy())


def _usable(rows: pd.DataFrame, gpu: GpuSpec, op: str, kv_dtype: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """Rows of the main kernel on whole contexts, and how many were left out for what reason."""
    excluded: dict[str, int] = {}

    def keep(mask: "pd.Series[bool]", reason: str) -> None:
        nonlocal rows
        excluded[reason] = int((~mask).sum())
        rows = rows[mask]

    keep(rows["dtype"] == "bf16", "computed in other dtypes")
    keep(rows["window"] == 0, "windowed")
    keep(rows["head_dim"].isin(WIDTHS), "other head width")
    if "kernel" in rows and rows["kernel"].notna().any():
        keep(rows["kernel"] == rows["kernel"].mode().iloc[0], "other kernel")
    keep(rows["latency_s"] > _floor_s(rows, gpu, op, kv_dtype), "faster than the roofs")
    return rows.reset_index(drop=True), excluded


def _floor_s(rows: pd.DataFrame, gpu: GpuSpec, op: str, kv_dtype: str) -> "pd.Series[float]":
    """No kernel is faster: the FLOP of prefill, the bytes of the keys in decode (beyond what the L2 cache holds)."""
    n_keys = rows["batch"] * rows["tokens"]
    if op == "prefill_attention":
        return 2 * rows["n_heads"] * rows["head_dim"] * n_keys * rows["tokens"] / gpu.flop_per_s["bf16"]
    n_bytes = 2 * rows["n_kv_heads"] * rows["head_dim"] * n_keys * BYTES_PER_VALUE[kv_dtype]
    return (n_bytes - gpu.l2_bytes) / gpu.hbm_bytes_per_s
