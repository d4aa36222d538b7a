"""Fit every operation of a table of timings, and write a calibration file with its sources."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from simserve.catalog.specs import GpuSpec
from simserve.cost.calibration import SCHEMA
from simserve.errors import CalibrationError, OutputError
from simserve.input_files import read_json
from simserve.lab.kernels import attention, comm, gemm, mla, moe
from simserve.lab.kernels.fit import Fit
from simserve.tables.files import json_text, replace_text

FAMILIES: Sequence[Callable[[pd.DataFrame, GpuSpec], list[Fit]]] = (gemm.fit, attention.fit, comm.fit, moe.fit, mla.fit)
"""Fits by family; each fits its own operations of a table."""

NEEDED = ("gemm", "prefill_attention", "decode_attention")
"""Operations that every step needs."""


def calibrate(table: pd.DataFrame, gpu: GpuSpec) -> list[Fit]:
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


def unfitted(table: pd.DataFrame, fits: Sequence[Fit]) -> list[tuple[str, int]]:
    """List the operations of a table without a fit (matrices and experts by dtype), and their rows.

    Copies to the host have no form to fit.
    """
    table = table[table["op"] != "host_copy"]
    by_dtype = table["op"].isin(("gemm", "moe"))
    names = table["op"].where(~by_dtype, table["op"] + " " + table.get("dtype", ""))
    fitted = {f"{fit.op} {fit.dtype.removesuffix('+ep')}" for fit in fits} | {fit.op for fit in fits}
    return [(str(name), int(n)) for name, n in names.value_counts(sort=False).items() if name not in fitted]


def calibration_data(gpu: str, engine: str, engine_version: str, fits: Sequence[Fit], made: Mapping[str, Any]) -> Any:
    """Return the content of the file; `made` states its sources and date."""
    return {
        "schema": SCHEMA,
        "gpu": gpu,
        "engine": engine,
        "engine_version": engine_version,
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
    """Write a calibration, keeping the file's host constants and, where nothing else has changed, its date. Returns
    whether its kernels changed. Raises OutputError."""
    before = _before(path)
    same = before is not None and {**before, "made": {**before.get("made", {}), "date": None}} == {
        **data,
        "host": before.get("host", {}),
        "made": {**data["made"], "date": None},
    }
    date = before["made"].get("date", today) if same and before is not None else today
    kept = {} if before is None else before.get("host", {})
    make_folder(path.parent)
    replace_text(path, json_text({**data, "made": {**data["made"], "date": date}, "host": kept}))
    return not same


def write_card(path: Path, data: Mapping[str, Any], today: str) -> bool:
    """Write a calibration that was fitted to serving runs, keeping the date of the same one. Returns whether it
    changed. Raises OutputError."""
    before = _before(path)
    date = None if before is None else before.get("made", {}).get("date")
    same = date is not None and before == {**data, "made": {**data["made"], "date": date}}
    make_folder(path.parent)
    replace_text(path, json_text({**data, "made": {**data["made"], "date": date if same else today}}))
    return not same


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


def write_fitted(
    path: Path, base: Path, host: Mapping[str, Mapping[str, Any]], version: str, logs: Sequence[Any]
) -> None:
    """Write the kernels of a calibration with other host constants, of servers of a version. Raises CalibrationError,
    OutputError."""
    before = written(base)
    made = {**before.get("made", {}), "logs": list(logs)}
    make_folder(path.parent)
    replace_text(path, json_text({**before, "made": made, "host": dict(host), "host_version": version}))


def _before(path: Path) -> dict[str, Any] | None:
    try:
        data = read_json(path)
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and data.get("schema") == SCHEMA else None
