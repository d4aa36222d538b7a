"""Files: atomic replacement of text files, and strict JSON."""

import glob
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from simserve import input_files
from simserve.errors import OutputError
from simserve.tables.swap import locked, unwritable


def replace_text(path: Path, text: str) -> None:
    """Write a file beside its place and move it there, so that no reader sees half of it. Raises OutputError."""
    replace_file(path, text.encode())


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file by this content, in the same way. Raises OutputError."""
    replace_with(path, lambda extra: extra.write_bytes(content))


def replace_with(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file by what a function writes, in the same way; a device or pipe is written to. Raises OutputError."""
    extra = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        if path.exists() and not path.is_file():
            write(path)
            return
        _remove_partial_files(path)
        extra.touch()
        with locked(extra) as descriptor:
            write(extra)
            os.fsync(descriptor)
            os.replace(extra, path)
    except OSError as error:
        raise unwritable(path, error, "free space or permit it") from error
    finally:
        with suppress(OSError):
            extra.unlink(missing_ok=True)


def _remove_partial_files(path: Path) -> None:
    """Remove what killed processes have left of this file; those that still write it hold a lock."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        if partial.suffixes[-2].lstrip(".").isdecimal():
            with suppress(OSError), locked(partial):
                partial.unlink()


def json_text(value: Any) -> str:
    """Return strict JSON: null for NaN, infinities and missing values; numpy numbers as plain ones."""
    return json.dumps(plain(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def plain(value: Any) -> Any:
    """Return a value as dicts, lists, text, plain numbers and None."""
    if isinstance(value, Mapping):
        return {str(key): plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(member) for member in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises OutputError."""
    try:
        value = input_files.read_json(path)
    except FileNotFoundError:
        raise OutputError(f"{path}: no such file; name the folder of a finished run") from None
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or error
        raise OutputError(f"{path}: cannot be read as JSON ({text}); run the command again") from None
    if not isinstance(value, dict):
        raise OutputError(f"{path}: must hold a JSON object; run the command again")
    return value
