"""Fit of linear layers: one form for every dtype that the weights are stored in."""

from typing import ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simserve.calibrate.fit import Fit, Residuals, fit_form, held_out, sample
from simserve.calibrate.table import rows_of
from simserve.catalog.specs import BYTES_PER_VALUE, GpuSpec
from simserve.cost.forms.gemm import Gemm
from simserve.cost.ops import ACTIVATION_BYTES

DTYPES = ("bf16", "fp8", "fp8_block")
"""Stored dtypes that are timed; weight-only ones take the form of bf16 with their own bytes."""

SMALLEST = 1024
"""n and k below this are slices that no layer of a real model has; launches dominate them."""

BLOCK_FIRST_M = 1024
"""fp8_block is timed with 55 to 95 µs of host time a call; from so many tokens on that no longer shows."""

COPIES = 6
"""Weight matrices that the measurement cycles through; together in the L2 cache, they never come from memory."""

MOST_ROWS = 6000
"""Rows enough for eight coefficients; more teach nothing and take longer."""

FEWEST = 60


class _ByRows(Gemm):
    """The same with the tile that goes with m."""

    BOUNDS: ClassVar[dict[str, tuple[float, float, float]]] = {
        **Gemm.BOUNDS,
        "split_s": (0.0, 0.0, 0.0),
        "chooses": (0.0, 0.0, 0.0),
    }


class _Hosted(_ByRows):
    """The same where small products are hidden by the host: launch and bandwidth are those of other fp8 kernels."""

    BOUNDS: ClassVar[dict[str, tuple[float, float, float]]] = {
        **_ByRows.BOUNDS,
        "launch_s": (6e-6, 6e-6, 6e-6),
        "byte_share": (0.8, 0.8, 0.8),
    }


def fit(table: pd.DataFrame, gpu: GpuSpec) -> list[Fit]:
    """A Fit for each dtype measured; whole (n, k) pairs are held out for its residuals."""
    rows = rows_of(table, "gemm")
    fits = []
    for dtype in DTYPES:
        kept, excluded = _usable(rows[rows["dtype"] == dtype], gpu, dtype)
        if len(kept) < FEWEST:
            continue
        held = held_out(kept, ("n", "k"))
        train, report = kept[~held], kept[held]
        family = _Hosted if dtype == "fp8_block" else _family(train, gpu, dtype)
        found = _fit_rows(family, train, gpu, dtype)
        residuals = Residuals.of(_seconds(found, report, gpu, dtype), report["latency_s"].to_numpy())
        fits.append(Fit("gemm", dtype, _fit_rows(family, kept, gpu, dtype), len(kept), excluded, residuals))
    return fits


def _fit_rows(family: type[Gemm], rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> Gemm:
    some = sample(rows, ("m", "n", "k"), MOST_ROWS)
    found = fit_form(family, lambda form: _seconds(form, some, gpu, dtype), some["latency_s"].to_numpy())
    return Gemm(**vars(found))


def _family(rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> type[Gemm]:
    """Whether the kernels choose their tiles by shape or by m, whichever is nearer to the rows."""
    return min((Gemm, _ByRows), key=lambda family: _misfit(_fit_rows(family, rows, gpu, dtype), rows, gpu, dtype))


def _misfit(form: Gemm, rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> float:
    ratio = _seconds(form, rows, gpu, dtype) / rows["latency_s"].to_numpy()
    return float(np.abs(np.log(ratio)).mean())


def _seconds(form: Gemm, rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> NDArray[np.float64]:
    m, n, k = (rows[name].to_numpy() for name in ("m", "n", "k"))
    return np.asarray(form.seconds(gpu, dtype, m, n, k), dtype=np.float64)


def _usable(rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """Rows that time the kernel and nothing else, and how many were left out for what reason."""
    weight_bytes = rows["n"] * rows["k"] * BYTES_PER_VALUE[dtype]
    compute_s = 2 * rows["m"] * rows["n"] * rows["k"] / gpu.peak_flop_per_s(dtype)
    activation_bytes = (rows["m"] * rows["k"] + rows["m"] * rows["n"]) * ACTIVATION_BYTES
    memory_s = (weight_bytes + activation_bytes) / gpu.hbm_bytes_per_s
    small = (rows["n"] < SMALLEST) | (rows["k"] < SMALLEST)
    cached = (COPIES * weight_bytes < 2 * gpu.l2_bytes) & (memory_s > compute_s)
    fast = rows["latency_s"] < np.maximum(compute_s, memory_s)
    hosted = (rows["m"] < BLOCK_FIRST_M) & (dtype == "fp8_block")
    excluded = {
        "n or k under 1024": int(small.sum()),
        "weights from the L2 cache": int((cached & ~small).sum()),
        "host time in the row": int((hosted & ~cached & ~small).sum()),
        "faster than the roofs": int((fast & ~hosted & ~cached & ~small).sum()),
    }
    return rows[~(small | cached | fast | hosted)].reset_index(drop=True), excluded
