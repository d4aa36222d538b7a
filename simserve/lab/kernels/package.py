"""Kernel timings of the package `aiconfigurator-core` (NVIDIA, Apache-2.0), converted to our table.

Its parquet files lie under systems/data/<system>/<family>/<backend>/<version>/; latencies are milliseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from re import findall

import pandas as pd

from simserve.errors import CalibrationError
from simserve.lab.kernels.table import MOST_ROWS, checked
from simserve.tables.foreign import read_columns

PACKAGE = "aiconfigurator-core"
SYSTEMS = {"rtx-pro-6000": "rtx_pro_6000_server"}
"""The package's names of GPUs, where they differ from ours with underscores."""

DTYPES = {
    "bfloat16": "bf16",
    "half": "bf16",
    "float16": "bf16",
    "int8_wo": "int8",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
}
"""The package's names of dtypes, where they differ from ours."""

MLA_MODEL = "deepseek-ai/DeepSeek-V3"
"""The model of the attention modules that are read; others have different widths."""


@dataclass(frozen=True)
class TimingSource:
    """A file of timings."""

    file: str
    """Path inside the package."""
    sha256: str
    n_rows: int


def read_package(gpu: str, engine: str) -> tuple[pd.DataFrame, tuple[TimingSource, ...], str]:
    """Return all timings of a GPU under an engine's kernels, their sources, and the engine's version.

    The version is the newest with matrices; other operations come from the newest version that has them.

    Raises CalibrationError.
    """
    root = _root()
    system = root / SYSTEMS.get(gpu, gpu.replace("-", "_"))
    if not system.is_dir():
        raise CalibrationError(f"{PACKAGE} has no timings of {gpu}; it has {', '.join(_names(root))}")
    kernels = _newest(system / "gemm" / engine, "gemm_perf")
    if kernels is None:
        raise CalibrationError(f"{PACKAGE} has no timings of {gpu} under {engine}")
    engine_version = kernels.parent.name
    tables, sources = [], []
    for family, name, read in FILES:
        folder = system / family / ("nccl" if name == "nccl_perf" else engine)
        same = folder / engine_version / f"{name}.parquet"
        path = same if same.is_file() else _newest(folder, name)
        if path is not None:
            columns, _ = read_columns(path, lambda _: "value", MOST_ROWS)
            table = read(pd.DataFrame(columns).infer_objects())
            tables.append(table)
            sources.append(TimingSource(str(path.relative_to(root)), sha256(path.read_bytes()).hexdigest(), len(table)))
    return checked(pd.concat(tables, ignore_index=True), PACKAGE), tuple(sources), engine_version


