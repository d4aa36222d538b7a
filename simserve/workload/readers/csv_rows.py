"""Rows of a CSV file with a header, and the line that each stands in."""

import csv
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

import numpy as np

from simserve.errors import TraceError
from simserve.plugins.flaws import closest
from simserve.workload.readers.base import Place, read_text

Texts = tuple[str, ...]


def read_csv(path: Path, wanted: Mapping[str, bool]) -> tuple[Place, dict[str, Texts], list[str]]:
    """The wanted columns that are there, `wanted` says which are required, and the names of all columns.

    A row that is too short has "" in its last columns; empty lines are passed over. Raises TraceError.
    """
    reader = csv.reader(StringIO(read_text(path), newline=""))
    try:
        header = [name.strip() for name in next((row for row in reader if row), [])]
        numbered = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise TraceError(f"{path}:{reader.line_num}: must be CSV ({error}); is a quote left open?") from None
    if not header:
        raise TraceError(f"{path}: must hold a trace, got an empty file")
    at = columns_of(path, header, wanted)
    columns = {name: tuple(row[i] if i < len(row) else "" for _, row in numbered) for name, i in at.items()}
    return Place(path, np.array([line for line, _ in numbered], np.int64)), columns, header


def columns_of(path: Path, header: list[str], wanted: Mapping[str, bool]) -> dict[str, int]:
    """Where each wanted column stands; `wanted` says which are required. Raises TraceError with a did-you-mean."""
    twice = next((name for name in wanted if header.count(name) > 1), None)
    if twice is not None:
        raise TraceError(f"{path}:1: column {twice} must be there once, got it {header.count(twice)} times; remove one")
    missing = [name for name, is_required in wanted.items() if is_required and name not in header]
    if missing:
        near = closest(missing[0], header)
        remedy = f"did you mean {near}?" if near else "name the format of the file"
        got = ", ".join(header) if len(header) > 1 else f"only '{header[0][:80]}'" if header else "none"
        verb = "is" if len(missing) == 1 else "are"
        raise TraceError(f"{path}:1: column {', '.join(missing)} {verb} missing, got {got}; {remedy}")
    return {name: header.index(name) for name in wanted if name in header}


def unused(header: list[str], wanted: Mapping[str, bool]) -> Texts:
    """A note a column that was probably meant as one that is wanted, and is therefore not used."""
    near = {name: closest(name, wanted.keys() - set(header)) for name in header if name not in wanted}
    return tuple(f"column {name} is not used; did you mean {meant}?" for name, meant in near.items() if meant)
