"""Kernel timings of the package `aiconfigurator-core` (NVIDIA, Apache-2.0), converted to our table.

Its parquet files lie under systems/data/<system>/<family>/<backend>/<version>/; latencies are milliseconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from re import findall
from typing import Any

import pandas as pd

from simserve.errors import CalibrationError
from simserve.lab.kernels.sparse import SPARSE_MODELS
from simserve.lab.kernels.state import state_bytes, state_values, whole_layers
from simserve.lab.kernels.table import MOST_ROWS, checked
from simserve.tables.foreign import read_columns

PACKAGE = "aiconfigurator-core"
SYSTEMS = {"rtx-pro-6000": "rtx_pro_6000_server"}
"""The package's names of GPUs, where they differ from ours with underscores."""

DTYPES = {
    **dict.fromkeys(("bfloat16", "half", "float16"), "bf16"),
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
    root = package_folder() / "data"
    system = root / SYSTEMS.get(gpu, gpu.replace("-", "_"))
    if not system.is_dir():
        names = sorted(path.name.replace("_", "-") for path in root.iterdir() if path.is_dir())
        raise CalibrationError(f"{PACKAGE} has no timings of {gpu}; it has {', '.join(names)}")
    kernels = _newest(system / "gemm" / engine, "gemm_perf")
    if kernels is None:
        raise CalibrationError(f"{PACKAGE} has no timings of {gpu} under {engine}")
    engine_version = kernels.parent.name
    tables, sources = [], []
    for file in (*FILES, *BORROWED.get(engine, ())):
        folder = system / file.family / (file.backend or engine)
        same = folder / engine_version / f"{file.name}.parquet"
        path = same if same.is_file() else _newest(folder, file.name)
        if path is None:
            continue
        columns, _ = read_columns(path, lambda _: "value", MOST_ROWS)
        if len(table := file.read(pd.DataFrame(columns).infer_objects())):
            tables.append(table)
            sources.append(TimingSource(str(path.relative_to(root)), sha256(path.read_bytes()).hexdigest(), len(table)))
    return checked(pd.concat(tables, ignore_index=True), PACKAGE), tuple(sources), engine_version


def package_version() -> str:
    """Return the installed version. Raises CalibrationError."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        raise CalibrationError(f"{PACKAGE} is not installed; pip install 'simserve[calibrate]'") from None


def package_folder() -> Path:
    """Return the folder with what was measured. Raises CalibrationError where the package is not installed."""
    package_version()
    return Path(str(resources.files("aiconfigurator_core"))) / "systems"


def _newest(folder: Path, name: str) -> Path | None:
    """Return the file of the newest version that has it."""
    paths = sorted(folder.glob(f"*/{name}.parquet"), key=lambda path: _as_numbers(path.parent.name))
    return paths[-1] if paths else None


def _as_numbers(text: str) -> list[tuple[int, str]]:
    """Return a sort key with 1.2 < 1.3.0rc9 < 1.3.0rc20."""
    return [(int(number), word) for number, word in findall(r"(\d+)([a-z]*)", text)]


def _dtypes(column: "pd.Series[str]") -> "pd.Series[str]":
    return column.map(lambda name: DTYPES.get(name, name))


def _of_mla_model(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows.model == MLA_MODEL] if "model" in rows else rows


def _of_sparse(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows.model.isin(SPARSE_MODELS) & ~rows.op_name.str.contains("skip_indexer")]


def _in_graphs(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[~rows.kernel_source.str.contains("eager")]


ComputedColumns = Mapping[str, Callable[[pd.DataFrame], "pd.Series[Any]"]]

PROMPT: ComputedColumns = {"tokens": lambda rows: rows.isl}
CONTEXT: ComputedColumns = {"tokens": lambda rows: rows.step + 1}
"""`step` is the history before the query."""


@dataclass(frozen=True)
class TimingFile:
    """A file of the package, and where it has the columns of our table."""

    family: str
    """Its folder."""
    name: str
    op: str
    named: Mapping[str, str]
    """Their names of columns by ours."""
    computed: ComputedColumns
    keep: Callable[[pd.DataFrame], pd.DataFrame] = lambda rows: rows
    backend: str | None = None
    """What was timed, where it is not the engine."""

    def read(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows as our table has them."""
        rows = self.keep(rows)
        columns = {ours: rows[theirs] for ours, theirs in self.named.items()}
        computed = {ours: column(rows) for ours, column in self.computed.items()}
        timed = {"kernel": rows.kernel_source, "latency_s": rows.latency / 1e3}
        return pd.DataFrame({"op": self.op, **columns, **computed, **timed})


ATTENTION = {"batch": "batch_size", "n_heads": "num_heads", "n_kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
WINDOW_DTYPES: ComputedColumns = {
    "dtype": lambda rows: _dtypes(rows.attn_dtype),
    "kv_dtype": lambda rows: _dtypes(rows.kv_cache_dtype),
    "window": lambda rows: rows.get("window_size", pd.Series(0, rows.index)),
}

MLA = {"batch": "batch_size", "n_heads": "num_heads"}
"""`num_heads` counts one GPU's."""

MLA_DTYPES: ComputedColumns = {
    "dtype": lambda rows: _dtypes(rows["gemm_type" if "gemm_type" in rows else "mla_dtype"]),
    "kv_dtype": lambda rows: _dtypes(rows.kv_cache_dtype),
}
"""A module names its model and its projections' dtype."""

CHUNK = {**MLA, "tokens": "isl"}
SPARSE: ComputedColumns = {
    **MLA_DTYPES,
    "model": lambda rows: rows.model.map(SPARSE_MODELS),
    "keys": lambda rows: rows.step + rows.isl,
}

PROMPTS = {"batch": "batch_size", "tokens": "seq_len"}
STATE: ComputedColumns = {"state_values": state_values, "state_bytes": state_bytes}

MOE = {
    "tokens": "num_tokens",
    "hidden": "hidden_size",
    "inter": "inter_size",
    "top_k": "topk",
    "n_experts": "num_experts",
    "tensor": "moe_tp_size",
    "expert": "moe_ep_size",
    "routing": "distribution",
}

ALL_REDUCE: ComputedColumns = {
    "dtype": lambda rows: _dtypes(rows.allreduce_dtype),
    "bytes": lambda rows: rows.message_size * 2,
}
"""`message_size` counts two-byte elements; eager rows have host time, and are left out."""

NCCL: ComputedColumns = {
    "op": lambda rows: rows.op_name.replace({"alltoall": "all_to_all"}),
    "dtype": lambda rows: _dtypes(rows.nccl_dtype),
    "bytes": lambda rows: rows.message_size * rows.nccl_dtype.map(lambda name: 1 if name == "int8" else 2),
}

GEMM: ComputedColumns = {"dtype": lambda rows: _dtypes(rows.gemm_dtype)}
EXPERTS = TimingFile("moe", "moe_perf", "moe", MOE, {"dtype": lambda rows: _dtypes(rows.moe_dtype)})

FILES = (
    TimingFile("gemm", "gemm_perf", "gemm", {each: each for each in "mnk"}, GEMM),
    TimingFile("attention", "context_attention_perf", "prefill_attention", ATTENTION, {**WINDOW_DTYPES, **PROMPT}),
    TimingFile("attention", "generation_attention_perf", "decode_attention", ATTENTION, {**WINDOW_DTYPES, **CONTEXT}),
    TimingFile("comm", "custom_allreduce_perf", "all_reduce", {"n_gpus": "num_gpus"}, ALL_REDUCE, _in_graphs),
    TimingFile("comm", "nccl_perf", "", {"n_gpus": "num_gpus"}, NCCL, backend="nccl"),
    EXPERTS,
    TimingFile("mla", "context_mla_perf", "mla_prefill", MLA, {**MLA_DTYPES, **PROMPT}, _of_mla_model),
    TimingFile("mla", "generation_mla_perf", "mla_decode", MLA, {**MLA_DTYPES, **CONTEXT}, _of_mla_model),
    TimingFile("mla", "mla_context_module_perf", "mla_prefill_module", MLA, {**MLA_DTYPES, **PROMPT}, _of_mla_model),
    TimingFile("mla", "mla_generation_module_perf", "mla_decode_module", MLA, {**MLA_DTYPES, **CONTEXT}, _of_mla_model),
    TimingFile("sparse_attention", "dsa_context_module_perf", "sparse_prefill_module", CHUNK, SPARSE, _of_sparse),
    TimingFile("sparse_attention", "dsa_generation_module_perf", "sparse_decode_module", CHUNK, SPARSE, _of_sparse),
    TimingFile("linear_attention", "gdn_perf", "gdn_prefill", PROMPTS, STATE, partial(whole_layers, "context")),
    TimingFile("linear_attention", "gdn_perf", "gdn_decode", PROMPTS, STATE, partial(whole_layers, "generation")),
)

TRTLLM_EXPERTS = 'moe_dtype == "fp8_block" and kernel_source.str.contains("flashinfer_trtllm")'
"""Experts of TensorRT-LLM's backend TRTLLM on Blackwell, which FlashInfer has taken over."""

BORROWED = {"trtllm": [replace(EXPERTS, keep=lambda rows: rows.query(TRTLLM_EXPERTS), backend="vllm")]}
"""Kernels of an engine that were timed under another one alone; TRTLLM's in nvfp4 were timed under both."""
