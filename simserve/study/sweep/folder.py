"""The folder of a sweep: the journal of what is finished, and the answer beside it once all of it is."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simserve.errors import OutputError
from simserve.study.sweep.sweep import Sweep
from simserve.study.sweep.table import sweep_table
from simserve.tables.files import json_text, replace_text
from simserve.tables.folder import check_folder
from simserve.tables.kinds import SWEEP, UNFINISHED_SWEEP

PAGE = "report.html"


def check_sweep_folder(directory: Path) -> None:
    """Raises OutputError unless `directory` can be made, or holds a sweep, finished or not, and nothing else.

    What a sweep is in the middle of writing, or was when it was killed, is its own, too.
    """
    halves = frozenset(half.name for half in _halves(directory))
    check_folder(directory, replace(UNFINISHED_SWEEP, files=UNFINISHED_SWEEP.files | halves))


def clean_sweep_folder(directory: Path) -> None:
    """Remove partial files of a killed sweep; only the holder of the journal may call it."""
    for half in _halves(directory):
        half.unlink(missing_ok=True)


def _halves(directory: Path) -> list[Path]:
    return [half for name in sorted(SWEEP.files) for half in directory.glob(f".{name}.*.partial")]


def withdraw(directory: Path) -> None:
    """Take an earlier answer away before its folder becomes another sweep's: the journal keeps its runs."""
    for name in (*sorted(SWEEP.required_files), PAGE):
        (directory / name).unlink(missing_ok=True)


def write_sweep(directory: Path, sweep: Sweep, result: Mapping[str, Any], page: str) -> None:
    """The page, the answer and the table, each whole or not at all; both marks are there only at the end.

    Raises OutputError; the journal keeps what is finished.
    """
    withdraw(directory)
    replace_text(directory / PAGE, page)
    replace_text(directory / "sweep.json", json_text(result))
    _write_table(directory / "sweep.parquet", sweep)


def _write_table(path: Path, sweep: Sweep) -> None:
    from simserve.tables.parquet import write_table  # late: pyarrow

    extra = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write_table(extra, *sweep_table(sweep))
        os.replace(extra, path)
    except OSError as error:
        text = os.strerror(error.errno) if error.errno else str(error)
        raise OutputError(f"{path}: must be writable, got {text}; free space or permit it") from error
    finally:
        extra.unlink(missing_ok=True)
