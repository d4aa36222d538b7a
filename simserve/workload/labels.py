"""Marks: which class a request is of, how urgent it is and whose, drawn by the shares that a scenario gives."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve import plugins
from simserve.errors import TraceError
from simserve.workload.amounts import picked
from simserve.workload.draws import draw_lengths
from simserve.workload.streams import Stream
from simserve.workload.trace import Trace

Ints = NDArray[np.int64]


def labeled(trace: Trace, workload: Any, stream: Stream) -> Trace:
    """The trace with the classes and tenants of `scenario.workload`. Raises TraceError where it has its own.

    Requests of one session are of one class and one tenant. The first n marks are the first n of any more, and neither
    arrivals nor lengths change but those of classes that have lengths of their own.
    """
    for key, column in (("classes", "slo_class"), ("tenants", "tenant")):
        if getattr(workload, key) and getattr(trace, column) is not None:
            raise TraceError(f"workload.{key}: the trace has a column {column}, whose values are used; leave {key} out")
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


def _with_lengths(trace: Trace, is_of_class: NDArray[np.bool_], lengths: Mapping[str, Any], stream: Stream) -> Trace:
    """Those of a class have its own lengths."""
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
    """Which of the shares each request falls into, `(n_requests,)`."""
    who = np.arange(len(trace)) if trace.session_id is None else _by_appearance(trace.session_id)
    return picked(np.array(shares), int(who.max(initial=-1)) + 1, stream(purpose))[who]


def _by_appearance(names: NDArray[np.str_]) -> Ints:
    """Names as numbers, by their first appearance, so that more rows never change those of the first."""
    _, first, number = np.unique(names, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[number]
