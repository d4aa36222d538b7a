"""Cells of a file, read by what their column means: every format's values go through these before any computing."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.input_files import MOST_TEXT_CHARACTERS
from simserve.tables.columns import Flags, Floats, Ints, Lists, Meaning, joined
from simserve.workload.readers.base import MOST_S, Cells, Place, Texts, refuse_rows
from simserve.workload.size import MOST_REQUESTS

MOST_ID = 2**63 - 1


@dataclass(frozen=True)
class CellKind:
    """Meaning of a column."""

    arrow: Meaning
    """What it is in parquet (`tables/foreign.py`)."""
    read: Callable[[Place, str, Any], Any]
    """Reads cells at a place, under a column's name, as numbers, text, instants or Lists. Raises TraceError."""


def amounts(place: Place, name: str, cells: Cells) -> Floats:
    """Return numbers, `(n,)`, NaN where a cell is missing. Raises TraceError for what is no number."""
    column = _floats(cells)
    refuse_rows(place, np.isinf(column), f"{name} must be a number", cells)
    return column


def numbers(place: Place, name: str, cells: Cells) -> NDArray[Any]:
    """Return numbers, `(n,)`; every cell must have one. Raises TraceError."""
    column = _floats(cells)
    refuse_rows(place, ~np.isfinite(column), f"{name} must be a number", cells)
    return column


def times(place: Place, name: str, cells: Cells) -> Floats:
    """Return durations, `(n,)`, NaN where missing. Raises TraceError for negative ones and what is no number."""
    column = amounts(place, name, cells)
    refuse_rows(place, column < 0, f"{name} must not be negative", cells)
    return column


def spans_s(place: Place, name: str, cells: Cells) -> Floats:
    """Return seconds, `(n,)`, NaN for anything invalid: few loads need them."""
    column = _floats(cells)
    return np.where((column >= 0) & (column <= MOST_S), column, np.nan)


def _floats(cells: Cells) -> Floats:
    """Return cells as floats: NaN where missing, infinite where they are no finite number."""
    if isinstance(cells, np.ndarray):
        return np.asarray(cells, np.float64)
    is_text = isinstance(cells, Texts)
    if set(map(type, cells)) <= ({str} if is_text else {int, float}):
        try:
            column = np.array(cells, np.float64)
        except (ValueError, OverflowError):
            pass
        else:
            if not np.isnan(column).any():
                return column
    return np.array([_of_text(cell) if is_text else _of_json(cell) for cell in cells], np.float64)


def _of_text(cell: str | float) -> float:
    try:
        return np.nan if cell == "" else number if np.isfinite(number := float(cell)) else np.inf
    except (ValueError, OverflowError):
        return np.inf


def _of_json(cell: Any) -> float:
    return np.nan if cell is None else _of_text(cell) if type(cell) in (int, float) else np.inf


def texts(place: Place, name: str, cells: Cells) -> NDArray[np.str_]:
    """Return text, `(n,)`, "" where missing; whole numbers count as text. Raises TraceError."""
    if isinstance(cells, np.ndarray):
        return cells
    if not isinstance(cells, Texts):
        cells = ["" if cell is None else str(cell) if type(cell) is int else cell for cell in cells]
    is_bad = np.array([not isinstance(cell, str) or len(cell) > MOST_TEXT_CHARACTERS for cell in cells], np.bool_)
    refuse_rows(place, is_bad, f"{name} must be text of at most {MOST_TEXT_CHARACTERS} characters", cells)
    return np.array(cells, np.str_)


def labels(_: Place, __: str, cells: Cells) -> NDArray[np.str_]:
    """Return text, `(n,)`, cut if it is long, and "?" for what is no text."""
    if isinstance(cells, np.ndarray):
        return cells
    cut = [cell[:MOST_TEXT_CHARACTERS] if isinstance(cell, str) else "?" if cell is not None else "" for cell in cells]
    return np.array(cut, np.str_)


def flags(_: Place, __: str, cells: Cells) -> Flags:
    """Return what is true, `(n,)`; anything else is false."""
    return np.array([str(cell).lower() in ("true", "1") for cell in cells], np.bool_)


def stamps_or_numbers(place: Place, name: str, cells: Cells) -> NDArray[Any]:
    """Return dates and times, or numbers, whichever the first cell is. Raises TraceError."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "M":
        refuse_rows(place, np.isnat(cells), f"{name} must be a time", cells)
        return cells
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "U":
        cells = cells.tolist()
    if len(cells) and isinstance(cells[0], str) and _of_text(cells[0]) == np.inf:
        return instants(place, name, [cell if isinstance(cell, str) else "" for cell in cells])
    return numbers(place, name, cells)


def later_stamps(place: Place, name: str, cells: Cells) -> NDArray[Any]:
    """Return dates and times, or numbers; not-a-time or NaN where one is missing, as of a failed request. Raises
    TraceError."""
    kind = "U" if type(cells) is not np.ndarray else cells.dtype.kind
    if kind != "U":
        return np.asarray(cells) if kind == "M" else amounts(place, name, cells)
    first = next((cell for cell in cells if cell not in (None, "")), None)
    if type(first) is str and _of_text(first) == np.inf:
        plain = [_without_zone(cell) if type(cell) is str else "" for cell in cells]
        return np.array([_instant(stamp) if stamp else np.datetime64("NaT", "ns") for stamp in plain], "datetime64[ns]")
    return amounts(place, name, cells)


def instants(place: Place, name: str, stamps: Sequence[str]) -> NDArray[np.datetime64]:
    """Return stamps as instants, `(n,)`; `name` is the column's. Raises TraceError."""
    every = "".join(stamps)
    is_plain = "+" not in every and "Z" not in every and every.count("-") == 2 * len(stamps)
    plain = stamps if is_plain else [_without_zone(stamp) for stamp in stamps]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy warns of a time zone, and drops it
        try:
            result = np.array(plain, dtype="datetime64[ns]")
        except (ValueError, UserWarning):
            result = np.array([_instant(stamp) for stamp in plain], "datetime64[ns]")
    rule = f"{name} must be a date and time in UTC like 2023-11-16 18:15:46.6805900"
    refuse_rows(place, np.isnat(result), rule, stamps)
    return result


