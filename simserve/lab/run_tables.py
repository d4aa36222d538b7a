"""Tables of closed-loop runs of real servers."""

import csv
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

import numpy as np

from simserve import catalog
from simserve.catalog.hub import known_model
from simserve.errors import CalibrationError, CatalogError
from simserve.input_files import ANSWER_BYTES, read_file
from simserve.lab.campaigns import ServingRow

NEEDED = (
    *("engine", "engine_version", "gpu", "model", "weight_dtype", "tp", "isl", "osl", "concurrency"),
    *("ttft_ms_mean", "tpot_ms_mean"),
)
"""Required columns of a table of serving runs; `ep`, `kv_dtype` and the knobs of KNOBS are optional."""
KNOBS = ("max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks")
"""Optional columns with the arguments of a run's server, in vLLM's names whatever the engine."""


def read_rows(path: Path) -> list[ServingRow]:
    """Read serving runs from a CSV. Raises CalibrationError."""
    try:
        table = list(csv.DictReader(StringIO(read_file(path, ANSWER_BYTES).decode("utf-8"), newline="")))
    except FileNotFoundError:
        raise CalibrationError(f"{path}: no such file; give a CSV of serving runs") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        text, remedy = getattr(error, "strerror", None) or error, "a log of single requests needs --scenario"
        raise CalibrationError(f"{path}: must be a CSV of serving runs ({text}); {remedy}") from None
    if not table:
        raise CalibrationError(f"{path}: must contain serving runs, got none")
    missing = [name for name in NEEDED if name not in table[0]]
    if missing:
        remedy = "a log of single requests needs --scenario"
        if path.suffix in (".yaml", ".yml"):
            remedy = f"a scenario goes with its log: `simserve validate LOG --scenario {path}`"
        raise CalibrationError(f"{path}: columns {', '.join(missing)} are missing; {remedy}")
    return [row_of(path, line, values) for line, values in enumerate(table, 2)]


def row_of(path: Path, line: int, values: Mapping[str, str]) -> ServingRow:
    """Read a serving run from the columns NEEDED. Raises CalibrationError."""
    short = [name for name in NEEDED if values[name] is None]
    if short:
        raise CalibrationError(f"{path}:{line}: must have {', '.join(short)}, got nothing; fill in the row")
    try:
        whole = {name: int(values[name]) for name in ("tp", "isl", "osl", "concurrency")}
        whole["ep"] = int(values.get("ep") or 1)
        times = {name: float(values[f"{name}_ms_mean"]) / 1e3 for name in ("ttft", "tpot")}
        knobs = {name: int(values[name]) for name in KNOBS if values.get(name)}
    except (TypeError, ValueError) as error:
        raise CalibrationError(f"{path}:{line}: must be numbers ({error}); correct the row") from None
    small = [name for name, value in (whole | times).items() if not 0 < value < np.inf]
    if small:
        raise CalibrationError(f"{path}:{line}: {', '.join(small)} must be positive; correct the row")
    try:
        catalog.load_engine(values["engine"], version=values["engine_version"] or None)
        gpu = catalog.load_gpu(values["gpu"]).name
        model = catalog_model(values["model"])
    except CatalogError as error:
        raise CalibrationError(f"{path}:{line}: {error}") from None
    if whole["osl"] < 2:
        raise CalibrationError(f"{path}:{line}: osl must be at least 2, as a single token has no TPOT; remove the row")
    return ServingRow(
        engine=values["engine"],
        engine_version=values["engine_version"],
        gpu=gpu,
        model=model,
        weight_dtype=values["weight_dtype"],
        ttft_s=times["ttft"],
        tpot_s=times["tpot"],
        kv_dtype=values.get("kv_dtype") or "",
        knobs=knobs,
        **whole,
    )


def catalog_model(name: str) -> str:
    """Map a checkpoint to the catalog: meta-llama/Llama-3.1-8B-Instruct is llama-3.1-8b; one with another context keeps
    its id. Raises CatalogError."""
    known = known_model(name)
    if known is None:
        catalog.load_model(name)  # refuses an unknown name
    return name if known is None or known.context is not None else known.name
