"""Concurrency text: the most clients of a closed loop, their throughput, and the table of loads."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.capacity.rate import (
    attained,
    between,
    certainty,
    fails_first,
    gpus,
    imprecise,
    latency_cells,
    latency_heads,
    none,
    per_each,
    wanted,
)
from simserve.report.formats import count, plural, rate


def sentence(result: Mapping[str, Any]) -> str:
    """Return the answer, from what `simserve capacity --concurrency --json` prints."""
    answer, name = result["answer"], result["scenario"]["name"]
    if answer is None:
        return none(result, f"concurrency of {name}", count(result["stopped_at"]["scale"]))
    n = answer["concurrency"]
    ci = certainty(answer, between(n, count))
    parts = [
        f"{name} sustains {plural(n['value'], 'client')} at once on {gpus(answer)} ({ci}).",
        f"It is the highest concurrency at which {wanted(result)}; {answer['clients_per_gpu']:.4g} per GPU.",
        fails_first(answer),
        f"Throughput: {rate(answer['requests_per_s'])} req/s, {rate(answer['output_tokens_per_s'])} output tokens/s.",
        f"Efficiency: {per_each(answer)}.",
        imprecise(result),
        _few_turns(answer),
    ]
    return " ".join(part for part in parts if part)


def _few_turns(answer: Mapping[str, Any]) -> str:
    if answer["enough_turns"]:
        return ""
    return "Each client sends fewer than ten requests, so the burst at the start dominates: raise workload.n_requests."


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return the column heads, then one row per concurrency, the lowest first."""
    keys, heads = latency_heads(result)
    rows: list[Sequence[str]] = [("clients", "runs", "attained", "95% CI", "req/s", *heads)]
    for point in result["points"]:
        cells = (count(point["concurrency"]), str(point["n_runs"]), *attained(point), rate(point["requests_per_s"]))
        rows.append((*cells, *latency_cells(point, keys)))
    return rows
