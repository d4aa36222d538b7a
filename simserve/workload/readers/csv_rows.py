"""Rows of a CSV file with a header, and the line of each; traces of Azure and BurstGPT are such files."""

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import TraceError
from simserve.plugins.validation import closest
from simserve.tables.columns import Ints
from simserve.workload.readers.base import Place, Texts, answered, checked, names_shown
from simserve.workload.readers.cells import NUMBER, SPAN, STAMP, TEXT, CellKind, Piece, read_pieces, seconds_since_first
from simserve.workload.readers.text_lines import line_pieces
from simserve.workload.trace import Trace

Rows = tuple[Ints, list[list[str]]]
"""Some rows of a file: the lines where they begin, and their cells."""

AZURE = {"TIMESTAMP": STAMP, "ContextTokens": NUMBER, "GeneratedTokens": NUMBER}

BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


def read_azure(path: Path) -> Trace:
    """Read an Azure LLM inference trace of 2023 or 2024, or LMM of 2025; stamps have up to seven fractional digits.
    Raises TraceError.

    Source: Azure Public Dataset, CC-BY 4.0 (Patel et al., Splitwise, ISCA '24).
    """
    place, columns, _ = read_csv(path, AZURE, AZURE)
    return checked(place, Trace(seconds_since_first(columns.pop("TIMESTAMP")), *map(columns.pop, list(columns))))


def read_burstgpt(path: Path) -> Trace:
    """Read a BurstGPT trace of ChatGPT and GPT-4 calls, in seconds; those without response tokens failed, and are left
    out. Raises TraceError.

    Source: Wang et al., BurstGPT (2024), CC-BY 4.0. Older files lack Session ID and Elapsed time.
    """
    kinds = dict.fromkeys(BURSTGPT, NUMBER) | {"Session ID": TEXT, "Elapsed time": SPAN}
    place, columns, _ = read_csv(path, kinds, BURSTGPT)
    more: dict[str, Any] = {"session_id": columns.get("Session ID"), "e2e_s": columns.get("Elapsed time")}
    return answered(place, Trace(*map(columns.pop, BURSTGPT), **more), "calls (no response tokens)")


def read_csv(
    path: Path, kinds: Mapping[str, CellKind], needed: Collection[str]
) -> tuple[Place, dict[str, Any], list[str]]:
    """Return the columns with a kind that are present, and the names of all columns. A short row has "" in its last
    columns; blank lines are skipped. Raises TraceError."""
    pieces = filter(itemgetter(1), map(_not_blank, _pieces(path)))
    lines, rows = next(pieces, (np.zeros(0, np.int64), []))
    if not rows:
        raise TraceError(f"{path}: must hold a trace, got an empty file")
    names = [name.strip() for name in rows[0]]
    at = columns_of(path, names, kinds, needed, int(lines[0]))
    picked = (_picked(piece, at) for piece in chain([(lines[1:], rows[1:])], pieces))
    place, columns = read_pieces(path, picked, {name: kinds[name] for name in at})
    return place, columns, names


def _pieces(path: Path) -> Iterator[Rows]:
    """Yield the rows of a file, blank ones too."""
    pieces, n_lines = line_pieces(path), 0
    for lines in pieces:
        try:
            rows = list(csv.reader(lines, strict=True))
        except csv.Error:
            rows = []
        if len(rows) != len(lines):  # a quoted value continues on the next line, which may be in the next piece
            yield from _quoted(path, chain([lines], pieces), n_lines)
            return
        yield np.arange(n_lines + 1, n_lines + len(lines) + 1), rows
        n_lines += len(lines)


def _quoted(path: Path, pieces: Iterable[list[str]], n_before: int) -> Iterator[Rows]:
    """Yield the rows of the rest of a file, any of which may take several lines."""
    n_pieces = 0

    def lines() -> Iterator[str]:
        nonlocal n_pieces
        for piece in pieces:
            n_pieces += 1
            yield from piece

    reader = csv.reader(lines())
    begins, rows, n_yielded, line = list[int](), list[list[str]](), 1, n_before + 1
    try:
        for row in reader:
            begins.append(line)
            rows.append(row)
            line = n_before + reader.line_num + 1
            if n_pieces > n_yielded:
                yield np.array(begins, np.int64), rows
                begins, rows, n_yielded = [], [], n_pieces
    except csv.Error as error:
        line = n_before + reader.line_num
        raise TraceError(f"{path}:{line}: must be CSV ({error}); is a quote left open?") from None
    yield np.array(begins, np.int64), rows


def _not_blank(piece: Rows) -> Rows:
    lines, rows = piece
    if min(map(len, rows), default=2) > 1:
        return piece
    kept = [i for i, row in enumerate(rows) if len(row) > 1 or (row and not row[0].isspace())]
    return lines[kept], [rows[i] for i in kept]


def _picked(piece: Rows, at: Mapping[str, int]) -> Piece:
    """Return the cells of some columns."""
    lines, rows = piece
    if min(map(len, rows), default=0) > max(at.values()):
        return lines, {name: Texts(map(itemgetter(i), rows)) for name, i in at.items()}
    return lines, {name: Texts(row[i] if i < len(row) else "" for row in rows) for name, i in at.items()}


def columns_of(
    path: Path, header: list[str], wanted: Collection[str], needed: Collection[str], line: int = 1
) -> dict[str, int]:
    """Return the index of each wanted column; those needed must be there. Raises TraceError with a did-you-mean."""
    twice = next((name for name in wanted if header.count(name) > 1), None)
    if twice is not None:
        raise TraceError(
            f"{path}:{line}: column {twice} must appear once, got it {header.count(twice)} times; remove one"
        )
    missing = [name for name in needed if name not in header]
    if missing:
        near = closest(missing[0], header)
        remedy = f"did you mean {near}?" if near else "name the format of the file"
        verb = "is" if len(missing) == 1 else "are"
        raise TraceError(
            f"{path}:{line}: column {', '.join(missing)} {verb} missing, got {names_shown(header)}; {remedy}"
        )
    return {name: header.index(name) for name in wanted if name in header}


def unused(header: list[str], wanted: Collection[str]) -> tuple[str, ...]:
    """Return a note for each unused column with a name close to a wanted one."""
    near = {name: closest(name, set(wanted) - set(header)) for name in header if name not in wanted}
    return tuple(f"column {name} is not used; did you mean {meant}?" for name, meant in near.items() if meant)
