"""Lines of JSON with timestamp, input_length and output_length: what Mooncake and vLLM traces have in common."""

import json
from pathlib import Path
from typing import Any

from simserve.errors import TraceError
from simserve.workload.readers.base import checked, numbers, read_text
from simserve.workload.trace import Trace

KEYS = ("timestamp", "input_length", "output_length")


def read_lines(path: Path, seconds_per_stamp: float) -> Trace:
    """A trace of such lines. Raises TraceError."""
    rows = [_row(path, line, text) for line, text in enumerate(read_text(path).splitlines(), 1) if text.strip()]
    stamps, prompts, outputs = (numbers(path, key, [row.get(key) for row in rows], first_line=1) for key in KEYS)
    return checked(path, Trace(stamps * seconds_per_stamp, prompts, outputs))


def _row(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{line}: must be one JSON object a line ({error.msg}); was the file cut?") from None
    missing = [key for key in KEYS if not isinstance(row, dict) or key not in row]
    if missing:
        raise TraceError(f"{path}:{line}: {', '.join(missing)} is missing; name the format of the file")
    return row  # type: ignore[no-any-return]
