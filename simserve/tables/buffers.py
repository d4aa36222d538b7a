"""Buffers: rows of unknown number; files may hold their beginnings."""

import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.tables.scratch import Scratch

Parts = dict[int, list[tuple[int, int, int]]]
"""(file, offset, bytes) of what is in files, in order, by buffer."""


class Buffers:
    """Several buffers of one run, each appended to on its own."""

    def __init__(self, scratch: Scratch) -> None:
        self.tails: list[bytearray] = []
        """The bytes of each buffer since the last `spill`, to append to."""
        self._scratch = scratch
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
        with self._scratch.file() as file:
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
                self._scratch.write(self._file, tail)
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
        result = self._scratch.empty(sum(map(self.n_bytes, indexes)) // dtype.itemsize, dtype)
        content = result.view(np.uint8)
        at = 0
        for index in indexes:
            for file, offset, n in self._parts.get(index, ()):
                content[at : at + n] = np.frombuffer(os.pread(file, n, offset), np.uint8)
                at += n
                self._scratch.release()
            tail = self.tails[index]
            content[at : at + len(tail)] = np.frombuffer(tail, np.uint8)
            at += len(tail)
        return result
