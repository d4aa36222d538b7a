"""Parts of a page as HTML; every text that comes from outside goes through `text` or `prose`."""

import re
from collections.abc import Collection, Iterable, Sequence
from html import escape

from simserve.report.formats import NONE

GLYPHS = {
    "met": "✓",
    "missed": "✕",
    "likely_meets": "≈",
    "edge": "≈",
    "likely_misses": "≈",
    "few": "…",
    "saturated": "▲",
    "critical": "△",
    "near": "△",
    "beyond": "▲",
    "nothing": "∅",
    "unmeasured": "∅",
    "none": "○",
}
"""A shape for each decision, so that color is never the only sign."""

Key = tuple[str, str]
"""CSS classes of a swatch, and what it stands for."""


def text(value: object) -> str:
    """Return any text, made harmless inside HTML."""
    return escape(str(value))


def prose(value: object) -> str:
    """Return text with each number on one line with its unit, and ranges whole."""
    return re.sub(r"(?<=\d) (?=(?:ms|s|h|min)\b|%)|(?<=≤) ", "\u00a0", text(value)).replace("–", "\u2060–\u2060")


def tiles_of(tiles: Iterable[str]) -> str:
    """Return up to six tiles in a row; they wrap on a phone."""
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def tile(label: str, value: str, lines: Iterable[str]) -> str:
    """Return a label, a large value, and lines below that are HTML already."""
    below = "".join(f"<dd>{line}</dd>" for line in lines if line)
    return f'<div class="tile"><dt>{text(label)}</dt><dd class="value">{prose(value)}</dd>{below}</div>'


def warning_list(sentence: Sequence[str], otherwise: str) -> str:
    """Return cautions, a sentence each; or what is fine where there is none."""
    items = "".join(f"<li>{prose(caution)}</li>" for caution in sentence)
    fine = f'<li class="fine">{prose(otherwise)}</li>'
    return f'<section class="trust" id="trust"><h2>What to trust</h2><ul>{items or fine}</ul></section>'


def fact_list(facts: Sequence[tuple[str, str]]) -> str:
    """Return names with their values, those that are known."""
    pairs = "".join(
        f'<div class="fact"><dt>{text(name)}</dt><dd>{prose(value)}</dd></div>'
        for name, value in facts
        if not value.startswith(NONE)
    )
    return f'<dl class="facts">{pairs}</dl>'


def section(name: str, title: str, note: str, body: str) -> str:
    """Return a part of the page; `body` is HTML already."""
    sentence = f'<p class="note">{prose(note)}</p>' if note else ""
    return f'<section id="{name}"><h2>{text(title)}</h2>{sentence}{body}</section>'


def bullets(rows: Sequence[tuple[str, float, str]], most: float) -> str:
    """Return bars of ratios against a limit at 1, on a scale up to `most`: name, ratio and its text each."""
    lines = "".join(
        f'<div class="bullet"><span>{text(name)}</span><span class="track" style="--most:{most:.3f}">'
        f'<i class="{"over" if ratio > 1 else "ok"}" style="width:{min(ratio / most, 1):.2%}"></i></span>'
        f"<strong>{prose(value)}</strong></div>"
        for name, ratio, value in rows
    )
    return f'<div class="bullets">{lines}</div>'


def table(head: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], *, is_tall: bool = False) -> str:
    """Return a table; the names of rows are HTML already, everything else is text."""
    top = "".join(f'<th scope="col">{text(cell)}</th>' if cell else "<td></td>" for cell in head)
    lines = (
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{prose(cell)}</td>" for cell in cells)}</tr>'
        for name, cells in rows
    )
    frame = '<div class="scroll tall" tabindex="0">' if is_tall else '<div class="scroll" tabindex="0">'
    return f"{frame}<table><thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"


def row_table(rows: Sequence[Sequence[str]], *, is_tall: bool = False) -> str:
    """Return a table of rows of text, the first of which names the columns."""
    head, *others = rows
    return table(head, [(text(row[0]), row[1:]) for row in others], is_tall=is_tall)


def card(name: str, drawn: Collection[str], title: str, note: str, keys: Collection[Key], otherwise: str) -> str:
    """Return a chart in its frame, or the sentence that says why there is none."""
    head = f"<h3>{text(title)}</h3>" if title else ""
    if name not in drawn:
        return f'<div class="card">{head}<p class="empty">{prose(otherwise)}</p></div>'
    swatches = "".join(f'<span class="key {classes}">{text(meaning)}</span>' for classes, meaning in keys)
    legend = f'<div class="keys">{swatches}</div>' if swatches else ""
    label = text(title or "Timeline")
    sentence = f'<p class="note">{prose(note)}</p>'
    place = f'<div class="chart" id="{name}" role="img" aria-label="{label}"></div>'
    return f'<div class="card">{head}{sentence}{legend}{place}</div>'
