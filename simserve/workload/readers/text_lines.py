"""Text of traces and logs: its beginning, its lines in pieces, or a document as a whole; unpacked if it is gzip."""

import zlib
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from simserve.errors import TraceError, UnreadableTrace
from simserve.input_files import TRACE_BYTES, chunks, read_file, unpacked
from simserve.units import GIB
from simserve.workload.size import MOST_REQUESTS, free_memory_bytes

FREE_SHARE = 4
"""A file may be as large, unpacked, as free memory over this."""

BYTES_PER_ROW = 64
"""Memory that reading takes for a row, at most; text and ids come on top (docs/reliability.md)."""

MOST_LINE_BYTES = 8 * 2**20

PIECE_BYTES = 1 << 16
"""Lines that are read at a time. In larger pieces, the rows live long enough for Python's garbage collection to look
at them again and again, which takes as long as reading."""

HEAD_BYTES = 2**20
"""Beginning of a file that tells its format."""


def head(path: Path) -> str:
    """Return the text that a file begins with. Raises TraceError."""
    with _reading(path), unpacked(path, may_be_gzip=True) as content:
        return getincrementaldecoder("utf-8-sig")().decode(content.read(HEAD_BYTES))


def is_bench_result(text: str) -> bool:
    """Return whether a text is a result of `vllm bench serve` rather than a trace."""
    return '"start_times"' in text or '"input_lens"' in text


def line_pieces(path: Path) -> Iterator[list[str]]:
    """Yield the lines of a file, about PIECE_BYTES at a time, once all of it is found to be text within the limits.
    Raises TraceError."""
    _check(path)
    with _reading(path), unpacked(path, may_be_gzip=True) as content:
        text = TextIOWrapper(content, "utf-8-sig", newline="")
        while lines := text.readlines(PIECE_BYTES):
            yield lines


def decoded(path: Path) -> Iterator[str]:
    """Yield the text of a file, in pieces, up to the limit of its size. Raises TraceError."""
    decoder = getincrementaldecoder("utf-8-sig")()
    n_bytes = 0
    with _reading(path):
        for chunk in chunks(path, _that_fit(TRACE_BYTES, FREE_SHARE), may_be_gzip=True):
            try:
                yield decoder.decode(chunk)
            except UnicodeDecodeError as error:
                raise _no_text(path, n_bytes - len(error.object) + len(chunk) + error.start) from None
            n_bytes += len(chunk)
        decoder.decode(b"", final=True)


def read_short(path: Path) -> str:
    """Return the text of a file of one row. Raises TraceError."""
    with _reading(path):
        return read_file(path, MOST_LINE_BYTES, may_be_gzip=True).decode("utf-8-sig")


def most_rows() -> int:
    """Return how many rows of a load can be read."""
    return _that_fit(MOST_REQUESTS, BYTES_PER_ROW)


def _that_fit(most: int, n_bytes: int) -> int:
    free_bytes = free_memory_bytes()
    return most if free_bytes is None else min(most, free_bytes // n_bytes)


def _check(path: Path) -> None:
    """Raise TraceError unless a file is UTF-8 text, and its size, lines and longest line are within the limits. A line
    that lies within a piece is short enough."""
    n_lines = n_characters = 0
    most = most_rows()
    for text in decoded(path):
        n_ends = text.count("\n") + text.count("\r") - text.count("\r\n")
        n_lines += n_ends
        end = max(text.rfind("\n"), text.rfind("\r"))
        n_characters = len(text) - 1 - end if n_ends else n_characters + len(text)
        if n_lines > most:
            why = f", which take {most * BYTES_PER_ROW / GIB:.3g} GiB, all free memory" if most < MOST_REQUESTS else ""
            raise TraceError(f"{path}: must have at most {most:,} lines{why}, got more; cut it")
        if n_characters > MOST_LINE_BYTES:
            rule = f"a line must have at most {MOST_LINE_BYTES // 2**20} MiB"
            raise TraceError(f"{path}:{n_lines + 1}: {rule}, got more; is it the right file?")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what reading a file raises into a TraceError."""
    try:
        yield
    except IsADirectoryError:
        raise UnreadableTrace(f"{path}: must be a file, got a folder; name the file in it") from None
    except FileNotFoundError:
        raise UnreadableTrace(f"{path}: no such file; see traces/README.md for where to get public traces") from None
    except UnicodeDecodeError as error:
        raise _no_text(path, error.start) from None
    except (OSError, EOFError, zlib.error) as error:
        text = getattr(error, "strerror", None) or error
        raise UnreadableTrace(f"{path}: cannot be read ({text}); check that it is complete and readable") from None


def _no_text(path: Path, byte: int) -> TraceError:
    return TraceError(f"{path}: must be UTF-8 text, got byte {byte} that is not; convert the file")
