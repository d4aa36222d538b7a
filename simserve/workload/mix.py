"""Mix: classes, priorities and tenants of requests, drawn by the shares of a scenario, and batch jobs among them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from simserve import plugins
from simserve.errors import TraceError
from simserve.tables.columns import Flags, Ints, by_appearance
from simserve.workload.amounts import picked
from simserve.workload.draws import draw_lengths
from simserve.workload.streams import Stream
from simserve.workload.trace import MOST_TOKENS, Dependencies, Prefixes, Trace

Column = TypeVar("Column", Prefixes, Dependencies)

FILLERS = {"max_tokens": MOST_TOKENS, "session_id": "", "turn": 0, "priority": 0, "slo_class": "", "tenant": ""}
"""Values of a column that only one of two traces has."""


def labeled(trace: Trace, workload: Any, stream: Stream) -> Trace:
    """Return the trace with the classes and tenants of `scenario.workload`. Raises TraceError if it has its own.

    Requests of a session share class and tenant. The first n labels are a prefix of any more. Arrivals stay the same,
    and lengths change only for classes with lengths of their own.
    """
    for key, column in (("classes", "slo_class"), ("tenants", "tenant")):
        if getattr(workload, key) and getattr(trace, column) is not None:
            raise TraceError(f"workload.{key}: the trace has a column {column} of its own; leave {key} out")
    if workload.classes:
        trace = _with_classes(trace, workload.classes, stream)
    if workload.tenants:
        names = np.array(list(workload.tenants), np.str_)
        trace = replace(trace, tenant=names[_drawn(trace, list(workload.tenants.values()), stream, "tenants")])
    return trace


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
    columns: dict[str, Any] = {}
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "request_id", *FILLERS):
        halves = [(getattr(trace, name), len(trace)) for trace in (first, second)]
        if any(half is not None for half, _ in halves):
            filled = [np.full(n, FILLERS[name]) if half is None else half for half, n in halves]
            columns[name] = np.concatenate(filled)
    if first.prefixes is not None:
        columns["prefixes"] = _extended(first.prefixes, len(second))
    if first.dependencies is not None:
        columns["dependencies"] = _extended(first.dependencies, len(second))
    both = Trace(**columns, notes=(*first.notes, *second.notes))
    return both.take(np.argsort(both.arrival_s, kind="stable"))


def _with_classes(trace: Trace, classes: Mapping[str, Any], stream: Stream) -> Trace:
    which = _drawn(trace, [part.share for part in classes.values()], stream, "classes")
    names = np.array(list(classes), np.str_)
    priorities = np.array([part.priority for part in classes.values()], np.int64)
    columns: dict[str, Any] = {"slo_class": names[which]}
    if trace.priority is None:
        columns["priority"] = priorities[which]
    trace = replace(trace, **columns)
    for place, (name, part) in enumerate(classes.items()):
        if part.lengths is not None:
            trace = _with_lengths(trace, which == place, part.lengths, _stream_of(name, stream))
    return trace


def _with_lengths(trace: Trace, is_of_class: Flags, lengths: Mapping[str, Any], stream: Stream) -> Trace:
    """Replace the lengths of classes that have their own."""
    drawn = draw_lengths(plugins.build("workload.lengths", lengths), len(trace), stream)
    return replace(
        trace,
        prompt_tokens=np.where(is_of_class, drawn.prompt_tokens, trace.prompt_tokens),
        output_tokens=np.where(is_of_class, drawn.output_tokens, trace.output_tokens),
        notes=(*trace.notes, *drawn.notes),
    )


def _stream_of(name: str, stream: Stream) -> Stream:
    return lambda purpose: stream(f"classes/{name}/{purpose}")


def _drawn(trace: Trace, shares: list[float], stream: Stream, purpose: str) -> Ints:
    """Draw the share that each request falls into, `(n_requests,)`."""
    owner = np.arange(len(trace)) if trace.session_id is None else by_appearance(trace.session_id)
    return picked(np.array(shares), int(owner.max(initial=-1)) + 1, stream(purpose))[owner]


def _extended(column: Column, n: int) -> Column:
    """Add n requests without ids, or without requests that they wait for."""
    starts = np.concatenate([column.starts, np.full(n, column.starts[-1])])
    if isinstance(column, Dependencies):
        return replace(column, starts=starts, think_s=np.append(column.think_s, np.zeros(n)))
    return replace(column, starts=starts)
