"""Generate: a trace of one's own, from an arrival process and a distribution of lengths."""

from collections.abc import Mapping
from typing import Any

from simserve import plugins
from simserve.workload.arrivals.base import Arrivals
from simserve.workload.draws import arrivals_until, draw_lengths, first_arrivals
from simserve.workload.lengths.base import Lengths
from simserve.workload.streams import streams
from simserve.workload.trace import Trace

Spec = str | Mapping[str, Any]


def generate(
    arrivals: Spec, lengths: Spec, *, n_requests: int | None = None, duration_s: float | None = None, seed: int = 0
) -> Trace:
    """So many requests, or all of so many seconds. Raises PolicyError for a spec that is wrong."""
    process: Arrivals = plugins.build("workload.arrivals", arrivals)
    return draw(process, plugins.build("workload.lengths", lengths), n_requests, duration_s, seed)


def draw(process: Arrivals, lengths: Lengths, n_requests: int | None, duration_s: float | None, seed: int) -> Trace:
    """The same from plug-ins that are built. Raises PolicyError for one that breaks a rule."""
    stream = streams(seed)
    if n_requests is not None and duration_s is None:
        arrival_s = first_arrivals(process, n_requests, stream)
    elif duration_s is not None and n_requests is None:
        arrival_s = arrivals_until(process, duration_s, stream)
    else:
        raise ValueError(f"give n_requests or duration_s and not both, got {n_requests} and {duration_s}")
    drawn = draw_lengths(lengths, len(arrival_s), stream)
    return Trace(arrival_s, drawn.prompt_tokens, drawn.output_tokens, notes=drawn.notes)
