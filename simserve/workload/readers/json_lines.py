"""JSON lines with timestamp, input_length and output_length, as in Mooncake and vLLM traces."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.input_files import parse_json
from simserve.workload.readers.base import Place, checked, numbers, read_text
from simserve.workload.readers.prefix_ids import HashIds
from simserve.workload.trace import Trace

KEYS = ("timestamp", "input_length", "output_length")


Meaning = Callable[[list[Any], NDArray[Any]], HashIds]
"""Interprets the hash_ids of all rows, given the prompt lengths."""


def read_lines(path: Path, seconds_per_stamp: float, meaning: Meaning) -> Trace:
    """Read a trace of such lines; empty ones are skipped. Raises TraceError."""
    lines: list[int] = []
    columns: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    hash_ids: list[Any] = []
    for line, text in enumerate(read_text(path).split("\n"), 1):
        if text and not text.isspace():
            row = _row(path, line, text)
            hash_ids.append(row.get("hash_ids"))
            lines.append(line)
            for key, column in zip(KEYS, columns, strict=True):
                column.append(row[key])
    place = Place(path, np.array(lines, np.int64))
    stamps, prompts, outputs = (numbers(place, key, column) for key, column in zip(KEYS, columns, strict=True))
    put_prefixes = meaning(hash_ids, prompts).put if any(hash_ids) else None
    return checked(place, Trace(stamps * seconds_per_stamp, prompts, outputs), put_prefixes)


def _row(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        row = parse_json(text)
    except json.JSONDecodeError as error:
        remedy = "is it the right format?" if line == 1 else "was the file cut?"
        raise TraceError(f"{path}:{line}: must be one JSON object a line ({error.msg}); {remedy}") from None
    missing = [key for key in KEYS if not isinstance(row, dict) or key not in row]
    if missing:
        raise TraceError(f"{path}:{line}: {', '.join(missing)} is missing; name the format of the file")
    return row  # type: ignore[no-any-return]
