"""Margin on a page: how close latencies come to each limit, as decisions say it."""

from collections.abc import Mapping

from simserve.metrics.summary_schema import DecisionJson
from simserve.report.document import Bullets, Chapter
from simserve.report.formats import SHORT
from simserve.report.headline import level_of, ratio_text

MOST, LEAST = 4.0, 1.25
"""Ends of the scale: a larger ratio fills its track, and the limit always has room beside it."""


def margin(decisions: Mapping[str, DecisionJson | None]) -> list[Chapter]:
    """Return a bar a limit of each decision, by what it is about ("" for one alone); nothing without ratios."""
    known = {about: each for about, each in decisions.items() if each is not None and each.r_by_limit}
    if not known:
        return []
    rows = [
        (f"{about} {SHORT[key]}".strip(), ratio, ratio_text(ratio))
        for about, decision in known.items()
        for key, ratio in sorted(decision.r_by_limit.items(), key=lambda item: -item[1])
    ]
    first = next(iter(known.values()))
    of = f" of class {first.slo_class}" if first.slo_class and len(known) == 1 else ""
    runs = f", all {first.n_runs} runs together" if first.n_runs > 1 else ""
    note = f"{level_of(first)} of latency/limit{of}{runs}; the line is the limit."
    return [Chapter("margin", "Margin", [Bullets(rows, max(LEAST, min(max(row[1] for row in rows), MOST)))], note)]
