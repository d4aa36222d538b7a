"""The table of kernel timings that the fits read, one row per measurement, whatever its origin."""

import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.cost.forms.collective import COLLECTIVES
from simserve.cost.forms.mla import LATENT
from simserve.cost.forms.sparse import SPARSE
from simserve.errors import CalibrationError, OutputError
from simserve.input_files import ANSWER_BYTES, read_file
from simserve.tables.columns import Meaning
from simserve.tables.foreign import read_columns

FITTED = [dtype for dtype in BYTES_PER_VALUE if dtype != "w8a8"]
"""Dtypes that are fitted; w8a8 is assumed to resemble fp8 (cost/calibrated.py)."""

ATTENTION = ("dtype", "kv_dtype", "batch", "tokens", "n_heads", "n_kv_heads", "head_dim", "window")
SHAPES: dict[str, tuple[str, ...]] = {
    "gemm": ("dtype", "m", "n", "k"),
    **dict.fromkeys(("prefill_attention", "decode_attention"), ATTENTION),
    **dict.fromkeys(COLLECTIVES, ("dtype", "n_gpus", "bytes")),
    "host_copy": ("direction", "bytes"),
    "moe": ("dtype", "tokens", "hidden", "inter", "top_k", "n_experts", "tensor", "expert", "routing"),
    **dict.fromkeys(LATENT, ("dtype", "kv_dtype", "batch", "tokens", "n_heads")),
    **dict.fromkeys(SPARSE, ("dtype", "kv_dtype", "model", "n_heads", "batch", "tokens", "keys")),
    "gdn_prefill": ("batch", "tokens", "state_values"),
    "gdn_decode": ("batch", "state_bytes"),
}
"""Columns that describe a measurement, by operation.

gemm: (m, k) activations times (k, n) weights stored in dtype. Attention: `tokens` is the prompt of each of `batch`
requests, or for decode the keys that each attends, including its own; `window` 0 is none. Collectives: `bytes` that
each GPU contributes (all_reduce, reduce_scatter, all_to_all) or ends with (all_gather). host_copy: from or to pinned
memory of the host, `direction` to_device or to_host; a rate, and no form, comes of it. moe: the layer from router
logits on; `inter` of one expert before it is divided over `tensor`; `expert` GPUs share the experts. mla: attention
of DeepSeek-V3, alone (`dtype` of its computation) or as a module with all projections (`dtype` of their weights);
`n_heads` on this GPU. sparse: modules of a `model` of the catalog; `tokens` that each request computes, `keys` it has
then. gdn: convolution and state of one layer; values and bytes of a request's state on this GPU.
"""
TEXTS = frozenset({"dtype", "kv_dtype", "direction", "routing", "kernel", "model", "op"})
NUMBERS = frozenset({"latency_s"}.union(*SHAPES.values())) - TEXTS

MOST_ROWS = 10_000_000
"""Limit on the rows of a table of timings."""


def read_timings(path: Path) -> pd.DataFrame:
    """Read a CSV or parquet table of timings: `op`, the columns of SHAPES for that op, `latency_s`, optional `kernel`.
    Raises CalibrationError."""
    if not path.is_file():
        raise CalibrationError(f"{path}: no such file; give a CSV or parquet table of kernel timings")
    try:
        if path.suffix == ".parquet":
            columns, _ = read_columns(path, _meaning, MOST_ROWS)
            table = pd.DataFrame({name: _none_for_blank(column) for name, column in columns.items()})
        else:
            table = pd.read_csv(BytesIO(read_file(path, ANSWER_BYTES, may_be_gzip=True)))
    except (ValueError, OSError, EOFError, zlib.error, OutputError) as error:
        text = getattr(error, "strerror", None) or error
        raise CalibrationError(f"{path}: must be a table of timings ({text})") from None
    return _with_dtypes(_with_numbers(checked(table, str(path)), str(path)), str(path))


def _meaning(name: str) -> Meaning | None:
    return "text" if name in TEXTS else "number" if name in NUMBERS else None


def _none_for_blank(column: NDArray[Any]) -> NDArray[Any]:
    return np.array([cell or None for cell in column.tolist()], np.object_) if column.dtype.kind == "U" else column


def checked(table: pd.DataFrame, place: str) -> pd.DataFrame:
    """Return the table if it has what its operations need. Raises CalibrationError."""
    missing = [name for name in ("op", "latency_s") if name not in table]
    if missing:
        got = ", ".join(map(str, table.columns))[:200]
        raise CalibrationError(f"{place}: columns {', '.join(missing)} are missing, got {got}; add them")
    for name in table["op"].unique():
        if name not in SHAPES:
            raise CalibrationError(f"{place}: no such op, got '{name}'; there are {', '.join(SHAPES)}")
    for op, columns in SHAPES.items():
        rows = table[table["op"] == op]
        lacking = [name for name in columns if len(rows) and (name not in rows or rows[name].isna().any())]
        if lacking:
            raise CalibrationError(f"{place}: op {op} needs {', '.join(lacking)} in every row; fill them in")
    return table


def rows_of(table: pd.DataFrame, op: str) -> pd.DataFrame:
    """Return the rows of one operation with numeric shape columns; missing columns are empty if it has no rows."""
    rows = table[table["op"] == op].reset_index(drop=True)
    if rows.empty:
        rows = rows.reindex(columns=list(dict.fromkeys((*rows.columns, *SHAPES[op]))))
    numbers = [name for name in SHAPES[op] if name not in TEXTS]
    return rows.astype(dict.fromkeys(numbers, "float64"))


def _with_dtypes(table: pd.DataFrame, place: str) -> pd.DataFrame:
    """Return a table with our names of dtypes. Raises CalibrationError."""
    for name in ("dtype", "kv_dtype"):
        users = [op for op, columns in SHAPES.items() if name in columns]
        rows = table[table["op"].isin(users)]
        bad = rows.index[~rows[name].isin(FITTED)] if len(rows) else rows.index
        if len(bad):
            known = ", ".join(FITTED)
            raise CalibrationError(
                f"{place}: row {bad[0] + 1}: {name} must be one of {known}, got '{table[name][bad[0]]}'; "
                f"correct or remove it ({len(bad)} of {len(table)} rows are affected)"
            )
    return table


def _with_numbers(table: pd.DataFrame, place: str) -> pd.DataFrame:
    """Return a checked table with numeric columns. Raises CalibrationError for invalid counts or times."""
    shapes = dict.fromkeys(name for columns in SHAPES.values() for name in columns if name not in TEXTS)
    for name in ("latency_s", *(name for name in shapes if name in table)):
        users = [op for op, columns in SHAPES.items() if name in ("latency_s", *columns)]
        column = table[name].astype(str) if table[name].dtype == np.bool_ else table[name]  # True is no number
        numbers = pd.to_numeric(column, errors="coerce")
        good = np.isfinite(numbers) & ((numbers > 0) | ((numbers == 0) & (name == "window")))
        bad = table.index[table["op"].isin(users) & ~good]
        if len(bad):
            unit = " of seconds" if name == "latency_s" else ""
            raise CalibrationError(
                f"{place}: row {bad[0] + 1}: {name} must be a positive number{unit}, got {table[name][bad[0]]}; "
                f"correct or remove it ({len(bad)} of {len(table)} rows are affected)"
            )
        table = table.assign(**{name: numbers})
    return table
