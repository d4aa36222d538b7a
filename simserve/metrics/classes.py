"""Classes and tenants: the metrics of the whole run for each of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from simserve.metrics.answers.struct import Figures
from simserve.metrics.goodput import (
    AttainmentJson,
    FatesJson,
    GoodputJson,
    attainment,
    goodput,
    outcomes,
    served,
    throughput,
)
from simserve.metrics.kv import preemptions
from simserve.metrics.kv_json import PreemptionsJson
from simserve.metrics.stats import NO_SAMPLE, Distribution, LatencyJson
from simserve.metrics.summary_schema import Measured, Slo
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Flags
from simserve.tables.facts import RunFacts
from simserve.tables.run_tables import prefilled_at
from simserve.tables.why import Why


class GroupJson(Figures):
    """Figures of a class or a tenant, defined as for the whole run and over its window."""

    requests: FatesJson
    """Requests by what became of them."""
    offered_per_s: Measured = None
    """[/s] Arrivals."""
    requests_per_s: Measured = None
    """[/s] Requests of the window that finished at any time."""
    served_per_s: Measured = None
    """[/s] Requests that finished within the window; left out for a tenant."""
    input_tokens_per_s: Measured = None
    """[tokens/s] Prompt tokens of the requests of `requests_per_s`."""
    output_tokens_per_s: Measured = None
    """[tokens/s] Output tokens of the requests of `requests_per_s`."""
    slo_attainment: AttainmentJson | None = None
    """Share of requests that met the SLO, of a class its own; null without an SLO."""
    goodput: GoodputJson | None = None
    """Rates of the requests that met it; null without an SLO."""
    preemptions: PreemptionsJson = PreemptionsJson.model_construct()
    """Preemptions."""
    priorities: Sequence[int] = ()
    """Priorities of the requests; left out for a tenant."""
    slo: Slo = Field(default_factory=dict)
    """[s] Limits of the class by latency; left out for a tenant."""
    ttft_s: LatencyJson = NO_SAMPLE
    """[s] Time to the first token; latencies of a group have no `std` and `intervals`."""
    tpot_s: LatencyJson = NO_SAMPLE
    """[s] Time per output token after the first."""
    itl_s: LatencyJson = NO_SAMPLE
    """[s] Gaps between tokens."""
    e2e_s: LatencyJson = NO_SAMPLE
    """[s] Time to the last token."""
    queue_s: LatencyJson = NO_SAMPLE
    """[s] Time until the first step that gave it tokens."""


UNNAMED = "default"
"""Reported name of requests without a class, which have the targets of slo.default."""

RATES = ("offered_per_s", "requests_per_s", "input_tokens_per_s", "output_tokens_per_s")

Latencies = Callable[[Flags], Mapping[str, Distribution]]
"""The latencies of the counted requests of a mask."""


def by_class(
    requests: Columns, facts: RunFacts, window: Window, met: Mapping[str, Flags], latencies: Latencies
) -> dict[str, GroupJson] | None:
    """Return the figures of each class, those with targets first; None if no request has a class."""
    names = class_names(requests, facts)
    if names is None:
        return None
    groups = {}
    for name in names:
        mine = of_class(requests, name)
        targets = facts.slo_classes.get(name, facts.slo)
        own_met = {goal: flags for goal, flags in met.items() if goal in targets}
        groups[name] = GroupJson(
            **_group(requests, facts, replace(window, has=window.has & mine), own_met, latencies(mine)),
            priorities=np.unique(requests["priority"][mine]).tolist(),
            slo=dict(targets),
            served_per_s=int(np.count_nonzero(mine & served(requests, window))) / window.duration_s,
        )
    return groups


def class_names(requests: Columns, facts: RunFacts) -> list[str] | None:
    """Return the classes, those with targets first; None if no request has a class."""
    classes = requests["slo_class"]
    if classes is None or not len(classes):
        return None
    return list(dict.fromkeys([*facts.slo_classes, *sorted({str(name) or UNNAMED for name in np.unique(classes)})]))


def of_class(requests: Columns, name: str) -> Flags:
    """Return which requests are of a class, `(n_requests,)`; UNNAMED are those without one."""
    return np.isin(requests["slo_class"], ["", name] if name == UNNAMED else [name])


def by_tenant(
    requests: Columns, facts: RunFacts, window: Window, met: Mapping[str, Flags], latencies: Latencies
) -> dict[str, GroupJson] | None:
    """Return the figures of each tenant, by name; None if no request has a tenant."""
    if requests["tenant"] is None or not len(requests["tenant"]):
        return None
    flags = {str(name): np.equal(requests["tenant"], name) for name in np.unique(requests["tenant"])}
    return _groups(requests, facts, window, met, latencies, flags)


def by_version(
    requests: Columns, facts: RunFacts, window: Window, met: Mapping[str, Flags], latencies: Latencies
) -> dict[str, GroupJson] | None:
    """Return the figures of each pool of the role of one that was rolled out, over the time in which both the new
    version and another served; None without such a time."""
    members = [*zip(facts.members, facts.replica_pool, strict=True)] if facts.members else []
    ready_s = {pool: member.ready_s for member, pool in members[::-1] if member.joined == Why.ROLLED_OUT}
    new, first_s = next(((pool, at_s) for pool, at_s in ready_s.items() if at_s is not None), (-1, 0.0))
    alike = [pool for pool, each in enumerate(facts.pools) if each.role == facts.pools[new].role]
    ends_s = [each.draining_s or each.gone_s or facts.end_s for each, pool in members if pool in {*alike} - {new}]
    start_s, end_s = max(first_s, window.start_s), min(max(ends_s, default=0.0), window.end_s)
    if new < 0 or start_s >= end_s:
        return None
    has = window.has & (requests["arrival_s"] >= start_s) & (requests["arrival_s"] < end_s)
    span = replace(window, start_s=start_s, end_s=end_s, duration_s=end_s - start_s, has=has)
    at = np.append(facts.replica_pool, -1)[prefilled_at(requests)]
    return _groups(requests, facts, span, met, latencies, {facts.pools[pool].name: at == pool for pool in alike})


def _groups(
    requests: Columns,
    facts: RunFacts,
    window: Window,
    met: Mapping[str, Flags],
    latencies: Latencies,
    flags: Mapping[str, Flags],
) -> dict[str, GroupJson]:
    """Return the figures of groups of requests."""
    chosen = {name: window.has & own for name, own in flags.items()}
    return {
        name: GroupJson(**_group(requests, facts, replace(window, has=own), met, latencies(own)))
        for name, own in chosen.items()
    }


def _group(
    requests: Columns, facts: RunFacts, window: Window, met: Mapping[str, Flags], latencies: Mapping[str, Distribution]
) -> dict[str, Any]:
    """Return the outcome, rates and latencies of some requests. The window's length is that of all."""
    attained, rates = attainment(requests, window, met), throughput(requests, window)
    return {
        "requests": outcomes(requests, window),
        **{name: rates[name] for name in RATES},
        "slo_attainment": attained,
        "goodput": goodput(attained, window, facts),
        "preemptions": preemptions(requests, window),
        **{key: each.figures() for key, each in latencies.items()},
    }


def class_cautions(classes: Mapping[str, GroupJson] | None) -> Iterator[str]:
    """Yield warnings about classes without requests in the window."""
    for name, result in (classes or {}).items():
        if not result.requests.arrived:
            yield (
                f"no request of class {name} arrived in the measured window, so it has no results; shorten "
                "measure.warmup_s, or start its requests later"
            )
