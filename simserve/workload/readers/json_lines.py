"""JSON lines: rows of one object each, and traces with timestamp, input_length and output_length (Mooncake, vLLM)."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.input_files import parse_json
from simserve.tables.columns import Lists
from simserve.workload.readers.base import checked
from simserve.workload.readers.cells import IDS, NUMBER, CellKind, Piece, read_pieces
from simserve.workload.readers.prefix_ids import HashIds
from simserve.workload.readers.text_lines import line_pieces
from simserve.workload.trace import Trace

KEYS = ("timestamp", "input_length", "output_length")
KINDS: Mapping[str, CellKind] = dict.fromkeys(KEYS, NUMBER) | {"hash_ids": IDS}

Meaning = Callable[[Lists, NDArray[Any]], HashIds]
"""Interprets the hash_ids of all rows, given the prompt lengths."""

ReadRow = Callable[[Path, int, str], Mapping[str, Any]]
"""Reads the text of a line, given its number. Raises TraceError."""


def read_lines(path: Path, seconds_per_stamp: float, meaning: Meaning) -> Trace:
    """Read a trace of such lines; empty ones are skipped. Raises TraceError."""
    place, columns = read_pieces(path, cells_of_lines(path, _row, KINDS), KINDS)
    stamps, prompts, outputs, hash_ids = columns.values()
    put_prefixes = meaning(hash_ids, prompts).put if len(hash_ids.values) else None
    return checked(place, Trace(stamps * seconds_per_stamp, prompts, outputs), put_prefixes)


def cells_of_lines(path: Path, read_row: ReadRow, names: Iterable[str]) -> Iterator[Piece]:
    """Yield line numbers and the cells under some names, None where a row lacks one, piece by piece."""
    numbers = count(1)
    for piece in line_pieces(path):
        lines = [(n, text) for text, n in zip(piece, numbers, strict=False) if not text.isspace()]
        rows = [read_row(path, n, text) for n, text in lines]
        yield np.array([n for n, _ in lines], np.int64), {name: [row.get(name) for row in rows] for name in names}


def _row(path: Path, line: int, text: str) -> Mapping[str, Any]:
    try:
        row = parse_json(text)
    except json.JSONDecodeError as error:
        remedy = "is it the right format?" if line == 1 else "was the file cut?"
        raise TraceError(f"{path}:{line}: must be one JSON object a line ({error.msg}); {remedy}") from None
    missing = [key for key in KEYS if not isinstance(row, dict) or key not in row]
    if missing:
        raise TraceError(f"{path}:{line}: {', '.join(missing)} is missing; name the format of the file")
    return row  # type: ignore[no-any-return]
