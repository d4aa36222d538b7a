"""Rows of a CSV file with a header, and the line of each."""

import csv
from collections.abc import Mapping
from io import StringIO
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.plugins.validation import closest
from simserve.workload.readers.base import Place, names_shown, read_text

Texts = tuple[str, ...]


def read_csv(path: Path, wanted: Mapping[str, bool]) -> tuple[Place, dict[str, Texts], list[str]]:
    """Return the wanted columns that are present (`wanted` marks required ones) and the names of all columns.

    A short row has "" in its last columns; blank lines are skipped. Raises TraceError.
    """
    rows, lines = _rows(path, read_text(path))
    if not rows:
        raise TraceError(f"{path}: must hold a trace, got an empty file")
    header = [name.strip() for name in rows.pop(0)]
    at = columns_of(path, header, wanted, line=int(lines[0]))
    width = max(at.values()) + 1
    full = [row if len(row) >= width else row + [""] * (width - len(row)) for row in rows]
    columns = {name: tuple(map(itemgetter(i), full)) for name, i in at.items()}
    return Place(path, lines[1:]), columns, header


def _rows(path: Path, text: str) -> tuple[list[list[str]], NDArray[np.int64]]:
    """Return the rows that are not blank, and the first line of each."""
    reader = csv.reader(StringIO(text, newline=""))
    try:
        rows = list(reader)
    except csv.Error as error:
        raise TraceError(f"{path}:{reader.line_num}: must be CSV ({error}); is a quote left open?") from None
    begins = np.arange(1, len(rows) + 1)
    if reader.line_num != len(rows):  # a quoted value continues on the next line
        again = csv.reader(StringIO(text, newline=""))
        begins[1:] = [again.line_num + 1 for _ in again][:-1]
    kept = [i for i, row in enumerate(rows) if len(row) > 1 or (row and not row[0].isspace())]
    return (rows if len(kept) == len(rows) else [rows[i] for i in kept]), begins[kept]


def columns_of(path: Path, header: list[str], wanted: Mapping[str, bool], line: int = 1) -> dict[str, int]:
    """Return the index of each wanted column; `wanted` marks required ones. Raises TraceError with a did-you-mean."""
    twice = next((name for name in wanted if header.count(name) > 1), None)
    if twice is not None:
        raise TraceError(
            f"{path}:{line}: column {twice} must appear once, got it {header.count(twice)} times; remove one"
        )
    missing = [name for name, is_required in wanted.items() if is_required and name not in header]
    if missing:
        near = closest(missing[0], header)
        remedy = f"did you mean {near}?" if near else "name the format of the file"
        verb = "is" if len(missing) == 1 else "are"
        raise TraceError(
            f"{path}:{line}: column {', '.join(missing)} {verb} missing, got {names_shown(header)}; {remedy}"
        )
    return {name: header.index(name) for name in wanted if name in header}


def unused(header: list[str], wanted: Mapping[str, bool]) -> Texts:
    """Return a note for each unused column with a name close to a wanted one."""
    near = {name: closest(name, wanted.keys() - set(header)) for name in header if name not in wanted}
    return tuple(f"column {name} is not used; did you mean {meant}?" for name, meant in near.items() if meant)
