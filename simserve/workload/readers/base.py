"""What every reader shares: rows of a file, the mistakes found in them, and the trace that comes of good ones."""

import gzip
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.plugins.flaws import closest
from simserve.workload.trace import Trace

MOST_NAMED_ROWS = 5
"""Bad rows that a message lists by number."""

Lines = int | NDArray[np.int64]
"""Where rows stand in their file: the line of the first, or of each."""


def read_text(path: Path) -> str:
    """A file's text, unpacked if its name ends in .gz. Raises TraceError."""
    if path.is_dir():
        raise TraceError(f"{path}: must be a file, got a folder; name the file in it")
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file; see traces/README.md for where to get public traces") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: must be UTF-8 text, got byte {error.start} that is not; convert the file") from None
    except (OSError, EOFError) as error:
        raise TraceError(f"{path}: cannot be read ({error})") from None


def numbers(path: Path, name: str, values: Iterable[Any], first_line: int) -> NDArray[Any]:
    """A column as floats, `(n,)`; names the lines whose value is missing or no number. Raises TraceError."""
    values = list(values)
    try:
        column = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        column = np.array([_number(value) for value in values])
    refuse_rows(path, ~np.isfinite(column), f"{name} must be a number", values, first_line)
    return column


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def refuse_rows(path: Path, is_bad: NDArray[np.bool_], rule: str, values: Any, lines_of: Lines) -> None:
    """Raises TraceError naming the first few bad rows by their line in the file."""
    bad = np.flatnonzero(is_bad)
    if len(bad):
        named = bad[:MOST_NAMED_ROWS] + lines_of if isinstance(lines_of, int) else lines_of[bad[:MOST_NAMED_ROWS]]
        lines = ", ".join(map(str, named.tolist()))
        more = f" and {len(bad) - MOST_NAMED_ROWS} more" if len(bad) > MOST_NAMED_ROWS else ""
        value = values[bad[0]]
        shown = "nothing" if value is None or value == "" else repr(value if isinstance(value, str) else float(value))
        raise TraceError(f"{path}: line {lines}{more}: {rule}, got {shown}; correct or remove these rows")


def columns_of(path: Path, header: list[str], wanted: Mapping[str, bool]) -> dict[str, int]:
    """Where each wanted column stands; `wanted` says which are required. Raises TraceError with a did-you-mean."""
    places = {name.strip(): place for place, name in enumerate(header)}
    missing = [name for name, is_required in wanted.items() if is_required and name not in places]
    if missing:
        near = closest(missing[0], places)
        remedy = f"did you mean {near}?" if near else "name the format of the file"
        raise TraceError(f"{path}:1: column {', '.join(missing)} is missing, got {', '.join(places)}; {remedy}")
    return {name: places[name] for name in wanted if name in places}


def checked(path: Path, trace: Trace, lines_of: Lines = 1) -> Trace:
    """The rows of a file as a trace that starts at its first stamp, in order of arrival.

    Raises TraceError for rows that cannot be served.
    """
    if not len(trace):
        raise TraceError(f"{path}: must hold at least one request, got none")
    refuse_rows(path, trace.arrival_s < 0, "an arrival must not be negative", trace.arrival_s, lines_of)
    for name, tokens in (("prompt", trace.prompt_tokens), ("output", trace.output_tokens)):
        refuse_rows(path, tokens < 1, f"{name} tokens must be at least 1", tokens, lines_of)
        refuse_rows(path, tokens != np.floor(tokens), f"{name} tokens must be whole", tokens, lines_of)
    n_back = int((np.diff(trace.arrival_s) < 0).sum())
    if n_back:
        note = f"{n_back} rows came before their predecessor; the trace was sorted by arrival"
        trace = replace(trace.take(np.argsort(trace.arrival_s, kind="stable")), notes=(*trace.notes, note))
    return replace(
        trace,
        arrival_s=trace.arrival_s - trace.arrival_s[0],
        prompt_tokens=trace.prompt_tokens.astype(np.int64),
        output_tokens=trace.output_tokens.astype(np.int64),
    )
