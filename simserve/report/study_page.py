"""The page of a study: the frame that all of them share, in the look of a run's page, the answer first."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from simserve.report.charts import Figure
from simserve.report.document import document
from simserve.report.sections import GLYPHS, prose, text, tiles_of


@dataclass(frozen=True)
class Headline:
    """Head of a study's page."""

    command: str
    """The command that answered: `capacity`."""
    name: str
    """The name of the scenario, or of what was compared."""
    state: str
    """The decision, a key of `sections.GLYPHS`."""
    title: str
    """The answer in a few words."""
    lead: str
    """The answer in a sentence or two."""
    setup: str = ""
    """What was asked, smaller."""
    tiles: tuple[str, ...] = ()
    """The numbers that matter most, each from `sections.tile`."""


def study_page(headline: Headline, parts: Iterable[str], figures: Mapping[str, Figure], made: Mapping[str, Any]) -> str:
    """Return the page as HTML: it loads nothing, runs only its own scripts, and works offline and on paper.

    `parts` are HTML, from `sections.section`; `made` says what the answer comes from: version, digest, seeds.
    """
    sentence = " · ".join(f"{name} {value}" for name, value in made.items() if value is not None)
    body = f"{_header(headline)}{''.join(parts)}<footer>{prose(sentence)}</footer>"
    return document(f"{headline.name}: {headline.title} · simserve", body, figures)


def _header(headline: Headline) -> str:
    setup = f'<p class="setup">{prose(headline.setup)}</p>' if headline.setup else ""
    mark = f'<span class="mark" aria-hidden="true">{GLYPHS[headline.state]}</span>'
    return (
        f'<header class="{headline.state}"><p class="eyebrow">simserve {text(headline.command)} · '
        f"{text(headline.name)}</p><h1>{mark}{prose(headline.title)}</h1>"
        f'<p class="lead">{prose(headline.lead)}</p>{setup}'
        f"{tiles_of(headline.tiles) if headline.tiles else ''}</header>"
    )
