"""Scratch: temporary files of one run, in which its large arrays lie; only the pages in use are in memory.

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


class Pages(mmap.mmap):
    """The memory of one array in a file."""

    scratch: "Scratch"
    """Where its run keeps all of its arrays."""


class Scratch:
    """The temporary files of one run."""

    def __init__(self, folder: Path | None = None) -> None:
        """folder: of a result, which need not exist yet; files are made on its disk, by default on the system's."""
        places = () if folder is None else (folder.absolute(), *folder.absolute().parents)
        self._folder = next((place for place in places if place.is_dir()), None)
        self._pages: weakref.WeakSet[Pages] = weakref.WeakSet()
        """All arrays in files."""
        self.is_shared = False
        """Copies of this process write arrays too, so that all must be in files."""
        self._n_written = 0
        """Bytes of all files so far; those of earlier runs are free again."""

    def _is_in_file(self, n_bytes: int) -> bool:
        return n_bytes >= (1 if self.is_shared else LARGE_BYTES)

    def empty(self, n: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of n items; a large one is in a file and zero. Raises OutputError for a full disk."""
        kind = np.dtype(dtype)
        n_bytes = n * kind.itemsize
        if not self._is_in_file(n_bytes):
            return np.empty(n, kind)
        with self.file() as file:
            with self._writing(n_bytes):
                _reserve(file, n_bytes)
            pages = Pages(file.fileno(), n_bytes)
        pages.scratch = self
        self._pages.add(pages)
        return np.frombuffer(pages, kind)

    def full(self, n: int, value: float, dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of n equal items."""
        if not value and not self._is_in_file(n * np.dtype(dtype).itemsize):
            return np.zeros(n, dtype)
        result = self.empty(n, dtype)
        for piece in self.pieces(n) if value else ():
            result[piece] = value
        return result

    def pieces(self, n: int, n_rows: int | None = None) -> Iterator[slice]:
        """Yield the slices of n rows that are computed at a time, by default PIECE_ROWS; between them all pages are
        released."""
        step = n_rows or PIECE_ROWS
        for start in range(0, n, step):
            yield slice(start, min(start + step, n))
            if n > step:
                self.release()

    def built(self, n: int, part: Callable[[slice], NDArray[Any]]) -> NDArray[Any]:
        """Return an array of n rows, computed piece by piece."""
        return self.built_all(n, lambda piece: {"": part(piece)})[""]

    def built_all(self, n: int, part: Callable[[slice], Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        """Return several arrays of n rows, computed piece by piece; all pieces have the same types."""
        if n <= PIECE_ROWS:
            return dict(part(slice(0, n)))
        result: dict[str, NDArray[Any]] = {}
        for piece in self.pieces(n):
            for name, values in part(piece).items():
                if name not in result:
                    result[name] = self.empty(n, values.dtype)
                result[name][piece] = values
        return result

    def joined(self, parts: Iterable[NDArray[Any]], most: int, dtype: DTypeLike = np.int64) -> NDArray[Any]:
        """Return parts of unknown length one after the other; they have at most so many items."""
        result, n = self.empty(most, dtype), 0
        for part in parts:
            result[n : n + len(part)] = part
            n += len(part)
        return result[:n]

    def release(self) -> None:
        """Release the pages of all arrays; the next use of a page reads it again."""
        for pages in list(self._pages):
            pages.madvise(mmap.MADV_DONTNEED)

    def collect(self) -> None:
        """Release all pages, free what only reference cycles hold, as the files of a finished engine, and give freed
        memory back."""
        if self._pages:
            self.release()
            gc.collect()
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
            if trim is not None:
                trim(0)  # the GNU C library keeps freed memory between pieces that are in use

    def file(self) -> BinaryIO:
        """Open a new file without a name. Raises OutputError."""
        with self._writing(0):
            return cast(BinaryIO, tempfile.TemporaryFile(dir=self._folder, prefix="simserve."))

    def write(self, file: int, content: bytearray) -> None:
        """Append to an open file. Raises OutputError for a full disk."""
        with self._writing(len(content)):
            _write(file, content)

    @contextmanager
    def _writing(self, n_bytes: int) -> Iterator[None]:
        """Turn an error of the system while so many bytes are written into a message with a remedy."""
        try:
            yield
        except OSError as error:
            where = "set TMPDIR to a larger disk" if self._folder is None else "choose another --out"
            text = os.strerror(error.errno) if error.errno else str(error)
            raise OutputError(
                f"{self._folder or tempfile.gettempdir()}: must have room for the rows of a long run, got {text}; "
                f"free space there, {where}, or simulate fewer requests ({self._n_written / 1e9:.2f} GB of temporary "
                "rows were written, and are removed; no result was written, and an earlier one is unchanged)"
            ) from error
        self._n_written += n_bytes


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
