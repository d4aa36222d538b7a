"""Ratio text: the best split of GPUs into prefill and decode, its rate, and those of the others."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.capacity.load_curve import REQUESTS_PER_S
from simserve.report.capacity.rate import certainty, fails_first, gpus, per_each, wanted
from simserve.report.formats import NONE, SHORT, listed, plural, rate
from simserve.report.nominal_load import drawn


def sentence(result: Mapping[str, Any]) -> str:
    """Return the answer, from what `simserve capacity --ratio --json` prints."""
    name, answer = result["scenario"]["name"], result["answer"]
    if answer is None:
        return f"No split of {name} meets the SLO at any rate of the search: {wanted(result)}."
    at = answer["offered_per_s"]
    best = f"{name} serves the highest rate with {replicas(answer)}, {answer['split']} on {gpus(answer)}"
    parts = [
        f"{best}: {rate(at['value'])} req/s ({certainty(answer, REQUESTS_PER_S.interval(at))}).",
        f"It is the highest rate at which {wanted(result)}.",
        fails_first(answer),
        *_others(result),
        _close(answer),
        f"Efficiency: {per_each(answer)}.",
        drawn(result.get("load"), answer["n_seeds"]),
    ]
    return " ".join(part for part in parts if part)


def replicas(split: Mapping[str, Any]) -> str:
    """Return `3 replicas of prefill and 5 replicas of decode`."""
    return listed([f"{plural(n, 'replica')} of {name}" for name, n in split["replicas"].items()])


def against(split: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    """Return the difference from the best: `-19%`."""
    change = split["offered_per_s"]["value"] / best["offered_per_s"]["value"] - 1
    return f"{change * 100:+.0f}%" if round(change * 100) else "equal"


def _others(result: Mapping[str, Any]) -> list[str]:
    answer, sentences = result["answer"], []
    others = [each for each in result["splits"] if each["split"] != answer["split"]]
    if others:
        second = max(others, key=lambda each: float(each["offered_per_s"]["value"]))
        amount = f"{rate(second['offered_per_s']['value'])} req/s ({against(second, answer)})"
        sentences.append(f"The next best split is {second['split']}: {amount}.")
    both = result["together"]
    if both is not None:
        amount = f"{rate(both['offered_per_s']['value'])} req/s ({against(both, answer)})"
        sentences.append(f"Without disaggregation, the same GPUs serve {amount}.")
    return sentences


def _close(answer: Mapping[str, Any]) -> str:
    return (
        ""
        if answer["is_clear"] or answer["n_seeds"] == 1
        else "Statistically tied with another split: lengthen the runs."
    )


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return the column heads, then one row per split, the fewest prefill replicas first; `together` is last."""
    rows: list[Sequence[str]] = [("split", "req/s", "95% CI", "per GPU", "GPUs", "fails first")]
    return rows + [_row(each) for each in (*result["splits"], *([result["together"]] if result["together"] else []))]


def _row(each: Mapping[str, Any]) -> Sequence[str]:
    at = each["offered_per_s"]
    holds = each["state"] != "no load"
    more = "≥ " if each["state"] == "every load" else ""
    return (
        each["split"],
        f"{more}{rate(at['value'])}" if holds else NONE,
        REQUESTS_PER_S.interval(at) if each["state"] == "found" else NONE,
        rate(each["per_gpu_s"]["value"]) if holds else NONE,
        f"{each['fleet']['n_gpus']}",
        SHORT.get(each["fails_first"], "the queue grows"),
    )
