"""Fit of expert layers: one form per dtype, and a second where engines use another kernel for shared experts."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.catalog.specs import GpuSpec
from simserve.cost.forms.moe import MATRICES, ExpertLoad, MoeLayer, load_of
from simserve.lab.kernels import KernelFit, Residuals, fit_form, held_out
from simserve.lab.kernels.table import FITTED, rows_of
from simserve.tables.columns import Flags

SHARED = "+ep"
"""Suffix of a KernelFit's dtype for layers with experts shared among GPUs, where those use another kernel."""

SHAPE = ["hidden", "inter", "top_k", "n_experts"]
LAYOUT = [*SHAPE, "tensor", "expert"]
SERIES = [*LAYOUT, "routing"]

LOAD = ["rows", "touched", "remote_rows", "held"]
"""Columns of an ExpertLoad."""

FEWEST_SHAPES = 4
"""Fewest models to hold out whole ones; with fewer, ways to divide them are held out."""

FEWEST_ROWS = 30
"""Fewest rows for nine coefficients."""

MEMORY_BOUND = 1 / 3
"""Share of the measured time from which reading weights matters; repeated measurements find small ones in the L2."""

ROUTING = r"balanced|uniform|power_law_[0-9.]+"

NOT_GATED = {(2688, 1856), (4096, 2688), (1024, 2688), (2048, 5120)}
"""(hidden, inter) of the Nemotron 3 models: two matrices per expert, and latent routing in the large ones."""


def fit(table: pd.DataFrame, gpu: GpuSpec) -> list[KernelFit]:
    """Fit every dtype measured, and its dtype + SHARED where shared experts use another kernel. The kernel measured for
    the most models counts. Whole models are held out."""
    rows = rows_of(table, "moe")
    rows = rows.assign(kernel=rows["kernel"].fillna("") if "kernel" in rows else "")
    fits = []
    for dtype in FITTED:
        ours = rows[rows["dtype"] == dtype]
        alone, shared = ours[ours["expert"] == 1], ours[ours["expert"] > 1]
        kernels = [_kernel(alone), _kernel(shared)]
        parts = {dtype: ours} if None in kernels or len(set(kernels)) == 1 else {dtype: alone, dtype + SHARED: shared}
        fitted = [_fit_one(name, dtype, part, gpu) for name, part in parts.items() if len(part)]
        fits += [fit for fit in fitted if fit]
    return fits


def _kernel(rows: pd.DataFrame) -> str | None:
    """Return the kernel measured for the most models, or a faster one of the same layers, which servers are set to use.
    The first by name on a tie."""
    if rows.empty:
        return None
    usual = rows.drop_duplicates(["kernel", *SHAPE]).groupby("kernel").size().idxmax()
    times = rows.pivot_table("latency_s", [*SERIES, "tokens"], "kernel").dropna(subset=[usual])
    return str(times.div(times[usual], axis=0).median().sort_index().idxmin())


def _fit_one(name: str, dtype: str, rows: pd.DataFrame, gpu: GpuSpec) -> KernelFit | None:
    """Fit one dtype; None with too few rows."""
    kept, excluded = _usable(dtype, rows, gpu)
    if len(kept) < FEWEST_ROWS:
        return None
    held = _held_out(kept)
    if (~held).sum() < FEWEST_ROWS or not held.any():
        return None
    measured = kept["latency_s"].to_numpy()

    def seconds(form: MoeLayer, chosen: Flags) -> Any:
        part = kept[chosen]
        load = ExpertLoad(*(part[column].to_numpy() for column in LOAD))
        inter = (part["inter"] / part["tensor"]).to_numpy()
        return form.loaded_s(gpu, dtype, load, part["hidden"].to_numpy(), inter)

    form = fit_form(MoeLayer, lambda form: seconds(form, ~held), measured[~held])
    return KernelFit("moe", name, form, int((~held).sum()), excluded, Residuals.of(seconds(form, held), measured[held]))


def _held_out(rows: pd.DataFrame) -> Flags:
    """Mark whole models as held out; ways to divide them where there are few models or the hash selects none."""
    models = held_out(rows, SHAPE)
    few = len(rows.drop_duplicates(SHAPE)) < FEWEST_SHAPES
    return held_out(rows, LAYOUT) if few or not models.any() else models


def _usable(dtype: str, rows: pd.DataFrame, gpu: GpuSpec) -> tuple[pd.DataFrame, Mapping[str, int]]:
    """Return the rows that a fit may use, with their loads, and the excluded rows by reason."""
    excluded = {}

    def keep(name: str, rows: pd.DataFrame, good: "pd.Series[bool]") -> pd.DataFrame:
        excluded[name] = int((~good).sum())
        return rows[good]

    rows = keep("another kernel", rows, rows["kernel"] == _kernel(rows))
    rows = keep("routing unknown", rows, rows["routing"].str.fullmatch(ROUTING))
    gated = [(hidden, inter) not in NOT_GATED for hidden, inter in zip(rows["hidden"], rows["inter"], strict=True)]
    rows = keep("two matrices an expert", rows, pd.Series(gated, index=rows.index, dtype=bool))
    rows = keep("more GPUs than a node has", rows, rows["tensor"] * rows["expert"] <= gpu.gpus_per_node)
    rows = _with_load(rows)
    read = rows["touched"] * MATRICES * rows["hidden"] * rows["inter"] / rows["tensor"] * BYTES_PER_VALUE[dtype]
    memory = read / gpu.hbm_bytes_per_s / rows["latency_s"]
    rows = keep("weights stay in the L2", rows, (read > 2 * gpu.l2_bytes) | (memory < MEMORY_BOUND))
    # One impossible row shows that its router did not follow its name, so the whole series is left out.
    whole = (memory[rows.index] <= 1).groupby([rows[column] for column in SERIES]).transform("all")
    return keep("series reads faster than memory", rows, whole.astype(bool)), excluded


def _with_load(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the columns of LOAD."""
    if rows.empty:
        return rows.assign(**dict.fromkeys(LOAD, 0.0))
    parts = []
    for _, part in rows.groupby(["top_k", "n_experts", "expert", "routing"]):
        top_k, n_experts, expert = (int(part[column].iloc[0]) for column in ("top_k", "n_experts", "expert"))
        load = load_of(str(part["routing"].iloc[0]), part["tokens"].to_numpy(), top_k, n_experts, expert)
        parts.append(part.assign(**{column: getattr(load, column) for column in LOAD}))
    return pd.concat(parts)
