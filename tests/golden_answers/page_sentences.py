"""The sentences of a page by place and position; without scripts, styles and the data of charts."""

import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

from tests.report.figures import figures

VOID = {"meta", "br", "img", "link", "input", "hr", "wbr"}
SKIPPED = {"script", "style"}
PLACES = {"header", "nav", "section", "footer"}
INLINE = {"a", "abbr", "b", "code", "em", "i", "strong", "sub", "sup"}
UNITS = {"title", "h1", "h2", "h3", "h4", "p", "li", "dt", "dd", "tr", "pre", "summary", "caption", "footer", "label"}
"""Elements that make one entry, with all that is in them."""
UNIT_CLASSES = {"tile", "fact", "split", "keys"}


class Page(HTMLParser):
    """Reads a page into texts by id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self._open: list[str] = []
        self._places: list[tuple[int, str]] = []
        self._unit: tuple[int, str] | None = None
        self._chunks: list[str] = []
        self._counts: Counter[str] = Counter()
        self._labels: dict[str, str] = {}
        self.feed(page)
        self.close()
        for name, figure in figures(page).items():
            self.texts[f"page.chart.{name}"] = " | ".join([self._labels[name], *words_of(figure)])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open a place or an entry."""
        attributes = dict(attrs)
        kind = next((name for name in (attributes.get("class") or "").split() if name in UNIT_CLASSES), tag)
        if tag not in VOID:
            self._open.append(tag)
        if tag in PLACES:
            self._places.append((len(self._open), attributes.get("id") or tag))
        if tag == "table":
            self._counts[f"{self._place()}.table"] += 1
        if self._unit is None and (tag in UNITS or kind in UNIT_CLASSES):
            self._unit = (len(self._open), kind)
        self._add("" if tag in INLINE else "\n")
        if attributes.get("role") == "img":
            self._labels[attributes["id"] or ""] = attributes["aria-label"] or ""
        if attributes.get("title"):
            self._add(f"\n[{attributes['title']}]\n")

    def handle_endtag(self, tag: str) -> None:
        """Close what the tag opened."""
        self._add("" if tag in INLINE else "\n")
        if self._unit is not None and self._unit[0] == len(self._open):
            self._write(self._unit[1])
        if self._places and self._places[-1][0] == len(self._open):
            self._places.pop()
        self._open.pop()

    def handle_data(self, data: str) -> None:
        """Add text to its entry; text outside of any makes one of its own."""
        is_loose = self._unit is None
        if (self._open and self._open[-1] in SKIPPED) or (is_loose and not data.strip()):
            return
        self._chunks.append(re.sub(r"\s+", " ", data))
        if is_loose:
            self._write(self._open[-1])

    def _add(self, text: str) -> None:
        if self._unit is not None:
            self._chunks.append(text)

    def _place(self) -> str:
        return self._places[-1][1] if self._places else "page"

    def _write(self, kind: str) -> None:
        cells = ("".join(self._chunks)).replace("\N{WORD JOINER}", "").split("\n")
        text = " | ".join(cell.strip() for cell in cells if cell.strip())
        self._unit, self._chunks = None, []
        if not text:
            return
        name = f"{self._place()}.{kind}"
        if kind == "tr":
            name = f"{self._place()}.table.{self._counts[f'{self._place()}.table']}"
        self._counts[f"{name} entries"] += 1
        self.texts[f"page.{name}.{self._counts[f'{name} entries']}"] = text


def words_of(figure: Any) -> list[str]:
    """Return titles of axes, annotations and names in the legend of a chart, without its data."""
    layout = figure["layout"]
    parts = [layout, *(layout[key] for key in sorted(layout) if re.fullmatch(r"[xy]axis\d*", key))]
    titles = [part["title"]["text"] for part in parts if part.get("title", {}).get("text")]
    notes = [note["text"] for note in layout.get("annotations", ()) if note.get("text")]
    return list(dict.fromkeys([*titles, *notes, *(trace["name"] for trace in figure["data"] if trace.get("name"))]))
