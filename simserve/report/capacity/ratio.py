"""A ratio in words: the best split of GPUs into prefill and decode, what it serves, and what the others would."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.capacity.load_curve import REQUESTS_PER_S
from simserve.report.capacity.rate import certainty, fails_first, gpus, per_each, wanted
from simserve.report.formats import NONE, SHORT, listed, plural, rate


def sentence(result: Mapping[str, Any]) -> str:
    """The answer; from what `simserve capacity --ratio --json` prints."""
    name, answer = result["scenario"]["name"], result["answer"]
    if answer is None:
        return f"No split of {name} holds at any rate that was tried: {wanted(result)}."
    at = answer["offered_per_s"]
    sure = certainty(answer, REQUESTS_PER_S.interval(at))
    return (
        f"{name} serves most with {replicas(answer)}, {answer['split']} on {gpus(answer)}: {rate(at['value'])} "
        f"requests/s ({sure}), the highest rate at which {wanted(result)}; {per_each(answer)}. {fails_first(answer)}"
        f"{_others(result)}{_close(answer)}"
    )


def replicas(split: Mapping[str, Any]) -> str:
    """`3 replicas of prefill and 5 replicas of decode`."""
    return listed([f"{plural(n, 'replica')} of {name}" for name, n in split["replicas"].items()])


def against(split: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    """`-19%`: how much less than the best."""
    change = split["offered_per_s"]["value"] / best["offered_per_s"]["value"] - 1
    return f"{change * 100:+.0f}%" if round(change * 100) else "alike"


def _others(result: Mapping[str, Any]) -> str:
    answer, text = result["answer"], ""
    others = [each for each in result["splits"] if each["split"] != answer["split"]]
    if others:
        second = max(others, key=lambda each: float(each["offered_per_s"]["value"]))
        text += f" Next is {second['split']} with {rate(second['offered_per_s']['value'])} ({against(second, answer)})."
    both = result["together"]
    if both is not None:
        text += (
            f" The same GPUs, each doing both, serve {rate(both['offered_per_s']['value'])} ({against(both, answer)})."
        )
    return text


def _close(answer: Mapping[str, Any]) -> str:
    return "" if answer["is_clear"] or answer["n_seeds"] == 1 else " Too close to the next to tell for sure."


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """A row a split, the fewest prefill replicas first, below the heads of the columns; together last."""
    rows: list[Sequence[str]] = [("split", "requests/s", "interval", "a GPU", "GPUs", "fails first")]
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
