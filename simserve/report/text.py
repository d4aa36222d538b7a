"""Text of a document: paragraphs wrapped to a width, and tables with the columns that fit it."""

import re
import textwrap
from collections.abc import Sequence

from simserve.report.document import Document, Table
from simserve.report.formats import listed, plural

GAP = 2
"""Spaces between the columns of a table."""

NUMERIC = frozenset("0123456789-–≤≥<>~")

WHOLE = re.compile(r"(?<=\d) (?=(?:ms|s|h|min|req/s|GPUs?)\b|%)|(?<=≤) |(?<=\bP) (?=[\d<>])")
"""Spaces at which no line breaks: between a number and its unit."""


def unbroken(text: str) -> str:
    """Return text with a no-break space between each number and its unit."""
    return WHOLE.sub("\u00a0", text)


def document_text(document: Document, width: int | None = None) -> str:
    """Return what a terminal shows of a document, decision first; width: columns of the terminal, None without one."""
    return "\n\n".join(_text(block, width) for block in document.brief if block)


def _text(block: str | Table, width: int | None) -> str:
    match block:
        case str():
            return wrapped(block, width)
        case Table():
            rows = [[row.name, *row.cells] for row in block.rows]
            return table_text([block.heads, *rows] if block.heads else rows, width=width, dropped=block.dropped)


def wrapped(text: str, width: int | None, continued: str = "") -> str:
    """Return text with each of its lines broken at the width, indented as it is and by `continued`."""
    if width is None:
        return text
    lines: list[str] = []
    for line in unbroken(text).splitlines():
        indent = line[: len(line) - len(line.lstrip())] + continued
        lines += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "\n".join(lines).replace("\u00a0", " ")


def table_text(
    rows: Sequence[Sequence[str]], indent: str = "  ", *, width: int | None = None, dropped: Sequence[str] = ()
) -> str:
    """Return rows of cells as aligned lines: text to the left; numbers and their headings to the right.

    Where they exceed the width, columns go: those named in `dropped`, in that order, then from the right; a line says
    which. The first column and the last line of columns that fit always stay.
    """
    n_columns = max(map(len, rows), default=0)
    columns = [_aligned([row[i] if i < len(row) else "" for row in rows]) for i in range(n_columns)]
    kept, left_out = list(range(n_columns)), list[int]()
    if width is not None and rows:
        heads = list(rows[0])
        order = [heads.index(name) for name in dropped if name in heads]
        order += [place for place in reversed(range(1, n_columns)) if place not in order]
        for place in order:
            if len(indent) + sum(len(columns[i][0]) + GAP for i in kept) - GAP <= width:
                break
            kept.remove(place)
            left_out.append(place)
    lines = [(indent + (" " * GAP).join(cells)).rstrip() for cells in zip(*(columns[i] for i in kept), strict=True)]
    if left_out:
        names = listed([str(rows[0][place]) for place in sorted(left_out)])
        more = f"{plural(len(left_out), 'column')} left out for want of width: {names}."
        lines.append("\n".join(indent + line for line in textwrap.wrap(more, max(20, (width or 80) - len(indent)))))
    return "\n".join(lines)


def _aligned(column: Sequence[str]) -> list[str]:
    width = max(map(len, column))
    is_numeric = all((cell[:1] in NUMERIC and cell[:2] != "--") or not cell for cell in column[1:])
    return [cell.rjust(width) if is_numeric else cell.ljust(width) for cell in column]
