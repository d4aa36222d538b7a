"""Sweep words: the point to take, the best points, and a table."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from simserve.metrics.answers.measures import Measures
from simserve.metrics.answers.parts import Interval
from simserve.metrics.answers.sweep import BestPoint, PointOfSweep, SweepAnswer
from simserve.metrics.summary_schema import EARLIER
from simserve.report.formats import NONE, as_sentence, interval, listed, plural, rate, seconds, share, slo_terms
from simserve.report.headline import chance_text, ratio_text
from simserve.report.nominal_load import BY_WORD, CALIBRATE_NEXT, at_nominal, drawn, is_off

MOST_ROWS = 10
"""Points in the table on the terminal; the page has all."""

MOST_TIED = 3
"""Points on the edge that the sentence names."""


def sentence(answer: SweepAnswer) -> str:
    """Return the answer in words: decision, numbers, other bests, next command."""
    parts = [_decision(answer), *_bests(answer), _outside(answer), *load_warnings(answer), _size(answer)]
    return " ".join(filter(None, parts))


def _decision(answer: SweepAnswer) -> str:
    """Return which point to take, how well it does, and what is cheaper and may do, too."""
    if not answer.has_slo:
        return "Without an slo there is no goodput to rank points by."
    goal = f"{answer.goal_frac * 100:.4g}%"
    edges = [answer.points[number] for number in answer.tied[:MOST_TIED]]
    tied = " ".join(
        [
            *(_tied(answer, point) for point in edges),
            *([CALIBRATE_NEXT] if any(point.is_tied_by_cost for point in edges) else []),
        ]
    )
    if answer.best.cheapest is None:
        wanted = f"{goal} of requests must {terms(answer)}"
        return f"No point {'surely ' if tied else ''}meets the SLO: {wanted}. {tied or _closest(answer)}"
    point = answer.points[answer.best.cheapest.point]
    sure = "surely " if tied else ""
    head = f"Cheapest that {sure}meets the SLO: {name_of(answer, point)} for {dollars(point)} an hour."
    reached = f"{attained(point)} {terms(answer)}{at_nominal(point.load)}; the goal is {goal}."
    return " ".join(filter(None, (head, reached, _sure(point), tied)))


def _sure(point: PointOfSweep) -> str:
    """Return `With the error of the costs P is 98% (r 0.72).`; empty where costs count as exact."""
    judged = point.judged
    if judged is None or not judged.n_draws:
        return ""
    return f"With the error of the costs P is {chance_text(judged)} (r {ratio_text(judged.r or 0.0)})."


def _tied(answer: SweepAnswer, point: PointOfSweep) -> str:
    price = f"{name_of(answer, point)} costs {dollars(point)} an hour"
    if point.is_tied_by_cost:
        return f"{as_sentence(price)} {_sure(point)}"
    text = f"{price} and is statistically tied with the goal"
    return as_sentence(f"{text}: {attained(point)} {terms(answer)}")


def _closest(answer: SweepAnswer) -> str:
    """Return the point that attains the most, where none meets the SLO."""
    known = [(point.answer.attained_frac, point) for point in answer.points if point.is_finished and point.answer]
    if not known:
        return ""
    _, point = max(known, key=lambda pair: pair[0])
    return f"Closest is {name_of(answer, point)}: {attained(point)} do{at_nominal(point.load)}."


def attained(point: PointOfSweep) -> str:
    """Return `99.7% of requests (95% CI 99.5–99.9%, 8 seeds)`."""
    ends = interval(point.attained.low, point.attained.high)
    sure = "" if ends == NONE else f"95% CI {ends}, "
    n_seeds = point.n_seeds if point.answer is None else point.answer.n_runs
    return f"{share(point.attained.value)} of requests ({sure}{plural(n_seeds, 'seed')})"


def _bests(answer: SweepAnswer) -> list[str]:
    """Return which points give the most for their price and the most at all, and whether they meet the SLO."""
    if not answer.has_slo:
        return []
    requested: tuple[tuple[BestPoint | None, str, str, Callable[[Measures[Interval]], Interval]], ...] = (
        (answer.best.per_usd, "Most goodput per dollar", "requests", lambda means: means.goodput_per_usd),
        (answer.best.goodput, "Most goodput", "req/s", lambda means: means.goodput_per_s),
    )
    sentences = []
    for best, what, unit, figure in requested:
        if best is not None:
            point, like = answer.points[best.point], best.not_told_apart
            rivals = f" (statistically tied with {plural(len(like), 'other')})" if like else ""
            caveat = "" if point.word in (None, "meets") else f", but it {BY_WORD[point.word]}"
            amount = f"{rate(figure(point.means).value)} {unit}{rivals}{caveat}"
            sentences.append(f"{what}: {name_of(answer, point)}, {amount}.")
    return sentences


def by_text(
    answer: SweepAnswer, texts_of: Callable[[PointOfSweep], Iterable[str | None]]
) -> dict[str, list[PointOfSweep]]:
    """Return the texts of all points, each with its points."""
    points_of: dict[str, list[PointOfSweep]] = {}
    for point in answer.points:
        for text in texts_of(point):
            if text:
                points_of.setdefault(text, []).append(point)
    return points_of


def warnings(answer: SweepAnswer) -> list[str]:
    """Return the warnings of points as `simserve sweep` prints them: `point 3 (max_tokens 4096): ...`."""
    n, texts = len(answer.points), by_text(answer, lambda point: point.warnings)
    some = {text: name_of(answer, points[0]) for text, points in texts.items()}
    more = {text: f" and {len(points) - 1} more" if len(points) > 1 else "" for text, points in texts.items()}
    return [text if len(points) == n else f"{some[text]}{more[text]}: {text}" for text, points in texts.items()]


def load_warnings(answer: SweepAnswer) -> list[str]:
    """Return how far the shared seeds drew from the nominal load, where that is too far to stand for it."""
    off = [point.shared_load for point in answer.points if point.shared_load and is_off(point.shared_load)]
    if not off:
        return []
    at = drawn(off[0], len(answer.seeds))
    more = f" {len(off)} of {plural(len(answer.points), 'point')} are as far off." if len(off) > 1 else ""
    return [f"{at}{more} Goodput and latencies are those of the drawn load, SLO decisions those of the nominal one."]


def _size(answer: SweepAnswer) -> str:
    """Return how much was run, and what to do next."""
    n_seeds = len(answer.seeds)
    runs = f"{plural(len(answer.points), 'point')} of {answer.scenario.name}, {plural(n_seeds, 'seed')} each"
    most = max((point.n_seeds for point in answer.points), default=n_seeds)
    added = f", up to {most} where the SLO is near its edge" if most > n_seeds else ""
    next_command = " Next: --replications 8 ranks goodput and latencies over 8 seeds." if n_seeds == 1 else ""
    return f"{runs}{added}.{next_command if len(answer.points) > 1 else ''}"


def terms(answer: SweepAnswer) -> str:
    """Return `have TTFT ≤ 500 ms and TPOT ≤ 50 ms`, or what stands for it where points differ in it."""
    return "meet their SLO" if answer.slo is None or answer.slo_classes else f"have {slo_terms(answer.slo)}"


def _outside(answer: SweepAnswer) -> str:
    """Return how many points are not ranked."""
    n_saturated = sum(bool(point.saturated) for point in answer.points)
    n_failed = sum(not point.is_finished for point in answer.points)
    line = [f"{plural(n_saturated, 'point')} {'is' if n_saturated == 1 else 'are'} saturated"] if n_saturated else []
    line += [f"{plural(n_failed, 'point')} failed"] if n_failed else []
    return f"Not ranked: {listed(line)}." if line else ""


def table_rows(answer: SweepAnswer) -> list[Sequence[str]]:
    """Return a header and a row for each of the best points."""
    return [
        ("point", *columns(answer)),
        *((str(point.point), *cells(answer, point)) for point in ranked(answer)[:MOST_ROWS]),
    ]


def ranked(answer: SweepAnswer) -> list[PointOfSweep]:
    """Return points by goodput per dollar, without an SLO by p99 TTFT; unranked points last."""

    def place(point: PointOfSweep) -> tuple[bool, bool, float]:
        per_usd, ttft_s = point.means.goodput_per_usd.value, point.means.ttft_p99_s.value
        least = -per_usd if per_usd is not None else ttft_s if ttft_s is not None else float("inf")
        return not point.is_finished, bool(point.saturated), least

    return sorted(answer.points, key=place)


def columns(answer: SweepAnswer) -> list[str]:
    """Return the names of the columns."""
    slo = ["goodput, req/s", "requests/$", "attained", "95% CI", "r", "P", "SLO", "seeds"]
    given = slo if answer.has_slo else ["req/s", "tokens out/s", "state"]
    return [*short_names(answer.keys), "$/h", *given, "p99 TTFT", "p99 TPOT"]


def cells(answer: SweepAnswer, point: PointOfSweep) -> list[str]:
    """Return the values and results of a point."""
    means = point.means
    given = (means.goodput_per_s, means.goodput_per_usd)
    served = (means.served_per_s, means.output_tokens_per_s)
    return [
        *(shown(point.values.get(key)) for key in answer.keys),
        NONE if point.fleet is None else f"{point.usd_per_hour:,.2f}",
        *(rate(mean.value) for mean in (given if answer.has_slo else served)),
        *(_slo_cells(point) if answer.has_slo else [_state(point)]),
        seconds(means.ttft_p99_s.value),
        seconds(means.tpot_p99_s.value),
    ]


def _slo_cells(point: PointOfSweep) -> list[str]:
    """Return the share that met the SLO at the nominal load, its interval, r, P, the decision and its seeds."""
    answer, judged = point.answer, point.judged
    if answer is None or not point.is_finished or point.saturated:
        return [_state(point), *[NONE] * 3, EARLIER["missed"] if point.saturated else NONE, str(point.n_seeds)]
    ends = interval(answer.low_frac, answer.high_frac)
    margin = [NONE, NONE] if judged is None else [ratio_text(judged.r or 0.0), chance_text(judged)]
    margin = margin if judged is None or judged.probability is not None else [margin[0], NONE]
    word = (point.word or NONE).replace("_", " ")
    return [share(answer.attained_frac), ends, *margin, word, str(answer.n_runs)]


def _state(point: PointOfSweep) -> str:
    """Return why figures do not count; a dash where they do."""
    if not point.is_finished:
        return "failed" if point.status == "failed" else "partly failed"
    return "saturated" if point.saturated else NONE


def dollars(point: PointOfSweep) -> str:
    """Return the hourly cost of its GPUs."""
    return f"{point.usd_per_hour:,.2f} dollars"


def name_of(answer: SweepAnswer, point: PointOfSweep) -> str:
    """Return `point 3 (gpu h200-sxm, tensor 2)`."""
    return f"point {point.point} ({values_of(answer, point)})"


def values_of(answer: SweepAnswer, point: PointOfSweep) -> str:
    """Return `gpu h200-sxm, tensor 2`."""
    names = dict(zip(answer.keys, short_names(answer.keys), strict=True))
    return ", ".join(f"{names[key]} {shown(given)}" for key, given in point.values.items())


def short_names(keys: Sequence[str]) -> list[str]:
    """Return the shortest distinct endings of dotted keys."""
    parts = [key.split(".") for key in keys]

    def end(path: Sequence[str]) -> str:
        for n in range(1, len(path)):
            if sum(other[-n:] == path[-n:] for other in parts) == 1:
                return ".".join(path[-n:])
        return ".".join(path)

    return [end(path) for path in parts]


def shown(given: Any) -> str:
    """Return a value as text."""
    return given if isinstance(given, str) else NONE if given is None else json.dumps(given, ensure_ascii=False)
