"""A sweep in words: which points are best at what, and a row for each of the best."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.formats import NONE, listed, number, plural, rate, seconds, share, slo_terms

MOST_ROWS = 10
"""Points in the table on the terminal; the page has all."""

GOODPUT, PER_USD, ATTAINED = "goodput.per_s", "goodput.per_usd", "slo_attainment.frac"
TTFT, TPOT = "ttft_s.p99", "tpot_s.p99"

GIVEN, SERVED = (GOODPUT, PER_USD), ("served_per_s", "output_tokens_per_s")
"""What a table says that a point gives: with an SLO, and without."""


def sentence(result: Mapping[str, Any]) -> str:
    """The answer; from what `simserve sweep --json` prints."""
    n_seeds = len(result["seeds"])
    head = f"{plural(len(result['points']), 'point')} of {result['scenario']['name']}, {plural(n_seeds, 'seed')} each."
    return " ".join(part for part in (head, _bests(result), _outside(result), _control_variate(result)) if part)


def _bests(result: Mapping[str, Any]) -> str:
    """Who is best at what, a point once."""
    best, points = result["best"], result["points"]
    if not _has_slo(result):
        return "Without an slo there is no goodput to rank them by."
    praised: dict[int, list[str]] = {}
    for key, say in (("per_usd", _per_usd), ("goodput", _goodput), ("cheapest", _cheapest)):
        if best[key] is not None:
            praised.setdefault(best[key]["point"], []).append(say(result, best[key]))
    line = [f"{name_of(result, points[place])} {listed(text)}" for place, text in praised.items()]
    if best["cheapest"] is None:
        line.append(f"at no point do {within(result)}")
    text = "; ".join(line)
    return f"{text[:1].upper()}{text[1:]}."


def _per_usd(result: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    point = result["points"][best["point"]]
    return f"has the most goodput for its price, {rate(value(point, PER_USD))} requests a dollar{_rivals(best)}"


def _goodput(result: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    point = result["points"][best["point"]]
    price = f"{dollars(point)} an hour"
    return f"has the most goodput, {rate(value(point, GOODPUT))} requests/s for {price}{_rivals(best)}"


def _cheapest(result: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    point = result["points"][best["point"]]
    return f"is the cheapest at which {within(result)}, {dollars(point)} an hour"


def _rivals(best: Mapping[str, Any]) -> str:
    like = best["not_told_apart"]
    return f" ({plural(len(like), 'other')} may be as good)" if like else ""


def within(result: Mapping[str, Any]) -> str:
    """`99% of requests have TTFT ≤ 500 ms and TPOT ≤ 50 ms`, or what takes its place where points differ in it."""
    has_one = result["slo"] is not None and not result["slo_classes"]
    terms = f"have {slo_terms(result['slo'])}" if has_one else "meet their SLO"
    return f"{result['goal_frac'] * 100:.4g}% of requests {terms}"


def _outside(result: Mapping[str, Any]) -> str:
    """Points that are not ranked."""
    n_saturated = sum(bool(point["saturated"]) for point in result["points"])
    n_failed = sum(point["status"] != "finished" for point in result["points"])
    line = [f"{plural(n_saturated, 'point')} {'is' if n_saturated == 1 else 'are'} saturated"] if n_saturated else []
    line += [f"{plural(n_failed, 'point')} failed"] if n_failed else []
    return f"Not ranked: {listed(line)}." if line else ""


def _control_variate(result: Mapping[str, Any]) -> str:
    if len(result["seeds"]) > 1 or len(result["points"]) < 2:
        return ""
    return "One seed cannot tell whether chance ranks them so; --replications 5 can."


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """A row for each of the best points, below the heads of the columns."""
    return [
        ("point", *columns(result)),
        *((str(point["point"]), *cells(result, point)) for point in ranked(result)[:MOST_ROWS]),
    ]


def ranked(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All points, the most goodput for its price first; without an SLO the shortest p99 TTFT; what counts not, last."""

    def place(point: Mapping[str, Any]) -> tuple[bool, bool, float]:
        per_usd, ttft_s = value(point, PER_USD), value(point, TTFT)
        least = -per_usd if per_usd is not None else ttft_s if ttft_s is not None else float("inf")
        return point["status"] != "finished", bool(point["saturated"]), least

    return sorted(result["points"], key=place)


def columns(result: Mapping[str, Any]) -> list[str]:
    """The heads of a point's cells."""
    given = ["goodput/s", "requests/$", "attained"] if _has_slo(result) else ["requests/s", "tokens out/s", "state"]
    return [*short_names(result["keys"]), "$/h", *given, "p99 TTFT", "p99 TPOT"]


def cells(result: Mapping[str, Any], point: Mapping[str, Any]) -> list[str]:
    """Its values and what came of them."""
    shown_keys = GIVEN if _has_slo(result) else SERVED
    return [
        *(shown(point["values"].get(key)) for key in result["keys"]),
        NONE if point["fleet"] is None else f"{point['fleet']['usd_per_hour']:,.2f}",
        *(rate(value(point, key)) for key in shown_keys),
        _attained(point),
        seconds(value(point, TTFT)),
        seconds(value(point, TPOT)),
    ]


def _attained(point: Mapping[str, Any]) -> str:
    """What share met the SLO, or why that does not count."""
    if point["status"] != "finished":
        return "failed" if point["status"] == "failed" else "partly failed"
    return "saturated" if point["saturated"] else share(value(point, ATTAINED))


def _has_slo(result: Mapping[str, Any]) -> bool:
    return any(has_goodput(point) for point in result["points"])


def value(point: Mapping[str, Any], key: str) -> float | None:
    """The mean over its seeds."""
    return None if point["measures"] is None else number(point["measures"][key]["value"])


def has_goodput(point: Mapping[str, Any]) -> bool:
    """It has an SLO, and was run."""
    return value(point, GOODPUT) is not None


def dollars(point: Mapping[str, Any]) -> str:
    """What its GPUs cost an hour."""
    return f"{point['fleet']['usd_per_hour']:,.2f} dollars"


def name_of(result: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    """`point 3 (gpu h200-sxm, tensor 2)`."""
    return f"point {point['point']} ({values_of(result, point)})"


def values_of(result: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    """`gpu h200-sxm, tensor 2`."""
    names = dict(zip(result["keys"], short_names(result["keys"]), strict=True))
    return ", ".join(f"{names[key]} {shown(given)}" for key, given in point["values"].items())


def short_names(keys: Sequence[str]) -> list[str]:
    """The ends of dotted keys, as long as it takes to tell them apart."""
    parts = [key.split(".") for key in keys]

    def end(path: Sequence[str]) -> str:
        for n in range(1, len(path)):
            if sum(other[-n:] == path[-n:] for other in parts) == 1:
                return ".".join(path[-n:])
        return ".".join(path)

    return [end(path) for path in parts]


def shown(given: Any) -> str:
    """A value as a person would write it."""
    return given if isinstance(given, str) else NONE if given is None else json.dumps(given, ensure_ascii=False)
