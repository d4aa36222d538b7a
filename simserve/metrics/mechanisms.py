"""Mechanisms: the summary of each optional mechanism, by its key of summary.json; a new one is a file and a line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simserve.metrics.classes import Latencies, by_class, by_tenant
from simserve.metrics.host_tier import host_tier
from simserve.metrics.prefix_cache import prefix_cache
from simserve.metrics.retries import retries, wasted
from simserve.metrics.routing import routing
from simserve.metrics.sessions import sessions
from simserve.metrics.speculation import speculation
from simserve.metrics.transfer import transfer
from simserve.metrics.utilization import Utilization
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Flags
from simserve.tables.facts import RunFacts
from simserve.tables.pieces import in_turn


@dataclass(frozen=True)
class Measured:
    """The input of metrics: a run's tables and facts, and values derived from both."""

    requests: Columns
    spans: Columns
    steps: Columns
    facts: RunFacts
    window: Window
    met: Mapping[str, Flags]
    """Masks of the requests that met each goal."""
    use: Utilization
    latencies: Latencies


def mechanisms(run: Measured) -> dict[str, Any]:
    """Return the summary of each mechanism; None for those that the run did not have."""
    return {key: MECHANISMS[key](run) for key in in_turn(MECHANISMS, run.requests)}


MECHANISMS: dict[str, Callable[[Measured], Any]] = {
    "classes": lambda run: by_class(run.requests, run.facts, run.window, run.met, run.latencies),
    "tenants": lambda run: by_tenant(run.requests, run.facts, run.window, run.met, run.latencies),
    "retries": lambda run: retries(run.requests, run.window),
    "wasted": lambda run: wasted(run.requests, run.steps),
    "prefix_cache": lambda run: prefix_cache(run.requests, run.window),
    "transfer": lambda run: transfer(run.requests, run.window, run.facts, run.use),
    "routing": lambda run: routing(run.requests, run.window, run.facts),
    "host_tier": lambda run: host_tier(run.requests, run.window, run.facts),
    "sessions": lambda run: sessions(run.requests, run.window),
    "speculation": lambda run: speculation(run.requests, run.spans, run.steps, run.window, run.facts),
}
