"""Sweep words: the point to take, the best points, and a table."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from simserve.report.formats import NONE, interval, listed, number, plural, rate, seconds, share, slo_terms
from simserve.report.nominal_load import DECISIONS, at_nominal, drawn, is_off

MOST_ROWS = 10
"""Points in the table on the terminal; the page has all."""

MOST_TIED = 3
"""Points on the edge that the sentence names."""

CAVEATS = {"missed": ", but it misses the SLO", "edge": ", but it is on the edge of the SLO"}
"""What keeps a point from being recommended, by its decision."""

GOODPUT, PER_USD, ATTAINED = "goodput.per_s", "goodput.per_usd", "slo_attainment.frac"
TTFT, TPOT = "ttft_s.p99", "tpot_s.p99"

GIVEN, SERVED = (GOODPUT, PER_USD), ("served_per_s", "output_tokens_per_s")
"""Measures in the table: with an SLO, and without."""


def sentence(result: Mapping[str, Any]) -> str:
    """Return the answer, from what `simserve sweep --json` prints: decision, numbers, other bests, next command."""
    parts = [_decision(result), *_bests(result), _outside(result), *load_warnings(result), _size(result)]
    return " ".join(filter(None, parts))


def _decision(result: Mapping[str, Any]) -> str:
    """Return which point to take, how well it does, and what is cheaper and may do, too."""
    best, points = result["best"], result["points"]
    if not _has_slo(result):
        return "Without an slo there is no goodput to rank points by."
    goal = f"{result['goal_frac'] * 100:.4g}%"
    tied = " ".join(_tied(result, points[place]) for place in result.get("tied", [])[:MOST_TIED])
    if best["cheapest"] is None:
        wanted = f"{goal} of requests must {terms(result)}"
        return f"No point {'surely ' if tied else ''}meets the SLO: {wanted}. {tied or _closest(result)}"
    point = points[best["cheapest"]["point"]]
    sure = "surely " if tied else ""
    head = f"Cheapest that {sure}meets the SLO: {name_of(result, point)} for {dollars(point)} an hour."
    reached = f"{attained(point)} {terms(result)}{at_nominal(point.get('load'))}; the goal is {goal}."
    return " ".join(filter(None, (head, reached, tied)))


def _tied(result: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    price = "for" if result["best"]["cheapest"] is None else "costs"
    text = f"{name_of(result, point)} {price} {dollars(point)} an hour and is statistically tied with the goal"
    return f"{text[:1].upper()}{text[1:]}: {attained(point)} {terms(result)}."


def _closest(result: Mapping[str, Any]) -> str:
    """Return the point that attains the most, where none meets the SLO."""
    known = [point for point in result["points"] if point["status"] == "finished" and point.get("answer")]
    if not known:
        return ""
    point = max(known, key=lambda each: number(each["answer"]["attained_frac"]) or 0.0)
    return f"Closest is {name_of(result, point)}: {attained(point)} do{at_nominal(point.get('load'))}."


def attained(point: Mapping[str, Any]) -> str:
    """Return `99.7% of requests (95% CI 99.5–99.9%, 8 seeds)`."""
    answer = point.get("answer")
    if not answer:  # of a sweep that an earlier version wrote
        of_all = point["measures"][ATTAINED]
        answer = {
            f"{name}_frac": of_all[key] for name, key in (("attained", "value"), ("low", "low"), ("high", "high"))
        }
        answer["n_runs"] = point["n_seeds"]
    ends = interval(answer["low_frac"], answer["high_frac"])
    sure = "" if ends == NONE else f"95% CI {ends}, "
    return f"{share(answer['attained_frac'])} of requests ({sure}{plural(answer['n_runs'], 'seed')})"


def _bests(result: Mapping[str, Any]) -> list[str]:
    """Return which points give the most for their price and the most at all, and whether they meet the SLO."""
    best, points = result["best"], result["points"]
    if not _has_slo(result):
        return []
    sentences = []
    for key, what, unit in (("per_usd", "Most goodput per dollar", "requests"), ("goodput", "Most goodput", "req/s")):
        if best[key] is not None:
            point = points[best[key]["point"]]
            amount = value(point, PER_USD if key == "per_usd" else GOODPUT)
            like = best[key].get("not_told_apart")
            rivals = f" (statistically tied with {plural(len(like), 'other')})" if like else ""
            misses = CAVEATS.get(str(point.get("decision")), "")
            sentences.append(f"{what}: {name_of(result, point)}, {rate(amount)} {unit}{rivals}{misses}.")
    return sentences


def by_text(
    result: Mapping[str, Any], texts_of: Callable[[Mapping[str, Any]], Iterable[str | None]]
) -> dict[str, list[Mapping[str, Any]]]:
    """Return the texts of all points, each with its points."""
    points_of: dict[str, list[Mapping[str, Any]]] = {}
    for point in result["points"]:
        for text in texts_of(point):
            if text:
                points_of.setdefault(text, []).append(point)
    return points_of


def warnings(result: Mapping[str, Any]) -> list[str]:
    """Return the warnings of points as `simserve sweep` prints them: `point 3 (max_tokens 4096): ...`."""
    n, texts = len(result["points"]), by_text(result, lambda point: point.get("warnings") or [])
    some = {text: f"point {points[0]['point']} ({values_of(result, points[0])})" for text, points in texts.items()}
    more = {text: f" and {len(points) - 1} more" if len(points) > 1 else "" for text, points in texts.items()}
    return [text if len(points) == n else f"{some[text]}{more[text]}: {text}" for text, points in texts.items()]


def load_warnings(result: Mapping[str, Any]) -> list[str]:
    """Return how far the shared seeds drew from the nominal load, where that is too far to stand for it."""
    off = [point for point in result["points"] if is_off(point.get("shared_load"))]
    if not off:
        return []
    at = drawn(off[0]["shared_load"], len(result["seeds"]))
    n = len(result["points"])
    more = f" {len(off)} of {plural(n, 'point')} are as far off." if len(off) > 1 else ""
    return [f"{at}{more} Goodput and latencies are those of the drawn load, SLO decisions those of the nominal one."]


def _size(result: Mapping[str, Any]) -> str:
    """Return how much was run, and what to do next."""
    n_seeds = len(result["seeds"])
    runs = f"{plural(len(result['points']), 'point')} of {result['scenario']['name']}, {plural(n_seeds, 'seed')} each"
    most = max((point["n_seeds"] for point in result["points"]), default=n_seeds)
    added = f", up to {most} where the SLO is near its edge" if most > n_seeds else ""
    next_command = " Next: --replications 8 ranks goodput and latencies over 8 seeds." if n_seeds == 1 else ""
    return f"{runs}{added}.{next_command if len(result['points']) > 1 else ''}"


def terms(result: Mapping[str, Any]) -> str:
    """Return `have TTFT ≤ 500 ms and TPOT ≤ 50 ms`, or what stands for it where points differ in it."""
    has_one = result["slo"] is not None and not result["slo_classes"]
    return f"have {slo_terms(result['slo'])}" if has_one else "meet their SLO"


def _outside(result: Mapping[str, Any]) -> str:
    """Return how many points are not ranked."""
    n_saturated = sum(bool(point["saturated"]) for point in result["points"])
    n_failed = sum(point["status"] != "finished" for point in result["points"])
    line = [f"{plural(n_saturated, 'point')} {'is' if n_saturated == 1 else 'are'} saturated"] if n_saturated else []
    line += [f"{plural(n_failed, 'point')} failed"] if n_failed else []
    return f"Not ranked: {listed(line)}." if line else ""


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return a header and a row for each of the best points."""
    return [
        ("point", *columns(result)),
        *((str(point["point"]), *cells(result, point)) for point in ranked(result)[:MOST_ROWS]),
    ]


