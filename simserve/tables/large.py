"""Large arrays: columns of long runs lie in temporary files, and only the pages in use in memory.

A run of millions of requests has more rows than fit in memory. Its arrays are built and read in pieces, and the pages
of each piece are released after it. The files have no name, so nothing remains of a run that is killed.
"""

import ctypes
import gc
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from simserve.errors import OutputError

PIECE_ROWS = 1 << 18
"""Rows that are computed at a time."""

LARGE_BYTES = 1 << 22
"""Bytes of the smallest array, or of the rows of a run, that go into a file."""

_folders: list[Path] = []
"""Where files are made, the last one first; the system's temporary folder without any."""

_maps: "weakref.WeakSet[mmap.mmap]" = weakref.WeakSet()
"""All arrays in files."""

_is_shared = [False]
"""Whether copies of this process write arrays too, the last one first."""

_n_written = 0
"""Bytes of all files so far; those of earlier runs are free again."""


@contextmanager
def kept_beside(folder: Path) -> Iterator[None]:
    """Make files on the disk of a folder, which need not exist yet."""
    place = folder.absolute()
    _folders.append(next(parent for parent in (place, *place.parents) if parent.is_dir()))
    try:
        yield
    finally:
        _folders.pop()


@contextmanager
def shared() -> Iterator[None]:
    """Make all arrays in files, which copies of this process write too."""
    _is_shared.append(True)
    try:
        yield
    finally:
        _is_shared.pop()


def _is_in_file(n_bytes: int) -> bool:
    return n_bytes >= (1 if _is_shared[-1] else LARGE_BYTES)


