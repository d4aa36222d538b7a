"""Outcomes: what a run and its classes attained, read from its summary, and the answer of the run on its own."""

from typing import TYPE_CHECKING

from simserve.metrics.answer import FAR_FRAC, AnswerJson, Attained, Outcome, alone_answer
from simserve.metrics.goal import GOAL_FRAC

if TYPE_CHECKING:  # imports numpy
    from simserve.metrics.classes import GroupJson
    from simserve.metrics.figures import Summary

OUTCOME_KEYS = ("requests", "slo", "slo_attainment", "classes", "trust", "load", "tails")
"""Keys of what `outcomes` reads, beside the latencies that the SLO limits."""


def outcomes(summary: "Summary") -> dict[str | None, Outcome]:
    """Read the outcomes of a run from its summary; none without an SLO or without requests."""
    by_class = {name: _outcome(summary, own, name) for name, own in (summary.classes or {}).items()}
    known: dict[str | None, Outcome] = {name: each for name, each in by_class.items() if each is not None}
    whole = None if known else whole_outcome(summary)
    return known if whole is None else {None: whole}


def whole_outcome(summary: "Summary") -> Outcome | None:
    """Read the outcome of all requests together, whatever their classes."""
    return _outcome(summary, summary, None)


def _outcome(summary: "Summary", own: "Summary | GroupJson", name: str | None) -> Outcome | None:
    """Read what `own`, a class of that name or the whole run, attained."""
    attained, n_arrived = own.slo_attainment, own.requests.arrived
    if not n_arrived or attained is None or attained.frac is None:
        return None
    trust, n_all = summary.trust, summary.requests.arrived
    ends = attained.low_frac, attained.high_frac
    latencies = [(getattr(own, key).max, limit) for key, limit in own.slo.items()]
    is_far_below = all(highest is not None and highest <= FAR_FRAC * limit for highest, limit in latencies)
    groups = next((tail for tail in summary.tails if tail.slo_class == name), None)
    return Outcome(
        attained_frac=attained.frac,
        n_arrived=n_arrived,
        n_effective=max(1.0, (trust.n_effective or n_all) * n_arrived / n_all),
        off_frac=summary.load.off_frac,
        is_far_below=attained.frac == 1 and bool(latencies) and is_far_below,
        queue="growing" if trust.saturated else trust.steady,
        by_slo={key: value for key, value in attained.by_slo.items() if value is not None},
        interval=None if ends[0] is None or ends[1] is None else [ends[0], ends[1]],
        counts=groups.counts if groups else [],
        r=groups.r if groups else [],
    )


def run_answer(summary: "Summary", goal_frac: float) -> AnswerJson | None:
    """Return the answer of a run on its own, by the class that fares worst; None without an SLO or requests."""
    return alone_answer(outcomes(summary), goal_frac)


def with_answer(figures: "Summary", word: Attained | None) -> "Summary":
    """Return the figures of a run with its answer, decided with a word where its margin is known."""
    answer = run_answer(figures, GOAL_FRAC)
    if answer is not None and word is not None:
        answer = answer.model_copy(update={"decision": word})
    return figures.model_copy(update={"answer": answer})
