"""Ratio: the best split of GPUs into prefill and decode, its rate, and those of the others, in words and as a page."""

import math
from collections.abc import Sequence

from simserve.metrics.answers.capacity import RatioCapacity
from simserve.metrics.answers.capacity_found import FoundSplit, SplitRate
from simserve.report.capacity.frame import CapacityHead, capacity_document, page_table
from simserve.report.capacity.load_curve import REQUESTS_PER_S
from simserve.report.capacity.rate import certainty, fails_first, gpus, per_each, wanted
from simserve.report.charts import Figure, axis, figure, hover, numbers, scatter, text, whiskers
from simserve.report.document import Chapter, Document, Plot, Table, Tile
from simserve.report.formats import NONE, SHORT, listed, plural, rate
from simserve.report.nominal_load import drawn


def sentence(result: RatioCapacity) -> str:
    """Return the answer in sentences."""
    name, answer = result.scenario.name, result.answer
    if answer is None:
        return f"No split of {name} meets the SLO at any rate of the search: {wanted(result)}."
    at = answer.offered_per_s
    best = f"{name} serves the highest rate with {replicas(answer)}, {answer.split} on {gpus(answer)}"
    parts = [
        f"{best}: {rate(at.value)} req/s ({certainty(answer, REQUESTS_PER_S.interval(at))}).",
        f"It is the highest rate at which {wanted(result)}.",
        fails_first(answer),
        *_others(result, answer),
        "" if answer.is_clear or answer.n_seeds == 1 else "Statistically tied with another split: lengthen the runs.",
        f"Efficiency: {per_each(answer)}.",
        drawn(result.load, answer.n_seeds),
    ]
    return " ".join(part for part in parts if part)


def replicas(split: SplitRate) -> str:
    """Return `3 replicas of prefill and 5 replicas of decode`."""
    return listed([f"{plural(n, 'replica')} of {name}" for name, n in split.replicas.items()])


def against(split: SplitRate, best: SplitRate) -> str:
    """Return the difference from the best: `-19%`."""
    change = split.offered_per_s.value / best.offered_per_s.value - 1
    return f"{change * 100:+.0f}%" if round(change * 100) else "equal"


def _others(result: RatioCapacity, answer: FoundSplit) -> list[str]:
    sentences = []
    others = [each for each in result.splits if each.split != answer.split]
    if others:
        second = max(others, key=lambda each: each.offered_per_s.value)
        amount = f"{rate(second.offered_per_s.value)} req/s ({against(second, answer)})"
        sentences.append(f"The next best split is {second.split}: {amount}.")
    both = result.together
    if both is not None:
        amount = f"{rate(both.offered_per_s.value)} req/s ({against(both, answer)})"
        sentences.append(f"Without disaggregation, the same GPUs serve {amount}.")
    return sentences


def _row(each: SplitRate) -> Sequence[str]:
    at = each.offered_per_s
    holds = each.state != "no load"
    more = "≥ " if each.state == "every load" else ""
    return (
        each.split,
        f"{more}{rate(at.value)}" if holds else NONE,
        REQUESTS_PER_S.interval(at) if each.state == "found" else NONE,
        rate(each.per_gpu_s.value) if holds else NONE,
        f"{each.fleet.n_gpus}",
        SHORT.get(each.fails_first, "the queue grows"),
    )


def tell(result: RatioCapacity) -> Document:
    """Return all that the answer tells."""
    note = "Highest rate that meets the goal, by replicas of prefill : decode, with its 95% CI; the best is filled."
    keys = [("dot k1", "a split"), *([("dash k0", "the same GPUs without disaggregation")] if result.together else [])]
    rows: list[Sequence[str]] = [("split", "req/s", "95% CI", "per GPU", "GPUs", "fails first")]
    rows += [_row(each) for each in (*result.splits, *([result.together] if result.together else []))]
    table = Table.of(rows)  # the fewest prefill replicas first
    parts = (
        Chapter("rates", "Highest rate of each split", [Plot("splits", _chart(result), "", note, keys)]),
        Chapter("tried", "Every split", [page_table(table)], "All use the same seeds."),
    )
    return capacity_document(result, _head(result), parts, (sentence(result), table))


def _head(result: RatioCapacity) -> CapacityHead:
    answer = result.answer
    if answer is None:
        return CapacityHead("missed", "No split holds", sentence(result))
    at = answer.offered_per_s
    title = f"{answer.split}, {REQUESTS_PER_S.format(at.value)} on {plural(answer.fleet.n_gpus, 'GPU')}"
    tiles = [
        Tile("Best split", answer.split, [replicas(answer)]),
        Tile("Rate", f"{rate(at.value)}/s", [f"95% CI {REQUESTS_PER_S.interval(at)}"]),
        Tile("Per GPU", f"{rate(answer.per_gpu_s.value)}/s"),
    ]
    for label, paid in (("Per dollar", answer.per_usd), ("Per kWh", answer.per_kwh)):
        if paid is not None:
            tiles.append(Tile(label, rate(paid.value), ["requests"]))
    both = result.together
    if both is None:
        tiles.append(Tile("Splits", str(len(result.splits))))
    else:
        tiles.append(Tile("Together", f"{rate(both.offered_per_s.value)}/s", [against(both, answer)]))
    state = "met" if answer.is_clear else "edge"
    return CapacityHead(state, title, sentence(result), tiles)


def _chart(result: RatioCapacity) -> Figure:
    """Chart one mark per split; the best is filled and larger, so that it does not depend on color."""
    splits, answer, both = result.splits, result.answer, result.together
    best = [answer is not None and each.split == answer.split for each in splits]
    rates = [each.offered_per_s for each in splits]
    names = [each.split for each in splits]
    values, ends = [each.value for each in rates], [(_or_nan(each.low), _or_nan(each.high)) for each in rates]
    texts = [text(f"{name}: {REQUESTS_PER_S.format(value)}") for name, value in zip(names, values, strict=True)]
    size, symbol = [13 if each else 9 for each in best], ["circle" if each else "circle-open" for each in best]
    dots = scatter(
        "lines+markers",
        names,
        numbers(values),
        error_y=whiskers(values, ends, "$c1"),
        **hover(texts),
        line={"color": "$c1", "width": 1.5, "dash": "2px,3px"},
        marker={"color": "$c1", "size": size, "symbol": symbol},
    )
    highest = max([each.high or each.value for each in rates] + ([both.offered_per_s.value] if both else []))
    shapes = []
    if both is not None:
        at = both.offered_per_s.value
        level = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at, "layer": "below"}
        shapes = [level | {"line": {"color": "$ink", "width": 1.5, "dash": "5px,4px"}}]
    x_axis = axis("Prefill : decode replicas", type="category", categoryorder="array", categoryarray=names)
    y_axis = axis("Requests/s", range=[0, 1.12 * highest if highest else 1.0], nticks=6)
    margin = {"l": 64, "r": 14, "t": 14, "b": 50}
    return figure([dots], 360, xaxis=x_axis, yaxis=y_axis, shapes=shapes, margin=margin)


def _or_nan(end: float | None) -> float:
    """Return the end of an interval; NaN where it is unknown."""
    return math.nan if end is None else end
