"""Documents: what an answer tells, as data. A renderer (HTML, terminal) knows documents and no study."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from simserve.report.formats import NONE

if TYPE_CHECKING:
    from simserve.report.charts import Figure

SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z“0-9])")
"""The space between two sentences; no number or unit ends in a full stop before a space."""

Key = tuple[str, str]
"""CSS classes of a swatch, and what it stands for."""


class Toned(NamedTuple):
    """A line of a tile with a tone: `ok`, `over` or `soft`."""

    text: str
    tone: str


@dataclass(frozen=True)
class Tile:
    """A label, a large value, and lines below."""

    label: str
    value: str
    lines: Sequence[str | Toned] = ()


class Row(NamedTuple):
    """A row of a table: its name, its cells, and a smaller line below the name."""

    name: str
    cells: Sequence[str]
    below: str = ""


@dataclass(frozen=True)
class Table:
    """A table; the first of the heads is that of the names of rows."""

    heads: Sequence[str]
    rows: Sequence[Row]
    is_tall: bool = False
    """Scrolls in a frame of its own."""
    wraps: bool = False
    """Names of rows break on a phone."""
    dropped: Sequence[str] = ()
    """Heads of columns that a narrow terminal leaves out, in this order; then go those on the right."""

    @classmethod
    def of(cls, rows: Sequence[Sequence[str]], *, wraps: bool = False, dropped: Sequence[str] = ()) -> "Table":
        """Return a table of rows of text, the first of which names the columns."""
        head, *others = rows
        return cls(head, [Row(row[0], row[1:]) for row in others], wraps=wraps, dropped=dropped)


@dataclass(frozen=True)
class Plot:
    """A chart in its frame; `otherwise` says why there is none."""

    name: str
    figure: "Figure | None"
    title: str = ""
    note: str = ""
    keys: Sequence[Key] = ()
    otherwise: str = ""


@dataclass(frozen=True)
class SideBySide:
    """Charts side by side where there is room."""

    blocks: Sequence[Plot]


@dataclass(frozen=True)
class Facts:
    """Names with short values, in columns; those without a value are left out."""

    pairs: Sequence[tuple[str, str]]
    title: str = ""

    @property
    def known(self) -> Sequence[tuple[str, str]]:
        """Return those with a value."""
        return [(name, value) for name, value in self.pairs if not value.startswith(NONE)]


@dataclass(frozen=True)
class Explained:
    """Names with a sentence each."""

    pairs: Sequence[tuple[str, str]]
    is_wide: bool = False


@dataclass(frozen=True)
class Bullets:
    """Bars of ratios against a limit at 1, on a scale up to `most`: name, ratio and its text each."""

    rows: Sequence[tuple[str, float, str]]
    most: float


class Slice(NamedTuple):
    """A part of a bar: CSS class of its color, strength of the color, share of the scale, title and value."""

    color: str
    strength: float
    frac: float
    title: str
    value: str


@dataclass(frozen=True)
class Bars:
    """Bars of slices side by side, with a label and a total each, below the keys of their slices."""

    keys: Sequence[tuple[str, float, str]]
    """CSS class, strength and title."""
    rows: Sequence[tuple[str, Sequence[Slice], str]]


class Item(NamedTuple):
    """An item of a list: what it is about, in bold, a parenthesis, and the sentence."""

    about: str
    aside: str
    text: str


@dataclass(frozen=True)
class Items:
    """A list of sentences: causes, cautions with a mark each (`warns`), or plain ones."""

    items: Sequence[str | Item]
    kind: str = "why"
    """`why`, `warns` or `plain`."""


@dataclass(frozen=True)
class Paragraph:
    """A sentence or two."""

    text: str
    kind: str = ""
    """A CSS class: `empty` for what stands in place of something."""


@dataclass(frozen=True)
class Command:
    """A command line to copy; an option is not broken over lines."""

    words: Sequence[str]


@dataclass(frozen=True)
class Folded:
    """Text as it is, that opens at a click."""

    summary: str
    text: str


@dataclass(frozen=True)
class Cautions:
    """What to trust: cautions, a sentence each; or what is fine where there is none."""

    sentences: Sequence[str]
    otherwise: str = ""
    name: str = field(default="trust", init=False)
    title: str = field(default="What to trust", init=False)


@dataclass(frozen=True)
class Chapter:
    """A part of a document, with a heading."""

    name: str
    title: str
    blocks: Sequence["Block"]
    note: str = ""


Titled = Chapter | Cautions
"""What a document is made of."""

Block = Table | Plot | SideBySide | Facts | Explained | Bullets | Bars | Items | Paragraph | Command | Folded | Titled


@dataclass(frozen=True)
class Document:
    """What an answer tells: the decision first, the numbers that matter most, then the parts."""

    command: str
    """The command that answered: `capacity`; "" for a run."""
    name: str
    """The name of the scenario, or of what was compared."""
    state: str
    """The decision, a key of `html.GLYPHS`; "" where nothing is decided."""
    title: str
    """The answer in a few words."""
    lead: str
    """The answer in sentences: the number with its interval, the cause, what to do."""
    kept: Sequence[str] = ()
    """What a page keeps in sight beside the decision: load, fleet and cost, as far as they are known."""
    setup: Sequence[str] = ()
    """What was asked, smaller, a paragraph each."""
    tiles: Sequence[Tile] = ()
    """The numbers that matter most, at most six."""
    parts: Sequence[Titled] = ()
    """Sections of the page."""
    made: Mapping[str, object] = field(default_factory=dict)
    """What the answer comes from: version, digest, seeds; None is left out."""
    brief: Sequence[str | Table] = ()
    """What a terminal shows, decision first: paragraphs and tables."""
    warnings: Sequence[str] = ()
    """What a terminal prints to stderr below."""
    chart: "Figure | None" = None
    """The main chart, if it is not the first of the parts."""

    @property
    def sentences(self) -> Sequence[str]:
        """Return the sentences of the lead: a page shows the first, and the others as a list."""
        return SENTENCE_END.split(" ".join(self.lead.split()))