def package_version() -> str:
    """Return the installed version. Raises CalibrationError."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        raise CalibrationError(f"{PACKAGE} is not installed; pip install 'simserve[calibrate]'") from None


def _root() -> Path:
    package_version()
    spec = find_spec("aiconfigurator_core")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "systems" / "data"


def _names(root: Path) -> list[str]:
    return sorted(path.name.replace("_", "-") for path in root.iterdir() if path.is_dir())


def _newest(folder: Path, name: str) -> Path | None:
    """Return the file of the newest version that has it."""
    paths = sorted(folder.glob(f"*/{name}.parquet"), key=lambda path: _as_numbers(path.parent.name))
    return paths[-1] if paths else None


def _as_numbers(text: str) -> list[tuple[int, str]]:
    """Return a sort key with 1.2 < 1.3.0rc9 < 1.3.0rc20."""
    return [(int(number), word) for number, word in findall(r"(\d+)([a-z]*)", text)]


def _dtypes(column: "pd.Series[str]") -> "pd.Series[str]":
    return column.map(lambda name: DTYPES.get(name, name))


def _gemm(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "op": "gemm",
            "dtype": _dtypes(rows["gemm_dtype"]),
            "m": rows["m"],
            "n": rows["n"],
            "k": rows["k"],
            "kernel": rows["kernel_source"],
            "latency_s": rows["latency"] / 1e3,
        }
    )


def _attention(op: str, tokens: "Callable[[pd.DataFrame], pd.Series[int]]", rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "op": op,
            "dtype": _dtypes(rows["attn_dtype"]),
            "kv_dtype": _dtypes(rows["kv_cache_dtype"]),
            "batch": rows["batch_size"],
            "tokens": tokens(rows),
            "n_heads": rows["num_heads"],
            "n_kv_heads": rows["num_key_value_heads"],
            "head_dim": rows["head_dim"],
            "window": rows.get("window_size", 0),
            "kernel": rows["kernel_source"],
            "latency_s": rows["latency"] / 1e3,
        }
    )


def _prefill_attention(rows: pd.DataFrame) -> pd.DataFrame:
    return _attention("prefill_attention", lambda r: r["isl"], rows)


def _decode_attention(rows: pd.DataFrame) -> pd.DataFrame:
    """Read decode timings; `step` is the history before the query."""
    return _attention("decode_attention", lambda r: r["step"] + 1, rows)


def _custom_all_reduce(rows: pd.DataFrame) -> pd.DataFrame:
    """Read all-reduces; `message_size` counts two-byte elements, and eager rows, with host time, are left out."""
    rows = rows[~rows["kernel_source"].str.contains("eager")]
    return pd.DataFrame(
        {
            "op": "all_reduce",
            "dtype": _dtypes(rows["allreduce_dtype"]),
            "n_gpus": rows["num_gpus"],
            "bytes": rows["message_size"] * 2,
            "kernel": rows["kernel_source"],
            "latency_s": rows["latency"] / 1e3,
        }
    )


def _nccl(rows: pd.DataFrame) -> pd.DataFrame:
    width = rows["nccl_dtype"].map(lambda name: 1 if name == "int8" else 2)
    return pd.DataFrame(
        {
            "op": rows["op_name"].replace({"alltoall": "all_to_all"}),
            "dtype": _dtypes(rows["nccl_dtype"]),
            "n_gpus": rows["num_gpus"],
            "bytes": rows["message_size"] * width,
            "kernel": rows["kernel_source"],
            "latency_s": rows["latency"] / 1e3,
        }
    )


def _moe(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "op": "moe",
            "dtype": _dtypes(rows["moe_dtype"]),
            "tokens": rows["num_tokens"],
            "hidden": rows["hidden_size"],
            "inter": rows["inter_size"],
            "top_k": rows["topk"],
            "n_experts": rows["num_experts"],
            "tensor": rows["moe_tp_size"],
            "expert": rows["moe_ep_size"],
            "routing": rows["distribution"],
            "kernel": rows["kernel_source"],
            "latency_s": rows["latency"] / 1e3,
        }
    )


def _mla(op: str, tokens: "Callable[[pd.DataFrame], pd.Series[int]]", rows: pd.DataFrame) -> pd.DataFrame:
    """Read latent attention; `num_heads` counts one GPU's, and a module names its model and its projections' dtype."""
    if "model" in rows:
        rows = rows[rows["model"] == MLA_MODEL]
    return pd.DataFrame(
        {
            "op": op,
            "dtype": _dtypes(rows["gemm_type" if "gemm_type" in rows else "mla_dtype"]),
            "kv_dtype": _dtypes(rows["kv_cache_dtype"]),
            "batch": rows["batch_size"],
            "tokens": tokens(rows),
            "n_heads": rows["num_heads"],
            "kernel": rows["kernel_source"],
            "latency_s": rows["latency"] / 1e3,
        }
    )


def _mla_prefill(rows: pd.DataFrame) -> pd.DataFrame:
    return _mla("mla_prefill", lambda r: r["isl"], rows)


def _mla_decode(rows: pd.DataFrame) -> pd.DataFrame:
    return _mla("mla_decode", lambda r: r["step"] + 1, rows)


def _mla_prefill_module(rows: pd.DataFrame) -> pd.DataFrame:
    return _mla("mla_prefill_module", lambda r: r["isl"], rows)


def _mla_decode_module(rows: pd.DataFrame) -> pd.DataFrame:
    return _mla("mla_decode_module", lambda r: r["step"] + 1, rows)


FILES: tuple[tuple[str, str, Callable[[pd.DataFrame], pd.DataFrame]], ...] = (
    ("gemm", "gemm_perf", _gemm),
    ("attention", "context_attention_perf", _prefill_attention),
    ("attention", "generation_attention_perf", _decode_attention),
    ("comm", "custom_allreduce_perf", _custom_all_reduce),
    ("comm", "nccl_perf", _nccl),
    ("moe", "moe_perf", _moe),
    ("mla", "context_mla_perf", _mla_prefill),
    ("mla", "generation_mla_perf", _mla_decode),
    ("mla", "mla_context_module_perf", _mla_prefill_module),
    ("mla", "mla_generation_module_perf", _mla_decode_module),
)
"""(family folder, file, its reader)."""
