"""A concurrency in words: how many clients a closed loop may have, what they get, and what was tried on the way."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.capacity.rate import (
    attained,
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
from simserve.report.capacity.surroundings import CLIENTS
from simserve.report.formats import count, plural, rate


def sentence(found: Mapping[str, Any]) -> str:
    """The answer; from what `simserve capacity --concurrency --json` prints."""
    answer, name = found["answer"], found["scenario"]["name"]
    if answer is None:
        return none(found, f"concurrency of {name}", count(found["stopped_at"]["scale"]))
    n = answer["concurrency"]
    ends = CLIENTS.interval(n)
    return (
        f"{name} holds {plural(n['value'], 'client')} at once on {gpus(answer)} "
        f"({certainty(answer, ends)}), the highest concurrency at which {wanted(found)}; "
        f"{answer['clients_per_gpu']:.4g} a GPU. They get {rate(answer['served_per_s'])} requests/s and "
        f"{rate(answer['output_tokens_per_s'])} output tokens/s: {per_each(answer)}. {fails_first(answer)}"
        f"{imprecise(found)}{_few_turns(answer)}"
    )


def _few_turns(answer: Mapping[str, Any]) -> str:
    if answer["enough_turns"]:
        return ""
    return " Each client asks fewer than ten times, so the rush at the start weighs much: raise workload.n_requests."


def table_rows(found: Mapping[str, Any]) -> list[Sequence[str]]:
    """A row a concurrency, the lowest first, below the heads of the columns."""
    keys, heads = latency_heads(found)
    rows: list[Sequence[str]] = [("clients", "runs", "attained", "requests/s", *heads)]
    for point in found["points"]:
        cells = (count(point["concurrency"]), str(point["n_runs"]), attained(point), rate(point["served_per_s"]))
        rows.append((*cells, *latency_cells(point, keys)))
    return rows
