"""Folder of a sweep: the journal of finished runs, and the answer once all are finished."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.study.sweep.sweep import Sweep
from simserve.study.sweep.table import sweep_table
from simserve.tables.files import json_text, replace_text, replace_with
from simserve.tables.folder import check_folder, partial_files
from simserve.tables.kinds import SWEEP, UNFINISHED_SWEEP

PAGE = "report.html"


def check_sweep_folder(directory: Path) -> None:
    """Raise OutputError unless `directory` can be made or holds nothing but a sweep and its partial files."""
    check_folder(directory, UNFINISHED_SWEEP)


def clean_sweep_folder(directory: Path) -> None:
    """Delete the partial files of a killed sweep; the caller must hold the journal."""
    for partial in partial_files(directory, SWEEP):
        partial.unlink(missing_ok=True)


def withdraw(directory: Path) -> None:
    """Delete an earlier answer; the journal keeps its runs."""
    for name in (*sorted(SWEEP.required_files), PAGE):
        (directory / name).unlink(missing_ok=True)


def write_sweep(directory: Path, sweep: Sweep, result: Mapping[str, Any], page: str) -> None:
    """Write page, answer and table, each whole or not at all; raise OutputError.

    The files that mark a finished sweep come last; the journal keeps finished runs.
    """
    withdraw(directory)
    replace_text(directory / PAGE, page)
    replace_text(directory / "sweep.json", json_text(result))
    _write_table(directory / "sweep.parquet", sweep)


def _write_table(path: Path, sweep: Sweep) -> None:
    from simserve.tables.parquet import write_table  # late: pyarrow

    replace_with(path, lambda extra: write_table(extra, *sweep_table(sweep)))
