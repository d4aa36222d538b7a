"""Batch traffic: requests of batch jobs, merged with the interactive ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from simserve import plugins
from simserve.workload.dependencies import Dependencies
from simserve.workload.draws import draw_lengths
from simserve.workload.streams import Stream
from simserve.workload.trace import MOST_TOKENS, Prefixes, Trace

Column = TypeVar("Column", Prefixes, Dependencies)

FILLERS: dict[str, Callable[[int], Any]] = {
    "max_tokens": lambda n: np.full(n, MOST_TOKENS),
    "request_id": lambda n: np.arange(n).astype(np.str_),
    "session_id": lambda n: np.full(n, ""),
    "turn": lambda n: np.zeros(n, np.int64),
    "priority": lambda n: np.zeros(n, np.int64),
    "slo_class": lambda n: np.full(n, ""),
    "tenant": lambda n: np.full(n, ""),
}
"""Fill values for a column that only one of the two traces has."""


def batch_jobs(workload: Any, stream: Stream) -> Trace | None:
    """Return the requests of the batch jobs of `scenario.workload`, if any."""
    spec = workload.batch
    if spec is None:
        return None
    jobs_s = np.atleast_1d(np.array(spec.at_s, np.float64))
    paces_s = np.arange(spec.n_requests) * (spec.over_s / spec.n_requests)
    arrival_s = np.sort((jobs_s[:, None] + paces_s).ravel())
    n = len(arrival_s)
    lengths = plugins.build("workload.lengths", spec.lengths)
    drawn = draw_lengths(lengths, n, lambda purpose: stream(f"batch/{purpose}"))
    return Trace(
        arrival_s,
        drawn.prompt_tokens,
        drawn.output_tokens,
        priority=np.full(n, spec.priority),
        slo_class=np.full(n, spec.slo_class),
        tenant=None if spec.tenant is None else np.full(n, spec.tenant),
        notes=drawn.notes,
    )


def merged(first: Trace, second: Trace) -> Trace:
    """Merge batch jobs into a trace by arrival; ties favor the trace. Their prompts share nothing, nothing waits for
    their answers, and they have ids where the trace has."""
    if first.request_id is not None:
        second = replace(second, request_id=np.char.add("batch-", np.arange(len(second)).astype(np.str_)))
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])
        for name in ("arrival_s", "prompt_tokens", "output_tokens")
    }
    for name, filler in FILLERS.items():
        halves = [getattr(first, name), getattr(second, name)]
        if any(half is not None for half in halves):
            sizes = (len(first), len(second))
            filled = [filler(n) if half is None else half for half, n in zip(halves, sizes, strict=True)]
            columns[name] = np.concatenate(filled)
    notes = (*first.notes, *second.notes)
    if first.prefixes is not None:
        columns["prefixes"] = _extended(first.prefixes, len(second))
    if first.dependencies is not None:
        columns["dependencies"] = _extended(first.dependencies, len(second))
    both = Trace(**columns, notes=notes)
    order = np.argsort(both.arrival_s, kind="stable")
    return both.take(order)


def _extended(column: Column, n: int) -> Column:
    """Add n requests without ids, or without requests that they wait for."""
    starts = np.concatenate([column.starts, np.full(n, column.starts[-1])])
    if isinstance(column, Dependencies):
        return replace(column, starts=starts, think_s=np.append(column.think_s, np.zeros(n)))
    return replace(column, starts=starts)
