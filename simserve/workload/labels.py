"""Labels: class, priority and tenant of requests, drawn by the shares of a scenario."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve import plugins
from simserve.errors import TraceError
from simserve.tables.columns import Flags, Ints
from simserve.workload.amounts import picked
from simserve.workload.draws import draw_lengths
from simserve.workload.streams import Stream
from simserve.workload.trace import Trace


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
    owner = np.arange(len(trace)) if trace.session_id is None else _by_appearance(trace.session_id)
    return picked(np.array(shares), int(owner.max(initial=-1)) + 1, stream(purpose))[owner]


def _by_appearance(names: NDArray[np.str_]) -> Ints:
    """Number names by first appearance, so that more rows never change the first ones."""
    _, first, number = np.unique(names, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[number]
