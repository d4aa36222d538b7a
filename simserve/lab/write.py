"""Calibration files: kernels fitted to a table of timings, or those of another card with factors, and the host."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd

from simserve.catalog.specs import GpuSpec
from simserve.cost.calibration import SCHEMA, Calibration, calibration_path, launch_factor, nearest, read_calibration
from simserve.errors import CalibrationError, OutputError
from simserve.input_files import read_json
from simserve.lab.fit import Theta, rounded
from simserve.lab.kernels import KernelFit, attention, comm, gemm, mla, moe, sparse, state
from simserve.lab.runs import MeasuredRun
from simserve.lab.server import ATTENTION, slowed
from simserve.tables.files import json_text, replace_text

FACTORS: Mapping[str, tuple[str, ...]] = {
    "matrices": ("gemm", "moe"),
    "attention": ATTENTION,
    "collectives": ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    "launches": (),
}
"""Operations with work that each factor of a card slows; launches: what kernels take whatever their work, and gaps."""

ANY_VERSION = "0"
"""Version of launches of runs that do not all name theirs."""

FitFamily = Callable[[pd.DataFrame, GpuSpec], list[KernelFit]]

FAMILIES: Sequence[FitFamily] = (gemm.fit, attention.fit, comm.fit, moe.fit, mla.fit, sparse.fit, state.fit)
"""Fits by family; each fits its own operations of a table."""

NEEDED = ("gemm", "prefill_attention", "decode_attention")
"""Operations that every step needs."""


@dataclass(frozen=True)
class FittedFactor:
    """A factor on the kernels of another card; low and high: the ends of fits that each leave a part out."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LeftOutRuns:
    """Mean absolute errors over the runs, each predicted by a fit without its part."""

    scaled_frac: float
    """Error of kernels scaled by the data sheet alone."""
    fitted_frac: float
    spread: float
    """Root mean square of the log ratios of the fitted ones."""


@dataclass(frozen=True)
class CardFit:
    """Factors by name, those of launches by version, and what they are worth."""

    base: str
    """The calibration with the kernels that the factors slow."""
    fitted: Mapping[str, FittedFactor]
    as_scaled: Mapping[str, str]
    """Why each other factor stays 1."""
    errors: Mapping[str, LeftOutRuns]
    parts: tuple[str, ...]
    versions: tuple[str, ...]
    """Versions with launches of their own, the newest last."""


def calibrate(table: pd.DataFrame, gpu: GpuSpec) -> list[KernelFit]:
    """Fit all operations of a table. Raises CalibrationError where one that every step needs cannot be fitted."""
    fits = [fit for family in FAMILIES for fit in family(table, gpu)]
    missing = [op for op in NEEDED if not any(fit.op == op for fit in fits)]
    if missing:
        counts = ", ".join(f"{op}: {int((table['op'] == op).sum())} rows" for op in missing)
        raise CalibrationError(
            f"too few usable rows to fit ({counts}); add measurements of other shapes, "
            "or check that dtype is known and latency_s is in seconds, without host time"
        )
    return fits


def source_of(path: Path) -> dict[str, str]:
    """Return a file by its name and digest, as calibrations name their sources."""
    return {"file": path.name, "sha256": sha256(path.read_bytes()).hexdigest()}


def with_held_out_kernels(name: str) -> Calibration:
    """Return a calibration with its errors on held-out kernels, by `<gpu>/<engine>` or path. Raises
    CalibrationError."""
    calibration = read_calibration(calibration_path(name))
    if calibration.runs is not None:
        rule = f"{name} is fitted to serving runs, without kernels held out"
        raise CalibrationError(f"{rule}; validate a table of runs, or give {calibration.runs.kernels_of}")
    return calibration


def unfitted(table: pd.DataFrame, fits: Sequence[KernelFit]) -> list[tuple[str, int]]:
    """List the operations of a table without a fit (matrices and experts by dtype), and their rows. Copies to the host
    have no form to fit."""
    table = table[table["op"] != "host_copy"]
    by_dtype = table["op"].isin(("gemm", "moe"))
    names = table["op"].where(~by_dtype, table["op"] + " " + table.get("dtype", ""))
    fitted = {f"{fit.op} {fit.dtype.removesuffix('+ep')}" for fit in fits} | {fit.op for fit in fits}
    return [(str(name), int(n)) for name, n in names.value_counts(sort=False).items() if name not in fitted]


