"""HTML of a document: the answer first, then the parts, in one page that loads nothing."""

import gzip
import json
import re
import shlex
from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from simserve.report.document import Block, Chapter, Document, Plot, SideBySide, Table, Tile
from simserve.report.formats import NONE
from simserve.report.text import unbroken

GLYPHS = {
    "": "",
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

FAST = 5
"""Level of gzip: half the time of the default 9, and 1% more bytes of plotly.js."""


def page(document: Document) -> str:
    """Return a whole page as HTML; it works offline and on paper, and a page without charts carries no plotly."""
    figures = {plot.name: plot.figure for plot in drawn(document.parts)}
    charts = json.dumps(figures, allow_nan=False, separators=(",", ":")).encode() if figures else b""
    made = " · ".join(f"{name} {value}" for name, value in document.made.items() if value is not None)
    return (
        _templates()
        .get_template("page.html")
        .render(
            document=document,
            page_title=f"{document.name}: {document.title} · simserve",
            contents=document.parts,
            glyph=GLYPHS[document.state],
            reading=_resource("reading.js"),
            policy=_policy(with_charts=bool(figures)),
            css=_resource("page.css"),
            foot=made,
            charts=Markup(_packed(charts)) if figures else "",
            plotly=Markup(_plotly()[0]) if figures else "",
            script=_resource("page.js"),
        )
    )


def head(document: Document) -> str:
    """Return the head of a page with its style, for a notebook that shares its own with others."""
    return f'<style>{_resource("notebook.css")}</style><div class="simserve-answer">{_head(document)}</div>'


def _head(document: Document) -> Markup:
    return Markup(_templates().get_template("blocks.html").module.Head(document, GLYPHS[document.state]))  # type: ignore[attr-defined]


def light_color(name: str) -> str:
    """Return a color of the light theme, as `#1261b0`."""
    color = re.search(rf"--{name}: (#[0-9a-f]{{6}})", _resource("page.css"))  # the first theme is light
    assert color is not None, name
    return color[1]


def prose(value: object) -> Markup:
    """Return text, made harmless, with each number on one line with its unit, and ranges whole."""
    return Markup(unbroken(str(escape(value))).replace("–", "\u2060–\u2060"))


def draw(block: Block | Tile) -> Markup:
    """Return a block as HTML, by the macro of its name."""
    macro = getattr(_templates().get_template("blocks.html").module, type(block).__name__)
    return Markup(macro(block))


def words(table: Table) -> list[int]:
    """Return the columns of which each cell begins with a letter or has nothing; that of the names of rows is 0."""
    columns = enumerate(zip(*((row.name, *row.cells) for row in table.rows), strict=False))
    return [place for place, cells in columns if {cell[:1].isalpha() for cell in cells if cell != NONE} == {True}]


def drawn(blocks: Iterable[Block]) -> Iterator[Plot]:
    """Yield the charts of a document that are drawn."""
    for block in blocks:
        match block:
            case Chapter() | SideBySide():
                yield from drawn(block.blocks)
            case Plot() if block.figure is not None:
                yield block


@cache
def _templates() -> Environment:
    loader = PackageLoader("simserve.report")
    jinja = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, auto_reload=False)
    filters: dict[str, Any] = {"prose": prose, "draw": draw, "head": _head, "quoted": shlex.quote, "words": words}
    jinja.filters.update(filters)
    return jinja


@cache
def _policy(*, with_charts: bool) -> str:
    """Return the rule that nothing may load and only these very scripts may run; plotly writes style elements."""
    hashes = _hash(_resource("reading.js").encode())
    hashes += f" {_plotly()[1]} {_hash(_resource('page.js').encode())}" if with_charts else ""
    rules = {
        "default-src": "'none'",
        "script-src": hashes,
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return Markup("; ".join(f"{name} {value}" for name, value in rules.items()))


@cache
def _plotly() -> tuple[str, str]:
    """Return plotly.js, compressed and in base64 (1.5 MB of 4.8 MB), and its hash."""
    from plotly.offline import get_plotlyjs  # late: a page without charts need not load it

    source = get_plotlyjs().encode()
    return _packed(source), _hash(source)


def _packed(content: bytes) -> str:
    """Return text that no HTML parser takes for markup: compressed, then in base64."""
    return b64encode(gzip.compress(content, FAST, mtime=0)).decode()


def _hash(script: bytes) -> str:
    return f"'sha256-{b64encode(sha256(script).digest()).decode()}'"


def _resource(name: str) -> Markup:
    return Markup(files("simserve.report").joinpath("templates", name).read_text(encoding="utf-8"))