def seconds_since_first(instants: NDArray[np.datetime64]) -> Floats:
    """Return seconds since the earliest instant, `(n,)`."""
    since = instants - instants.min() if len(instants) else instants - instants
    seconds: Floats = since.astype(np.float64) / 1e9
    return seconds


def _without_zone(stamp: str) -> str:
    """Return the stamp without its UTC mark; empty for another zone."""
    plain = stamp.removesuffix("+00:00").removesuffix("Z")
    time = plain[len("2023-11-16") :]
    return "" if "+" in time or "-" in time else plain


def _instant(stamp: str) -> np.datetime64:
    """Return the instant, or not-a-time for an invalid stamp."""
    try:
        return np.datetime64(stamp, "ns")
    except (ValueError, UserWarning):
        return np.datetime64("NaT", "ns")


def ids(place: Place, name: str, cells: Cells | Lists) -> Lists:
    """Return lists of ids; in CSV they are separated by spaces. Raises TraceError."""
    if isinstance(cells, Lists):
        is_bad = np.zeros(len(cells), np.bool_)
        is_bad[np.searchsorted(cells.offsets, np.flatnonzero(cells.values < 0), side="right") - 1] = True
        rows: list[Any] = []
    else:
        rows = [_split(cell) if isinstance(cells, Texts) else [] if cell is None else cell for cell in cells]
        is_bad = np.array([not _are_ids(row) for row in rows], np.bool_)
    refuse_rows(place, is_bad, f"{name} must be whole numbers in [0, {MOST_ID}]", cells)
    ends = np.cumsum([0, *map(len, rows)])
    return cells if isinstance(cells, Lists) else Lists(np.fromiter(chain.from_iterable(rows), np.int64), ends)


def _split(cell: str) -> Any:
    """Return the ids of a text, or the text if it is none."""
    words = cell.split()
    is_ids = all(word.isdecimal() and len(word) <= len(str(MOST_ID)) for word in words)
    return [int(word) for word in words] if is_ids else cell


def _are_ids(row: Any) -> bool:
    return isinstance(row, list) and set(map(type, row)) <= {int} and (not row or 0 <= min(row) <= max(row) <= MOST_ID)


NUMBER = CellKind("number", numbers)
AMOUNT = CellKind("number", amounts)
TIME = CellKind("number", times)
SPAN = CellKind("number", spans_s)
TEXT = CellKind("text", texts)
LABEL = CellKind("label", labels)
FLAG = CellKind("label", flags)
STAMP = CellKind("text", instants)
INSTANT = CellKind("instant", stamps_or_numbers)
LATER = CellKind("instant", later_stamps)
IDS = CellKind("ids", ids)

Piece = tuple[Ints, Mapping[str, Cells]]
"""Some rows of a file: their lines, and the cells of each column."""

BLOCK_ROWS = 1 << 19
"""Rows after which the pieces of each column are joined: the system gets large arrays back, and no small ones."""


def read_pieces(path: Path, pieces: Iterable[Piece], kinds: Mapping[str, CellKind]) -> tuple[Place, dict[str, Any]]:
    """Return the columns of a file. Raises TraceError."""
    lines: list[Ints] = []
    columns: dict[str, list[Any]] = {name: [] for name in kinds}
    n_ids, n_rows, n_due = 0, 0, BLOCK_ROWS
    nothing: Piece = (np.zeros(0, np.int64), dict.fromkeys(kinds, Texts()))
    for (at, cells), following in pairwise(chain(pieces, [nothing])):
        place = Place(path, at, is_part=following is not nothing)
        lines.append(at)
        for name, kind in kinds.items():
            columns[name].append(kind.read(place, name, cells[name]))
            n_ids += len(columns[name][-1].values) if kind is IDS else 0
        if n_ids > MOST_REQUESTS:
            raise TraceError(f"{path}: hash_ids must be at most {MOST_REQUESTS:,} in all, got more; cut the file")
        n_rows += len(at)
        if n_rows >= n_due:
            with suppress(TypeError):  # dates and numbers, which are refused at the end
                for column in (lines, *columns.values()):
                    column[:] = [joined(column)]
            n_due = n_rows + n_rows // 16 + BLOCK_ROWS
    if not lines:
        return read_pieces(path, [nothing], kinds)
    try:
        lines[:] = [joined(lines)]
        return Place(path, lines[0]), {name: joined(columns.pop(name)) for name in kinds}
    except TypeError:
        raise TraceError(f"{path}: stamps must all be numbers, or all dates and times; convert the file") from None
