"""A capacity in words: the highest load that holds, what it comes to, and what was tried on the way."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.formats import SHORT, goal, rate, seconds, share, slo_terms

ASKED = ("ttft_s", "tpot_s")
"""Latencies in the table whatever the SLO is about."""


def sentence(found: Mapping[str, Any]) -> str:
    """The answer; from what `simserve capacity --json` prints."""
    answer, name = found["answer"], found["scenario"]["name"]
    terms = "what the SLO of their class asks" if found.get("slo_classes") else slo_terms(found["slo"])
    wanted = f"{found['goal_frac'] * 100:.4g} %"
    if answer is None:
        return _none(found, f"{wanted} of requests have {terms}")
    offered, n_gpus = answer["offered_per_s"], answer["fleet"]["n_gpus"]
    gpus = f"{n_gpus} GPU{'' if n_gpus == 1 else 's'}"
    per = f"{rate(answer['per_gpu_s']['value'])} a second and GPU"
    if answer["per_usd"] is not None:
        per += f", {rate(answer['per_usd']['value'])} requests a dollar"
    if answer["per_kwh"] is not None:
        per += f", {rate(answer['per_kwh']['value'])} a kWh at the cards' full power"
    sure = f"{answer['confidence'] * 100:.0f} % interval {rate(offered['low'])} to {rate(offered['high'])}"
    return (
        f"p{wanted.removesuffix(' %')} goodput of {name}: {rate(offered['value'])} requests/s on {gpus} ({sure}, "
        f"{answer['n_seeds']} seeds), the highest rate at which {wanted} of requests have {terms}; {per}. "
        f"{_fails_first(answer['fails_first'])}{_imprecise(answer)}"
    )


def _fails_first(what: str) -> str:
    return "Beyond it the queue only grows." if what == "queue" else f"{SHORT[what]} fails first."


def _imprecise(answer: Mapping[str, Any]) -> str:
    if answer["is_precise"]:
        return ""
    wanted = f"{answer['precision_frac'] * 100:.3g} %"
    return f" The interval is wider than the {wanted} asked for, with as many seeds as are tried: make the runs longer."


def _none(found: Mapping[str, Any], wanted: str) -> str:
    last = found["points"][0]
    at = f"{rate(last['offered_per_s'])} requests/s"
    if found["state"] == "every load":
        return f"Every rate of {found['scenario']['name']} up to {at}, where the search stopped, holds: {wanted}."
    key, frac = min(last["by_slo"].items(), key=lambda item: item[1])
    limit = goal(found["slo"][key]) if key in found["slo"] and not found.get("slo_classes") else "of their class"
    why = f"there {share(frac)} of requests meet {SHORT[key]} {limit}"
    if last["saturated"]:
        why = "even there the queue only grows"
    return f"No rate of {found['scenario']['name']} holds, down to {at}, where the search stopped ({why}): {wanted}."


def table_rows(found: Mapping[str, Any]) -> list[Sequence[str]]:
    """A row a load, the lowest first, below the heads of the columns."""
    keys, heads = latency_heads(found)
    return [("requests/s", "attained", *heads), *(_row(point, keys) for point in found["points"])]


def latency_heads(found: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Latencies that a table of what was tried shows, and what their columns are called."""
    keys = [key for key in SHORT if key in found["points"][0] and (key in found["slo"] or key in ASKED)]
    return keys, [f"{level} {SHORT[key]}" for key in keys for level in ("p50", "p99")]


def latency_cells(point: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """What stands in these columns."""
    return [seconds(point[key][level]) for key in keys for level in ("p50", "p99")]


def _row(point: Mapping[str, Any], keys: Sequence[str]) -> Sequence[str]:
    attained = "saturated" if point["saturated"] else share(point["attained_frac"])
    return (rate(point["offered_per_s"]), attained, *latency_cells(point, keys))