def empty(n: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of n items; a large one is in a file and zero. Raises OutputError for a full disk."""
    kind = np.dtype(dtype)
    n_bytes = n * kind.itemsize
    if not _is_in_file(n_bytes):
        return np.empty(n, kind)
    with _file() as file:
        with _reserved(n_bytes):
            _reserve(file, n_bytes)
        pages = mmap.mmap(file.fileno(), n_bytes)
    _maps.add(pages)
    return np.frombuffer(pages, kind)


def zeros(n: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of n zeros."""
    return empty(n, dtype) if _is_in_file(n * np.dtype(dtype).itemsize) else np.zeros(n, dtype)


def full(n: int, value: float, dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of n equal items."""
    if not value:
        return zeros(n, dtype)
    result = empty(n, dtype)
    for piece in pieces(n):
        result[piece] = value
    return result


def pieces(n: int, n_rows: int | None = None) -> Iterator[slice]:
    """Yield the slices of n rows that are computed at a time, by default PIECE_ROWS; between them all pages are
    released."""
    step = n_rows or PIECE_ROWS
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))
        if n > step:
            release()


def built(n: int, part: Callable[[slice], NDArray[Any]]) -> NDArray[Any]:
    """Return an array of n rows, computed piece by piece."""
    return built_all(n, lambda piece: {"": part(piece)})[""]


def built_all(n: int, part: Callable[[slice], Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return several arrays of n rows, computed piece by piece; all pieces have the same types."""
    if n <= PIECE_ROWS:
        return dict(part(slice(0, n)))
    result: dict[str, NDArray[Any]] = {}
    for piece in pieces(n):
        for name, values in part(piece).items():
            if name not in result:
                result[name] = empty(n, values.dtype)
            result[name][piece] = values
    return result


def cumulated(n: int, part: Callable[[slice], NDArray[Any]]) -> NDArray[Any]:
    """Return the sums of n numbers up to and with each, to the last bit as `numpy.cumsum` adds them."""
    so_far: NDArray[Any] | None = None

    def sums(piece: slice) -> NDArray[Any]:
        nonlocal so_far
        upto = running_sums(part(piece), so_far)
        so_far = upto[-1:].copy()
        return upto

    return built(n, sums)


def running_sums(values: NDArray[Any], before: NDArray[Any] | None) -> NDArray[Any]:
    """Return cumulative sums that go on from `before`, `(1,)`; None: from zero."""
    return np.cumsum(values) if before is None or not len(before) else np.cumsum(np.append(before, values))[1:]


def joined(most: int, parts: Iterable[NDArray[Any]], dtype: DTypeLike = np.int64) -> NDArray[Any]:
    """Return parts of unknown length one after the other; they have at most so many items."""
    result, n = empty(most, dtype), 0
    for part in parts:
        result[n : n + len(part)] = part
        n += len(part)
    return result[:n]


def flatnonzero(n: int, part: Callable[[slice], NDArray[np.bool_]]) -> NDArray[np.int64]:
    """Return the indices of n flags that are set."""
    return joined(n, (piece.start + np.flatnonzero(part(piece)) for piece in pieces(n)))


def bounds(groups: NDArray[Any], n: int) -> NDArray[np.int64]:
    """Return where the rows of each of n groups begin in a sorted column, and their end, `(n + 1,)`.

    The numbers have the column's type, as numpy would convert all of it to another.
    """
    return np.searchsorted(groups, np.arange(n + 1, dtype=groups.dtype))


def release() -> None:
    """Release the pages of all large arrays; the next use of a page reads it again."""
    for pages in list(_maps):
        pages.madvise(mmap.MADV_DONTNEED)


def collect() -> None:
    """Free what only reference cycles hold, as the files of a finished engine, and give freed memory back."""
    if _maps:
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
        if trim is not None:
            trim(0)  # the GNU C library keeps freed memory between pieces that are in use


Parts = dict[int, list[tuple[int, int, int]]]
"""(file, offset, bytes) of what is in files, in order, by buffer."""


class Buffers:
    """Rows of unknown number in several buffers; files may hold the beginning of each."""

    def __init__(self) -> None:
        self.tails: list[bytearray] = []
        """The bytes of each buffer since the last `spill`, to append to."""
        self._parts: Parts = {}
        self._n_moved: dict[int, int] = {}
        """Bytes of each buffer in files."""
        self._file: int | None = None
        self._n_in_file = 0

    def n_bytes(self, index: int) -> int:
        """Return the length of a buffer."""
        return self._n_moved.get(index, 0) + len(self.tails[index])

    def new_file(self) -> int:
        """Open a file for a copy of this process to spill into. Raises OutputError."""
        with _file() as file:
            result = os.dup(file.fileno())
        weakref.finalize(self, os.close, result)
        return result

    def spill_into(self, file: int) -> None:
        """Spill into this file, from its beginning."""
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        self._file, self._n_in_file = file, 0

    def spill(self) -> None:
        """Move all rows to the file. Raises OutputError for a full disk."""
        if self._file is None:
            self._file = self.new_file()
        for index, tail in enumerate(self.tails):
            if tail:
                with _reserved(len(tail)):
                    _write(self._file, tail)
                self._add(index, (self._file, self._n_in_file, len(tail)))
                self._n_in_file += len(tail)
                tail.clear()

    def spilled(self) -> Parts:
        """Spill, and return where all rows are."""
        self.spill()
        return self._parts

    def adopt(self, parts: Parts) -> None:
        """Append rows that a copy of this process spilled."""
        for index, parts_of in parts.items():
            for part in parts_of:
                self._add(index, part)

    def replace(self, index: int, content: bytes) -> None:
        """Replace all rows of a buffer."""
        self._parts.pop(index, None)
        self._n_moved.pop(index, None)
        self.tails[index][:] = content

    def _add(self, index: int, part: tuple[int, int, int]) -> None:
        self._parts.setdefault(index, []).append(part)
        self._n_moved[index] = self._n_moved.get(index, 0) + part[-1]

    def rows(self, index: int, dtype: np.dtype[Any]) -> NDArray[np.void]:
        """Return the rows of a buffer, `(n_rows,)`."""
        if index not in self._parts:
            return np.frombuffer(self.tails[index], dtype)
        return self._joined([index], dtype)

    def all_rows(self, dtype: np.dtype[Any]) -> tuple[NDArray[np.void], list[int]]:
        """Return the rows of all buffers, one after the other, and the number of rows of each."""
        lengths = [self.n_bytes(index) // dtype.itemsize for index in range(len(self.tails))]
        if len(lengths) == 1:
            return self.rows(0, dtype), lengths
        return self._joined(range(len(lengths)), dtype), lengths

    def _joined(self, indexes: Any, dtype: np.dtype[Any]) -> NDArray[np.void]:
        result = empty(sum(map(self.n_bytes, indexes)) // dtype.itemsize, dtype)
        content = result.view(np.uint8)
        at = 0
        for index in indexes:
            for file, offset, n in self._parts.get(index, ()):
                content[at : at + n] = np.frombuffer(os.pread(file, n, offset), np.uint8)
                at += n
                release()
            tail = self.tails[index]
            content[at : at + len(tail)] = np.frombuffer(tail, np.uint8)
            at += len(tail)
        return result


def _file() -> BinaryIO:
    """Open a new file without a name."""
    with _reserved(0):
        return cast(BinaryIO, tempfile.TemporaryFile(dir=_folders[-1] if _folders else None, prefix="simserve."))


@contextmanager
def _reserved(n_bytes: int) -> Iterator[None]:
    """Turn an error of the system while so many bytes are written into a message with a remedy."""
    global _n_written
    try:
        yield
    except OSError as error:
        folder = _folders[-1] if _folders else Path(tempfile.gettempdir())
        where = "choose another --out" if _folders else "set TMPDIR to a larger disk"
        text = os.strerror(error.errno) if error.errno else str(error)
        raise OutputError(
            f"{folder}: must have room for the rows of a long run, got {text}; free space there, {where}, or simulate "
            f"fewer requests ({_n_written / 1e9:.2f} GB of temporary rows were written, and are removed; no result "
            "was written, and an earlier one is unchanged)"
        ) from error
    _n_written += n_bytes


def _reserve(file: BinaryIO, n_bytes: int) -> None:
    """Take the disk space of a file of zeros at once: a page that finds none later would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, n_bytes)
        return
    for start in range(0, n_bytes, LARGE_BYTES):
        _write(file.fileno(), bytes(min(LARGE_BYTES, n_bytes - start)))


def _write(file: int, content: bytes | bytearray) -> None:
    """Write all bytes; the system may take them in several parts."""
    n_written = 0
    with memoryview(content) as view:  # released at once: the buffer is cleared next
        while n_written < len(content):
            n_written += os.write(file, view[n_written:])