def calibration_data(gpu: str, engine: str, version: str, fits: Sequence[KernelFit], made: Mapping[str, Any]) -> Any:
    """Return the content of the file; `made` states its sources and date."""
    return {
        "schema": SCHEMA,
        "gpu": gpu,
        "engine": engine,
        "engine_version": version,
        "made": dict(made),
        "kernels": [
            {
                "op": fit.op,
                "dtype": fit.dtype,
                "coefficients": asdict(fit.form),
                "n_rows": fit.n_rows,
                "excluded": dict(fit.excluded),
                "held_out": asdict(fit.residuals),
            }
            for fit in fits
        ],
    }


def write_calibration(path: Path, data: Mapping[str, Any], today: str) -> bool:
    """Write a calibration, keeping the file's host constants where it has none of its own and, where nothing else has
    changed, its date. Returns whether anything changed. Raises OutputError."""
    before = _before(path) or {}
    whole = {**data, "host": data.get("host", before.get("host", {}))}
    made = before.get("made", {})
    same = {**before, "made": {**made, "date": None}} == {**whole, "made": {**data["made"], "date": None}}
    make_folder(path.parent)
    date = made.get("date", today) if same else today
    replace_text(path, json_text({**whole, "made": {**data["made"], "date": date}}))
    return not same


def card_content(base: Mapping[str, Any], gpu: str, theta: Theta, versions: Sequence[str]) -> dict[str, Any]:
    """Return a calibration of a card: kernels of another with the factors on their work, and launches by version."""
    kernels = slowed(base["kernels"], {op: theta.get(name, 1.0) for name, ops in FACTORS.items() for op in ops})
    before = launch_factor(base.get("launches", {}), "")
    named = {each: f"launches {each}" for each in versions} or {ANY_VERSION: "launches"}
    launches = {each: rounded(before * theta.get(key, 1.0)) for each, key in named.items()}
    return {**base, "gpu": gpu, "kernels": kernels, "host": {}, "launches": launches}


def base_of(gpu: str, engine: str, donor: str | None) -> str:
    """Name the timed calibration that is scaled to a card. Raises CalibrationError for a card with its own."""
    name = nearest(gpu, engine, donor)
    if read_calibration(calibration_path(name)).runs is not None:
        name = nearest(gpu, engine, donor, own=False)
    if name == f"{gpu}/{engine}":
        rule = f"{name} has timed kernels, which serving runs do not replace"
        raise CalibrationError(f"{rule}; fit the engine's host with simserve calibrate --host or --logs")
    return name


def card_data(
    fit: CardFit, runs: Sequence[MeasuredRun], files: Sequence[Mapping[str, Any]], unused: Theta
) -> dict[str, Any]:
    """Return the content of the file; files: the tables with their SHA-256; unused: rows of these by reason."""
    path = calibration_path(fit.base)
    base = read_json(path)
    theta = {name: each.value for name, each in fit.fitted.items()}
    section = {
        "n_rows": len(runs),
        "models": sorted({run.model for run in runs}),
        "files": list(files),
        "unused": dict(unused),
        "kernels_of": {"name": fit.base, "sha256": read_calibration(path).sha256},
        "fitted": {name: asdict(each) for name, each in fit.fitted.items()},
        "as_scaled": dict(fit.as_scaled),
        "left_out": {"parts": list(fit.parts), "errors": {name: asdict(each) for name, each in fit.errors.items()}},
    }
    data = card_content(base, runs[0].gpu, theta, fit.versions)
    made = {key: value for key, value in base["made"].items() if key != "date"}
    return {**data, "made": made, "runs": section}


def make_folder(path: Path) -> None:
    """Make a folder for results. Raises OutputError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: must be a folder, got {error.strerror}; choose another place") from error


def written(path: Path) -> dict[str, Any]:
    """Read an existing calibration. Raises CalibrationError."""
    before = _before(path)
    if before is None:
        raise CalibrationError(f"{path}: no such calibration; run simserve calibrate first, for its kernels")
    return before


def write_host(path: Path, constants: Mapping[str, float], source: str) -> None:
    """Put fitted host constants into an existing calibration. Raises CalibrationError, OutputError."""
    before = written(path)
    host = {name: {"value": value, "source": source} for name, value in constants.items()}
    replace_text(path, json_text({**before, "host": host}))


def _before(path: Path) -> dict[str, Any] | None:
    try:
        data = read_json(path)
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and data.get("schema") == SCHEMA else None
