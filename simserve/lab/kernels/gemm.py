"""Fit of linear layers: one form for every dtype that the weights are stored in."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.catalog.specs import GpuSpec
from simserve.cost.forms.base import Coefficient
from simserve.cost.forms.gemm import Gemm
from simserve.cost.shard import ACTIVATION_BYTES
from simserve.lab.kernels import KernelFit, Residuals, fit_form, fixed, held_out, sample
from simserve.lab.kernels.table import rows_of

DTYPES = ("bf16", "fp8", "fp8_block", "nvfp4")
"""Stored dtypes with timings; weight-only ones use the form of bf16 with their own bytes."""

SMALLEST = 1024
"""Least n and k for reported errors; smaller layers are rare, and launches dominate them."""

LEAST = 128
"""Least n and k of any layer's shard."""

HOST_S = 3e-5
"""Time that no product takes for its smallest shape: a kernel that does in its fastest row was timed with its host (as
fp8_block on some cards: 55 to 280 µs), and its rows with a roof below that say nothing of the kernel."""

COPIES = 6
"""Weight matrices that the measurement cycles through; if all fit the L2 cache, they never come from memory."""

QUIET_LAUNCH_S = 6e-6
"""Launch of an fp8 product where its host is hidden: 5.5 to 6.2 µs on an H100 under three engines."""

MOST_ROWS = 6000
"""Rows enough for nine coefficients; more only take longer."""

FEWEST = 60

BY_ROWS = {"split_s": fixed(0.0), "chooses": fixed(0.0), "empty_share": Coefficient(0.3, 0.0, 2.0)}
"""Bounds where m chooses the tile, and empty rows cost something above 64 rows."""

FAMILIES: Sequence[Mapping[str, Coefficient]] = (
    Gemm.BOUNDS,
    Gemm.BOUNDS | BY_ROWS,
    *(Gemm.BOUNDS | BY_ROWS | {"few_rows": fixed(n_rows)} for n_rows in (32.0, 16.0)),
)
"""Bounds by choice of tiles; the last two where empty rows cost something above fewer rows."""


def fit(table: pd.DataFrame, gpu: GpuSpec) -> list[KernelFit]:
    """Fit each dtype measured; whole (n, k) pairs are held out for its residuals.

    Rows at m = x + 1 stay: real batches are often just above a multiple of a tile. A form that chooses the best tile
    is monotone, and charges the average cost of their last block of rows.
    """
    rows = rows_of(table, "gemm")
    fits = []
    for dtype in DTYPES:
        kept, excluded = _usable(rows[rows["dtype"] == dtype], gpu, dtype)
        if len(kept) < FEWEST:
            continue
        held = held_out(kept, ("n", "k"))
        wide = ((kept["n"] >= SMALLEST) & (kept["k"] >= SMALLEST)).to_numpy()
        train, report = kept[~held], kept[held & wide]
        if len(train) < FEWEST or report.empty:
            continue
        quiet = {"launch_s": fixed(QUIET_LAUNCH_S)} if excluded["host time in the row"] else {}
        families = [{**each, **quiet} for each in FAMILIES]
        forms = [_fit_rows(each, train, gpu, dtype) for each in families]
        ratios = [_seconds(form, train, gpu, dtype) / train["latency_s"].to_numpy() for form in forms]
        best = int(np.argmin([np.abs(np.log(ratio)).mean() for ratio in ratios]))
        family, fitted = families[best], forms[best]
        residuals = Residuals.of(_seconds(fitted, report, gpu, dtype), report["latency_s"].to_numpy())
        fits.append(KernelFit("gemm", dtype, _fit_rows(family, kept, gpu, dtype), len(kept), excluded, residuals))
    return fits


def _fit_rows(family: Mapping[str, Coefficient], rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> Gemm:
    some = sample(rows, ("m", "n", "k"), MOST_ROWS)
    return fit_form(Gemm, lambda form: _seconds(form, some, gpu, dtype), some["latency_s"].to_numpy(), family)


def _seconds(form: Gemm, rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> Any:
    return form.seconds(gpu, dtype, *(rows[name].to_numpy() for name in ("m", "n", "k")))


def _usable(rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the rows that time the kernel alone, and the excluded rows by reason."""
    weight_bytes = rows["n"] * rows["k"] * BYTES_PER_VALUE[dtype]
    compute_s = 2 * rows["m"] * rows["n"] * rows["k"] / gpu.peak_flop_per_s(dtype)
    activation_bytes = (rows["m"] * rows["k"] + rows["m"] * rows["n"]) * ACTIVATION_BYTES
    memory_s = (weight_bytes + activation_bytes) / gpu.hbm_bytes_per_s
    roof_s = np.maximum(compute_s, memory_s)
    kernels = rows["kernel"].fillna("") if "kernel" in rows else pd.Series("", index=rows.index)
    quickest_s = rows["latency_s"].groupby(kernels).transform("min")
    small = (rows["n"] < LEAST) | (rows["k"] < LEAST)
    cached = (COPIES * weight_bytes < 2 * gpu.l2_bytes) & (memory_s > compute_s)
    hosted = (quickest_s > HOST_S) & (roof_s < quickest_s)
    fast = rows["latency_s"] < roof_s
    excluded = {
        "n or k under a tile": int(small.sum()),
        "weights from the L2 cache": int((cached & ~small).sum()),
        "host time in the row": int((hosted & ~cached & ~small).sum()),
        "faster than the roofs": int((fast & ~hosted & ~cached & ~small).sum()),
    }
    return rows[~(small | cached | fast | hosted)].reset_index(drop=True), excluded
