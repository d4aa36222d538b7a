"""Input files of unknown origin: read up to a size, and JSON parsed up to a depth.

The errors are those of `open` and `json.loads`, OSError and ValueError, for callers to add the place and the remedy.
"""

import gzip
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EFBIG, EINVAL, EISDIR
from io import BufferedReader
from pathlib import Path
from typing import Any

SCENARIO_BYTES = 16 * 2**20
"""Limit of a file that people write, such as a scenario, the config.json of a model or a list of points."""

ANSWER_BYTES = 256 * 2**20
"""Limit of a file that a program writes and that is not a load: a calibration, a baseline, a summary."""

TRACE_BYTES = 8 * 2**30
"""Limit of a trace or log, unpacked."""

MOST_TEXT_CHARACTERS = 128
"""Limit of an id or a name in a load, and of a cell of text in parquet."""

MOST_JSON_LEVELS = 100

GZIP_MAGIC = b"\x1f\x8b"
"""First bytes of a gzip file, RFC 1952 section 2.3.1; the file name does not matter."""

CHUNK_BYTES = 2**20

_DECODER = json.JSONDecoder()


def read_file(path: Path, most_bytes: int, *, may_be_gzip: bool = False) -> bytes:
    """Return the content of a regular file, unpacked if it is gzip and may be. Raises OSError, EOFError, zlib.error."""
    return b"".join(chunks(path, most_bytes, may_be_gzip=may_be_gzip))


def chunks(path: Path, most_bytes: int, *, may_be_gzip: bool = False) -> Iterator[bytes]:
    """Yield the content of a regular file in pieces, in the same way."""
    with unpacked(path, may_be_gzip=may_be_gzip) as content:
        is_packed = isinstance(content, gzip.GzipFile)
        n_bytes = os.fstat(content.fileno()).st_size  # before anything is read
        n_read = 0
        while n_bytes <= most_bytes and (chunk := content.read(CHUNK_BYTES)):
            n_bytes = n_read = n_read + len(chunk)
            if n_bytes <= most_bytes:
                yield chunk
        if n_bytes > most_bytes:
            rule = f"is larger than {_binary(most_bytes)}{' unpacked' if is_packed else ''}"
            raise OSError(EFBIG, rule, str(path))


@contextmanager
def unpacked(path: Path, *, may_be_gzip: bool = False) -> Iterator[BufferedReader | gzip.GzipFile]:
    """Open the content of a regular file, unpacked if it is gzip and may be."""
    with open_file(path) as file:
        is_packed = may_be_gzip and file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        file.seek(0)
        yield gzip.GzipFile(fileobj=file) if is_packed else file


def open_file(path: Path) -> BufferedReader:
    """Open a regular file. Raises OSError, also for pipes, devices and folders, and never waits for a writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:
        raise OSError(EINVAL, "has a NUL character in its name", str(path)) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(EISDIR, "is a folder", str(path))
    raise OSError(EINVAL, "is not a regular file", str(path))


def read_json(path: Path, most_bytes: int = ANSWER_BYTES) -> Any:
    """Return the value of a JSON file. Raises OSError or ValueError."""
    return parse_json(read_file(path, most_bytes).decode("utf-8"))


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError: JSONDecodeError, or UnicodeDecodeError for bytes."""
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    value = _decoded(json.loads, text)
    # fast: most texts have fewer brackets than levels are allowed, so that only a count is needed
    if text.count("[") + text.count("{") > MOST_JSON_LEVELS and _is_deep(value):
        raise _too_deep(text)
    return value


def parse_value(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at a place in a text, and where it ends. Raises JSONDecodeError."""
    value: tuple[Any, int] = _decoded(_DECODER.raw_decode, text, start)
    return value


def _decoded(decode: Callable[..., Any], text: str, *arguments: int) -> Any:
    try:
        return decode(text, *arguments)
    except json.JSONDecodeError:
        raise
    except RecursionError:  # Python's own limit, which differs between versions
        raise _too_deep(text) from None
    except ValueError:  # Python's limit on the digits of an integer
        raise json.JSONDecodeError("a number has thousands of digits", text, 0) from None


def _is_deep(value: Any) -> bool:
    """Return whether a value has more than MOST_JSON_LEVELS lists and objects inside each other."""
    level = [value]
    for _ in range(MOST_JSON_LEVELS):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _too_deep(text: str) -> json.JSONDecodeError:
    return json.JSONDecodeError(f"has more than {MOST_JSON_LEVELS} levels of brackets inside each other", text, 0)


def _binary(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:,.3g} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:,.3g} MiB"
