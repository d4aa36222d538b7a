"""The page's frame: the answer first, then the parts, in one HTML document that loads nothing."""

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from simserve.report.charts import Figure
from simserve.report.sections import GLYPHS, prose, text, tiles_of

SECTION = re.compile(r'<section\b[^>]*?\bid="([^"]+)"[^>]*><h2>(.*?)</h2>')

FAST = 5
"""Level of gzip: half the time of the default 9, and 1% more bytes of plotly.js."""

NO_SCRIPTS = "Scripts are blocked, so the charts are not drawn. The text and the tables are complete."


@dataclass(frozen=True)
class Headline:
    """Head of a page."""

    command: str
    """The command that answered: `capacity`; "" for a run."""
    name: str
    """The name of the scenario, or of what was compared."""
    state: str
    """The decision, a key of `sections.GLYPHS`."""
    title: str
    """The answer in a few words."""
    lead: str
    """The answer in a sentence or two."""
    setup: tuple[str, ...] = ()
    """What was asked, smaller, a paragraph each."""
    tiles: tuple[str, ...] = ()
    """The numbers that matter most, each from `sections.tile`."""


def page(headline: Headline, parts: Iterable[str], figures: Mapping[str, Figure], made: Mapping[str, Any]) -> str:
    """Return a whole page as HTML; it works offline and on paper.

    `parts` are HTML, from `sections.section`; `made` says what the answer comes from: version, digest, seeds.
    """
    sentence = " · ".join(f"{name} {value}" for name, value in made.items() if value is not None)
    body = f"{_header(headline)}{''.join(parts)}<footer>{prose(sentence)}</footer>"
    return document(f"{headline.name}: {headline.title} · simserve", body, figures)


def _header(headline: Headline) -> str:
    setup = "".join(f'<p class="setup">{prose(paragraph)}</p>' for paragraph in headline.setup)
    mark = f'<span class="mark" aria-hidden="true">{GLYPHS[headline.state]}</span>'
    return (
        f'<header class="{headline.state}"><p class="eyebrow">{" ".join(filter(None, ("simserve", headline.command)))}'
        f" · {text(headline.name)}</p><h1>{mark}{prose(headline.title)}</h1>"
        f'<p class="lead">{prose(headline.lead)}</p>{setup}'
        f"{tiles_of(headline.tiles) if headline.tiles else ''}</header>"
    )


def document(title: str, body: str, figures: Mapping[str, Figure]) -> str:
    """Return a self-contained page; `figures` are drawn into the elements of the same ids, and `{}` needs no plotly."""
    scripts = notice = ""
    if figures:
        notice = f"<noscript><p>{NO_SCRIPTS}</p></noscript>"
        charts = json.dumps(figures, allow_nan=False, separators=(",", ":")).encode()
        scripts = (
            f'<script type="application/gzip" id="charts">{_packed(charts)}</script>\n'
            f'<script type="application/gzip" id="plotly">{_plotly()[0]}</script>\n'
            f"<script>{_resource('page.js')}</script>\n"
        )
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(with_charts=bool(figures))}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{text(title)}</title><style>{_resource('page.css')}</style></head>\n",
            f"<body><main>{_with_contents(body, notice)}</main>\n{scripts}</body></html>\n",
        )
    )


def _with_contents(body: str, notice: str) -> str:
    """Return the body with links to its sections, and a notice, below its header."""
    items = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in SECTION.findall(body))
    contents = f'<nav class="contents" aria-label="Contents"><ul>{items}</ul></nav>' if items else ""
    return body.replace("</header>", f"</header>{contents}{notice}", 1)


@cache
def _policy(*, with_charts: bool) -> str:
    """Return the rule that nothing may load and only these very scripts may run; plotly writes style elements."""
    hashes = f"{_plotly()[1]} {_hash(_resource('page.js').encode())}" if with_charts else ""
    rules = {
        "default-src": "'none'",
        "script-src": hashes or "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


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


def _resource(name: str) -> str:
    return files("simserve.report").joinpath(name).read_text(encoding="utf-8")
