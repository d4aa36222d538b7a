"""JSON as columns: lines of one object each, as in traces of Mooncake and vLLM, or one object, read item by item."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.input_files import parse_json, parse_value
from simserve.tables.columns import Lists, joined
from simserve.workload.readers.base import MS, Place, checked
from simserve.workload.readers.cells import IDS, NUMBER, CellKind, Piece, read_pieces
from simserve.workload.readers.prefix_ids import MOONCAKE_BLOCK_TOKENS, VLLM_BLOCK_TOKENS, HashIds, given_block_tokens
from simserve.workload.readers.text_lines import MOST_LINE_BYTES, decoded, line_pieces
from simserve.workload.trace import Trace

KEYS = ("timestamp", "input_length", "output_length")
KINDS: Mapping[str, CellKind] = dict.fromkeys(KEYS, NUMBER) | {"hash_ids": IDS}

Meaning = Callable[[Lists, NDArray[Any]], HashIds]
"""Interprets the hash_ids of all rows, given the prompt lengths."""

ReadRow = Callable[[Path, int, str], Mapping[str, Any]]
"""Reads the text of a line, given its number. Raises TraceError."""


def read_mooncake(path: Path) -> Trace:
    """Read a Mooncake trace: stamps are milliseconds in steps of 3 s, hash_ids chained. Raises TraceError.

    The last block of a prompt, nearly always partial, has an id too. It is dropped: engines share whole blocks, and
    only a prompt equal to the last token has the same id.
    Source: Mooncake (Qin et al., FAST '25), Apache-2.0.
    """
    return _read_lines(path, MS, lambda rows, _: HashIds(rows, MOONCAKE_BLOCK_TOKENS))


def read_vllm(path: Path) -> Trace:
    """Read a timed trace of vLLM, such as the Qwen-Bailian ones; stamps are seconds. Raises TraceError.

    They have hash_ids of 16 tokens (vllm-project/vllm pull request 39795), each from its own block alone (README of
    alibaba-edu/qwen-bailian-usagetraces-anon). Mooncake's in seconds have 512.
    """

    def hash_ids(rows: Lists, prompt_tokens: NDArray[Any]) -> HashIds:
        block_tokens = given_block_tokens(prompt_tokens, np.diff(rows.offsets)) or VLLM_BLOCK_TOKENS
        return HashIds(rows, block_tokens, may_be_unchained=True)

    return _read_lines(path, 1.0, hash_ids)


def _read_lines(path: Path, seconds_per_stamp: float, meaning: Meaning) -> Trace:
    """Read a trace with a request a line; empty lines are skipped. Raises TraceError."""
    place, columns = read_pieces(path, cells_of_lines(path, _row, KINDS), KINDS)
    columns["timestamp"] *= seconds_per_stamp
    hash_ids = columns.pop("hash_ids")
    put_prefixes = meaning(hash_ids, columns["input_length"]).put if len(hash_ids.values) else None
    del hash_ids  # 8 bytes a row, where no row has any
    return checked(place, Trace(*map(columns.pop, KEYS)), put_prefixes)


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


def read_object(path: Path, kinds: Mapping[str, CellKind]) -> dict[str, Any]:
    """Return the values of a file's object, such as a benchmark's result: lists with a kind as columns, other lists as
    empty ones, the rest as it is. Raises TraceError."""
    text = _Text(path)
    try:
        members = dict(_members(path, text, kinds))
        text.end()
        return members
    except json.JSONDecodeError as error:
        remedy = "was the file cut, or does it hold several results?"
        raise TraceError(f"{path}:{text.line(error.pos)}: must be one JSON object ({error.msg}); {remedy}") from None


def read_objects(path: Path, kinds: Mapping[str, CellKind]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file, one after another or in an array, as `read_object` does, each with the line where it
    begins. Raises TraceError."""
    text = _Text(path)
    try:
        is_array = text.peek() == "["
        if is_array:
            text.take("[")
        while text.peek() not in ("", "]"):
            line = text.here
            yield line, dict(_members(Path(f"{path}:{line}"), text, kinds))
            text.has_comma()
        if is_array:
            text.take("]")
        text.end()
    except json.JSONDecodeError as error:
        rule = f"must be JSON objects, one after another or in an array ({error.msg})"
        raise TraceError(f"{path}:{text.line(error.pos)}: {rule}; was the file cut?") from None


def _members(path: Path, text: "_Text", kinds: Mapping[str, CellKind]) -> Iterator[tuple[str, Any]]:
    text.take("{")
    is_next = text.peek() != "}"
    while is_next:
        if text.peek() != '"':
            raise text.error("Expecting a name in quotes")
        key = text.value()
        text.take(":")
        yield key, _column(path, key, text, kinds.get(key)) if text.peek() == "[" else text.value()
        is_next = text.has_comma()
    text.take("}")


def _column(path: Path, name: str, text: "_Text", kind: CellKind | None) -> Any:
    """Return a list as a column of its kind, or an empty list without one."""
    pieces: list[Any] = []
    n_items = 0
    for items, is_last in _items(text):
        place = Place(path, np.arange(n_items + 1, n_items + len(items) + 1), "request", is_part=not is_last)
        n_items += len(items)
        if kind is not None:
            pieces.append(kind.read(place, name, items))
    return joined(pieces) if kind is not None else []


def _items(text: "_Text") -> Iterator[tuple[list[Any], bool]]:
    """Yield the items of a list, about as many as a part of the text has, and whether they are the last."""
    text.take("[")
    items: list[Any] = []
    n_parts = text.n_parts
    is_next = text.peek() != "]"
    while is_next:
        items.append(text.value())
        is_next = text.has_comma()
        if text.n_parts > n_parts:
            yield items, False
            items, n_parts = [], text.n_parts
    text.take("]")
    yield items, True


BLANK = re.compile(r"[ \t\n\r]*")


class _Text:
    """A JSON text, of which a part is in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pieces = decoded(path)
        self._part = ""
        self._at = 0
        self._n_lines = 0
        self.n_parts = 0

    def line(self, position: int) -> int:
        """Return the line of a place in the part."""
        return self._n_lines + self._part.count("\n", 0, position) + 1

    @property
    def here(self) -> int:
        """The line of the next character."""
        return self.line(self._at)

    def error(self, rule: str) -> json.JSONDecodeError:
        """Return the error of the next character."""
        return json.JSONDecodeError(rule, self._part, self._at)

    def peek(self) -> str:
        """Return the next character that is not blank; "" at the end."""
        while True:
            blank = BLANK.match(self._part, self._at)
            self._at = blank.end() if blank else self._at
            if self._at < len(self._part):
                return self._part[self._at]
            if not self._has_more():
                return ""

    def end(self) -> None:
        """Raise JSONDecodeError unless nothing follows."""
        if self.peek():
            raise self.error("Extra data")

    def take(self, character: str) -> None:
        """Go on behind a character. Raises JSONDecodeError if it is not the next."""
        if self.peek() != character:
            raise self.error(f"Expecting '{character}' delimiter")
        self._at += 1

    def has_comma(self) -> bool:
        """Return whether a comma is next, and go on behind it."""
        is_next = self.peek() == ","
        self._at += is_next
        return is_next

    def value(self) -> Any:
        """Return the next value. Raises JSONDecodeError, or TraceError where it is too large."""
        self.peek()
        while True:
            try:
                value, end = parse_value(self._part, self._at)
            except json.JSONDecodeError:
                if not self._has_more():
                    raise
            else:
                if end + 2 < len(self._part) or not self._has_more():  # a number may go on, as in 1e-3
                    self._at = end
                    return value

    def _has_more(self) -> bool:
        """Read on. Raises TraceError where a value is too large."""
        if len(self._part) - self._at > MOST_LINE_BYTES:
            rule = f"a value must have at most {MOST_LINE_BYTES // 2**20} MiB"
            raise TraceError(f"{self._path}:{self.line(self._at)}: {rule}, got more; is it the right file?")
        piece = next(self._pieces, "")
        if piece:
            self._n_lines += self._part.count("\n", 0, self._at)
            self._part, self._at = self._part[self._at :] + piece, 0
            self.n_parts += 1
        return bool(piece)