def ranked(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return points by goodput per dollar, without an SLO by p99 TTFT; unranked points last."""

    def place(point: Mapping[str, Any]) -> tuple[bool, bool, float]:
        per_usd, ttft_s = value(point, PER_USD), value(point, TTFT)
        least = -per_usd if per_usd is not None else ttft_s if ttft_s is not None else float("inf")
        return point["status"] != "finished", bool(point["saturated"]), least

    return sorted(result["points"], key=place)


def columns(result: Mapping[str, Any]) -> list[str]:
    """Return the names of the columns."""
    slo = ["goodput, req/s", "requests/$", "attained", "95% CI", "SLO", "seeds"]
    given = slo if _has_slo(result) else ["req/s", "tokens out/s", "state"]
    return [*short_names(result["keys"]), "$/h", *given, "p99 TTFT", "p99 TPOT"]


def cells(result: Mapping[str, Any], point: Mapping[str, Any]) -> list[str]:
    """Return the values and results of a point."""
    return [
        *(shown(point["values"].get(key)) for key in result["keys"]),
        NONE if point["fleet"] is None else f"{point['fleet']['usd_per_hour']:,.2f}",
        *(rate(value(point, key)) for key in (GIVEN if _has_slo(result) else SERVED)),
        *(_slo_cells(point) if _has_slo(result) else [_state(point)]),
        seconds(value(point, TTFT)),
        seconds(value(point, TPOT)),
    ]


def _slo_cells(point: Mapping[str, Any]) -> list[str]:
    """Return the share that met the SLO at the nominal load, its interval, the decision and the seeds behind it."""
    answer = point.get("answer")
    if answer is None or point["status"] != "finished" or point["saturated"]:
        return [_state(point), NONE, DECISIONS["missed"] if point["saturated"] else NONE, str(point["n_seeds"])]
    ends = interval(answer["low_frac"], answer["high_frac"])
    return [share(answer["attained_frac"]), ends, DECISIONS[point["decision"]], str(answer["n_runs"])]


def _state(point: Mapping[str, Any]) -> str:
    """Return why figures do not count; a dash where they do."""
    if point["status"] != "finished":
        return "failed" if point["status"] == "failed" else "partly failed"
    return "saturated" if point["saturated"] else NONE


def _has_slo(result: Mapping[str, Any]) -> bool:
    return any(has_goodput(point) for point in result["points"])


def value(point: Mapping[str, Any], key: str) -> float | None:
    """Return a mean over shared seeds."""
    return number(((point["measures"] or {}).get(key) or {}).get("value"))


def has_goodput(point: Mapping[str, Any]) -> bool:
    """Return whether the point has an SLO and was run."""
    return value(point, GOODPUT) is not None


def dollars(point: Mapping[str, Any]) -> str:
    """Return the hourly cost of its GPUs."""
    return f"{point['fleet']['usd_per_hour']:,.2f} dollars"


def name_of(result: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    """Return `point 3 (gpu h200-sxm, tensor 2)`."""
    return f"point {point['point']} ({values_of(result, point)})"


def values_of(result: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    """Return `gpu h200-sxm, tensor 2`."""
    names = dict(zip(result["keys"], short_names(result["keys"]), strict=True))
    return ", ".join(f"{names[key]} {shown(given)}" for key, given in point["values"].items())


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
