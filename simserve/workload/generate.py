"""Generate: a synthetic trace from arrivals, lengths and shared prefixes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simserve import plugins
from simserve.tables.columns import Floats
from simserve.workload.arrivals.base import Arrivals
from simserve.workload.draws import arrivals_until, draw_lengths, draw_prefixes, first_arrivals
from simserve.workload.lengths.base import Lengths
from simserve.workload.prefixes.base import PrefixStructure
from simserve.workload.size import check_size, expected_arrivals
from simserve.workload.streams import Stream, streams
from simserve.workload.trace import Trace

Spec = str | Mapping[str, Any]


def generate(
    arrivals: Spec,
    lengths: Spec,
    *,
    prefixes: Spec | None = None,
    n_requests: int | None = None,
    duration_s: float | None = None,
    seed: int = 0,
) -> Trace:
    """Generate n_requests requests, or duration_s seconds of them. Raises PolicyError for a wrong spec."""
    process: Arrivals = plugins.build("workload.arrivals", arrivals)
    prompts = Prompts(plugins.build("workload.lengths", lengths), prefix_structure(prefixes))
    stream = streams(seed)
    return prompts.draw(draw_arrivals(process, n_requests, duration_s, stream), duration_s, stream)


@dataclass(frozen=True)
class Prompts:
    """Prompts of requests: new parts and shared prefixes."""

    lengths: Lengths
    structure: PrefixStructure | None

    def draw(self, arrival_s: Floats, duration_s: float | None, stream: Stream) -> Trace:
        """Draw the requests, or conversations, that begin at these instants. Raises PolicyError."""
        if self.structure is not None:
            return draw_prefixes(self.structure, arrival_s, duration_s, self.lengths, stream)
        drawn = draw_lengths(self.lengths, len(arrival_s), stream)
        return Trace(arrival_s, drawn.prompt_tokens, drawn.output_tokens, notes=drawn.notes)


def prefix_structure(spec: Spec | None) -> PrefixStructure | None:
    """Build the `prefixes` of a workload, if any. Raises PolicyError for a wrong spec."""
    structure: PrefixStructure | None = None if spec is None else plugins.build("workload.prefixes", spec)
    return structure


def draw_arrivals(process: Arrivals, n_requests: int | None, duration_s: float | None, stream: Stream) -> Floats:
    """Draw the first n instants, or all of so many seconds. Raises PolicyError for a process that breaks a rule, and
    TooManyArrivals for one that brings more than a run may have."""
    n = float(n_requests) if duration_s is None and n_requests else expected_arrivals(process, duration_s or 0.0)
    check_size(n, "workload.arrivals")
    if n_requests is not None and duration_s is None:
        return first_arrivals(process, n_requests, stream)
    if duration_s is not None and n_requests is None:
        return arrivals_until(process, duration_s, stream)
    raise ValueError(f"give n_requests or duration_s and not both, got {n_requests} and {duration_s}")
