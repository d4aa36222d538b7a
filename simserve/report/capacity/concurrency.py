"""Concurrency words: how many clients a closed loop may have, what they get, and what was tried on the way."""

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
    """The answer; from what `simserve capacity --concurrency --json` prints."""
    answer, name = result["answer"], result["scenario"]["name"]
    if answer is None:
        return none(result, f"concurrency of {name}", count(result["stopped_at"]["scale"]))
    n = answer["concurrency"]
    sure = certainty(answer, between(n, count))
    parts = [
        f"{name} holds {plural(n['value'], 'client')} at once on {gpus(answer)} ({sure}).",
        f"It is the highest concurrency at which {wanted(result)}; {answer['clients_per_gpu']:.4g} per GPU.",
        fails_first(answer),
        f"They get {rate(answer['requests_per_s'])} req/s and {rate(answer['output_tokens_per_s'])} output tokens/s.",
        f"That comes to {per_each(answer)}.",
        imprecise(result),
        _few_turns(answer),
    ]
    return " ".join(part for part in parts if part)


def _few_turns(answer: Mapping[str, Any]) -> str:
    if answer["enough_turns"]:
        return ""
    return "Each client sends fewer than ten requests, so the rush at the start weighs much: raise workload.n_requests."


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """A row a concurrency, the lowest first, below the heads of the columns."""
    keys, heads = latency_heads(result)
    rows: list[Sequence[str]] = [("clients", "runs", "attained", "95% CI", "req/s", *heads)]
    for point in result["points"]:
        cells = (count(point["concurrency"]), str(point["n_runs"]), *attained(point), rate(point["requests_per_s"]))
        rows.append((*cells, *latency_cells(point, keys)))
    return rows
