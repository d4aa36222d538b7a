"""Batch traffic: requests of batch jobs, merged with the interactive ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from simserve import plugins
from simserve.errors import TraceError
from simserve.workload.draws import draw_lengths
from simserve.workload.streams import Stream
from simserve.workload.trace import MOST_TOKENS, Prefixes, Trace

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


def with_batch(trace: Trace, workload: Any, stream: Stream) -> Trace:
    """Return the trace of `scenario.workload` with its batch traffic, if any; ties favor interactive requests."""
    spec = workload.batch
    if spec is None:
        return trace
    if trace.dependencies is not None:
        rule = "must not be combined with requests that wait for answers"
        raise TraceError(f"workload.batch: {rule}; leave it out, or send turns by the clock")
    jobs_s = np.atleast_1d(np.array(spec.at_s, np.float64))
    paces_s = np.arange(spec.n_requests) * (spec.over_s / spec.n_requests)
    arrival_s = np.sort((jobs_s[:, None] + paces_s).ravel())
    n = len(arrival_s)
    lengths = plugins.build("workload.lengths", spec.lengths)
    drawn = draw_lengths(lengths, n, lambda purpose: stream(f"batch/{purpose}"))
    batch = Trace(
        arrival_s,
        drawn.prompt_tokens,
        drawn.output_tokens,
        request_id=None if trace.request_id is None else np.char.add("batch-", np.arange(n).astype(np.str_)),
        priority=np.full(n, spec.priority),
        slo_class=np.full(n, spec.slo_class),
        tenant=None if spec.tenant is None else np.full(n, spec.tenant),
        notes=drawn.notes,
    )
    return _merged(trace, batch)


def _merged(first: Trace, second: Trace) -> Trace:
    """Merge two traces by arrival; prompts of the second share nothing."""
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
    both = Trace(**columns, prefixes=first.prefixes and _extended(first.prefixes, len(second)), notes=notes)
    order = np.argsort(both.arrival_s, kind="stable")
    return both.take(order)


def _extended(prefixes: Prefixes, n: int) -> Prefixes:
    """Add n requests without ids."""
    return replace(prefixes, starts=np.concatenate([prefixes.starts, np.full(n, prefixes.starts[-1])]))
