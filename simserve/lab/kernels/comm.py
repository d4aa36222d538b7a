"""Fit of the collectives: one form for every operation and number of GPUs."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from simserve.catalog.specs import GpuSpec
from simserve.cost.forms.collective import COLLECTIVES
from simserve.lab.kernels import KernelFit, Residuals, fit_form
from simserve.lab.kernels.table import rows_of

DTYPE = "bf16"
"""Dtype of engines' messages: activations in 16 bits. Other widths cost the same per byte and are rarely measured."""

STALL = 1.2
"""A row this many times slower than a larger message is a measurement artifact (38 µs among 3 µs was seen)."""

FEWEST = 4
"""Fewest rows for four coefficients."""


def fit(table: pd.DataFrame, gpu: GpuSpec) -> list[KernelFit]:
    """Fit every operation and number of GPUs measured; `dtype` is that number ("2", "4", "8").

    The fastest kernel of each size counts, as engines choose: their own up to some megabytes, NCCL beyond. Every other
    message size is held out.
    """
    fits = []
    for op in COLLECTIVES:
        for _, rows in rows_of(table, op).groupby("n_gpus"):
            fit = _fit_one(op, int(rows["n_gpus"].iloc[0]), rows, gpu)
            fits += [fit] if fit else []
    return fits


def host_bytes_per_s(table: pd.DataFrame) -> float | None:
    """Return the bandwidth to the host: the slower direction's, at its largest copy; None without copies."""
    rows = rows_of(table, "host_copy").sort_values("bytes")
    largest = rows.groupby("direction").tail(1)
    return None if rows.empty else float((largest["bytes"] / largest["latency_s"]).min())


def _fit_one(op: str, n_gpus: int, rows: pd.DataFrame, gpu: GpuSpec) -> KernelFit | None:
    """Fit one operation and number of GPUs; None with too few rows."""
    kept, excluded = _usable(op, n_gpus, rows, gpu)
    held = np.arange(len(kept)) % 2 == 1
    if (~held).sum() < FEWEST:
        return None
    n_bytes, measured = kept["bytes"].to_numpy(), kept["latency_s"].to_numpy()
    form = fit_form(COLLECTIVES[op], lambda form: form.seconds(gpu, n_gpus, n_bytes[~held]), measured[~held])
    residuals = Residuals.of(form.seconds(gpu, n_gpus, n_bytes[held]), measured[held])
    return KernelFit(op, str(n_gpus), form, int((~held).sum()), excluded, residuals)


def _usable(op: str, n_gpus: int, rows: pd.DataFrame, gpu: GpuSpec) -> tuple[pd.DataFrame, Mapping[str, int]]:
    """Return the fastest row of each message size, by size, and the excluded rows by reason."""
    ours = rows[rows["dtype"] == DTYPE]
    # A GPU sends its bytes once, or the share that others hold. An all-reduce may come down to once when the switch
    # adds up (469 GB/s of bus bandwidth were measured over eight 450 GB/s links), so 2 (G - 1) / G is no bound for it.
    once = 1.0 if op == "all_reduce" else (n_gpus - 1) / n_gpus
    possible = ours[ours["latency_s"] > once * ours["bytes"] / gpu.link_bytes_per_s]
    order = possible.sort_values(["bytes", "latency_s"], kind="stable")
    fastest = order.drop_duplicates("bytes").reset_index(drop=True)
    later = np.minimum.accumulate(fastest["latency_s"].to_numpy()[::-1])[::-1]
    steady = fastest[fastest["latency_s"].to_numpy() <= STALL * later].reset_index(drop=True)
    excluded = {
        "other dtype": len(rows) - len(ours),
        "faster than the links": len(ours) - len(possible),
        "another kernel is faster": len(possible) - len(fastest),
        "slower than a larger message": len(fastest) - len(steady),
    }
    return steady, excluded
