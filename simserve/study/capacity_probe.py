"""Capacity probe: the rate that a cluster serves with more work than it can do, and whether a load is beyond it.

A load a few percent below capacity and one a few percent above look alike in runs of minutes. Offered OVERLOAD times
the load, a cluster shows its capacity at once, so a short run per draw of costs tells how likely the load is beyond.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simserve.metrics.answers.parts import NearCapacityJson
from simserve.metrics.student import cdf, quantile
from simserve.scenario import Scenario
from simserve.scenario.setup import Distortion
from simserve.scenario.workload import MeasureSection
from simserve.simulation import simulate
from simserve.study.cost_draws import CONFIDENCE, Draw, reach_of
from simserve.study.processes import forked, in_order
from simserve.tables.columns import Columns, Floats
from simserve.workload.load import Load, offered_load
from simserve.workload.trace import Trace

REQUESTS = (2000, 4000, 8000)
"""Requests of a probe, the fewest that fill the cluster; never more than those of the load."""

OVERLOAD = 3.0
"""Offered rate of a probe over that of the load."""

FULL_FRAC = 0.95
"""Share of the most requests in service with which a cluster counts as full."""

LEAST_COUNTED = 50
"""Fewest requests that begin in a full cluster, for a rate."""

MIDDLE = (0.3, 0.8)
"""Share of answers between which pools that hand over give them at a steady rate."""

BATCHES = 20
"""Parts of a trace, for the error of its rate."""


@dataclass(frozen=True)
class OfferedRate:
    """The rate of a load."""

    per_s: float
    """Requests/s: nominal, or of a trace its own."""
    log_error: float
    """Standard error of its logarithm, as a sample of its traffic; 0 of a nominal rate."""


@dataclass(frozen=True)
class NearCapacity:
    """A rate against the capacity of a cluster, by draw of its costs."""

    rate: OfferedRate
    logs: Floats
    """Logarithms of capacity in requests/s, `(n_draws,)`; a single one is so far off that costs do not matter."""

    def at(self, per_s: float) -> "NearCapacity":
        """Return another nominal rate against the same capacity."""
        return replace(self, rate=OfferedRate(per_s, 0.0))

    @property
    def probability(self) -> float:
        """Probability that the rate is beyond capacity: Student's t, as the costs of the real server are one more
        draw."""
        distance = math.log(self.rate.per_s) - float(self.logs.mean())
        spread = math.hypot(self._spread, self.rate.log_error) if len(self.logs) > 1 else 0.0
        return cdf(distance / spread, len(self.logs) - 1) if spread > 0 else float(distance > 0)

    def load_at(self, share: float) -> float:
        """Return the rate that is beyond capacity with this probability, below a half; capacity itself without
        draws."""
        center = float(self.logs.mean())
        if len(self.logs) == 1:
            return math.exp(center)
        return math.exp(
            center - quantile(1 - share, len(self.logs) - 1) * math.hypot(self._spread, self.rate.log_error)
        )

    def facts(self) -> NearCapacityJson | None:
        """Return the comparison as answers have it; None where the load is so far off that costs do not matter."""
        if len(self.logs) == 1:
            return None
        center = float(self.logs.mean())
        half = quantile((1 + CONFIDENCE) / 2, len(self.logs) - 1) * self._spread
        return NearCapacityJson(
            offered_per_s=self.rate.per_s,
            capacity_per_s=math.exp(center),
            low_per_s=math.exp(center - half),
            high_per_s=math.exp(center + half),
            confidence=CONFIDENCE,
            n_draws=len(self.logs),
        )

    @property
    def _spread(self) -> float:
        return float(self.logs.std(ddof=1)) * math.sqrt(1 + 1 / len(self.logs))


def offered_rate(nominal_per_s: float | None, load: Load) -> OfferedRate | None:
    """Return the rate of a run's load; None of a load that adapts, or that has less than two instants. Later turns and
    batch jobs belong to the requests per instant drawn."""
    if load.concurrency is not None or len(load.trace) < 2:
        return None
    if nominal_per_s is not None and load.drawn is not None:
        return OfferedRate(nominal_per_s * len(load.trace) / len(load.drawn.at_s), 0.0)
    at_s = np.sort(load.trace.arrival_s)
    duration_s = float(at_s[-1] - at_s[0])
    if not duration_s > 0:
        return None
    counts = np.histogram(at_s, min(BATCHES, len(at_s) - 1))[0]
    error = float(counts.std(ddof=1) / counts.mean()) / math.sqrt(len(counts)) if len(counts) > 1 else 0.0
    return OfferedRate((len(at_s) - 1) / duration_s, error)


def near_capacity(
    scenario: Scenario, load: Load, nominal_per_s: float | None, service_s: float, draws: Sequence[Draw]
) -> NearCapacity | None:
    """Compare a load with capacity; None where it adapts, is too short to fill the cluster, or has batch jobs, which
    are no rate.

    load: of a run of the scenario, with its nominal rate, and the mean time of an answer without waiting. draws: of
    its costs; so far from capacity that costs do not matter, one probe is enough. Draw k has a load of its own, with
    the k-th seed after the run's, or another part of a trace. Deterministic.
    """
    rate = offered_rate(nominal_per_s, load)
    if rate is None or scenario.workload.batch is not None or not draws:
        return None
    for n_requests in REQUESTS:
        probe = _Probe.of(scenario, load, service_s, n_requests, draws)
        served, least = probe.run(len(draws))
        if served is not None or n_requests >= len(load.trace):
            break
    off, reach = math.log((served or least) / rate.per_s), reach_of(scenario.setups)
    if off > reach or (served is not None and off < -reach):
        return NearCapacity(rate, np.array([off + math.log(rate.per_s)]))
    if served is None:
        return None
    with forked(probe.run, len(draws)) as answers:
        rates = [rate_per_s for rate_per_s, _ in in_order(answers)]
    return None if None in rates else NearCapacity(rate, np.log(rates))


@dataclass(frozen=True)
class _Probe:
    """Short runs with too much work, by draw of costs."""

    scenario: Scenario
    """Without what makes requests give up, or keeps them out: these hide a growing queue."""
    load: Load
    service_s: float
    """Mean time of an answer without waiting."""
    n_requests: int
    draws: Sequence[Draw]

    @classmethod
    def of(cls, scenario: Scenario, load: Load, service_s: float, n_requests: int, draws: Sequence[Draw]) -> "_Probe":
        """Return the probes of a scenario, with views refreshed as often per request as in the run."""
        views = scenario.cluster.views
        if views is not None:
            views = views.model_copy(update={"refresh_s": views.refresh_s / OVERLOAD})
        cluster = scenario.cluster.model_copy(update={"admission": None, "views": views})
        workload = scenario.workload.model_copy(update={"timeout": None, "retries": None})
        update = {"cluster": cluster, "workload": workload, "measure": MeasureSection()}
        return cls(scenario.model_copy(update=update), load, service_s, n_requests, draws)

    def run(self, place: int) -> tuple[float | None, float]:
        """Return the rate of a full cluster with the costs of a draw, requests/s, None where it never fills; and the
        rate from first to last, which is less. The place after the last draw has the predicted costs."""
        load = self.load
        if place == len(self.draws):
            distortion, step_factor = Distortion(), 1.0
        else:
            distortion, step_factor = self.draws[place][0], self.draws[place][1]["tpot_s"]
            if not self.scenario.workload.is_replayed:
                load = offered_load(self.scenario.workload, self.scenario.seed + place + 1, self.scenario.base_dir)
        trace = self._part(_at_fixed_times(load.trace, self.service_s), place)
        probe = replace(load, trace=trace, stop_sending_s=None, drain_limit_s=None, drawn=None)
        requests = simulate(self.scenario, load=probe, distortion=distortion).recorded
        hands_over = any(setup.role != "both" for setup in self.scenario.setups)
        served_per_s = _answered_per_s(requests) if hands_over else _started_per_s(requests)
        last_s = float(np.fmax.reduce(requests["finish_s"]))  # NaN where nothing finishes, and so is the rate
        whole_per_s = len(trace) / (last_s * step_factor)
        return served_per_s and served_per_s / step_factor, whole_per_s

    def _part(self, trace: Trace, place: int) -> Trace:
        """Return the requests of a probe, OVERLOAD times as fast, and of one class: order does not change capacity."""
        n = min(self.n_requests, len(trace))
        first = round(place / len(self.draws) * (len(trace) - n))
        part = trace.take(slice(first, first + n))
        alike: dict[str, Any] = {"priority": None, "slo_class": None, "tenant": None}
        for name in alike:
            column = getattr(part, name)
            alike[name] = None if column is None else np.full(n, column[0])
        return replace(part, arrival_s=(part.arrival_s - part.arrival_s[0]) / OVERLOAD, **alike)


def _at_fixed_times(trace: Trace, service_s: float) -> Trace:
    """Return a load with later turns at the times when answers that take service_s allow them."""
    if trace.dependencies is None:
        return trace
    parents, starts = trace.dependencies.parents, trace.dependencies.starts
    at_s = trace.arrival_s.copy()
    for row in np.flatnonzero(trace.dependencies.n_parents).tolist():  # parents come before
        latest_s = at_s[parents[starts[row] : starts[row + 1]]].max()
        at_s[row] = latest_s + service_s + trace.dependencies.think_s[row]
    return replace(trace, arrival_s=at_s, dependencies=None).take(np.argsort(at_s, kind="stable"))


def _started_per_s(requests: Columns) -> float | None:
    """Return the rate at which requests start once the cluster has been full for half of them."""
    started_s, finished_s = (np.sort(times[np.isfinite(times)]) for times in _times(requests))
    instants_s = np.concatenate([finished_s, started_s])
    order = np.argsort(instants_s, kind="stable")
    n_inside = np.cumsum(np.repeat([-1, 1], [len(finished_s), len(started_s)])[order])
    if not len(started_s):
        return None
    most = int(n_inside.max())
    full_s = instants_s[order][np.argmax(n_inside >= FULL_FRAC * most)]
    first = int(np.searchsorted(started_s, full_s)) + most // 2
    n = len(started_s) - 1 - first
    return n / float(started_s[-1] - started_s[first]) if n >= LEAST_COUNTED else None


def _answered_per_s(requests: Columns) -> float | None:
    """Return the rate of answers in the MIDDLE of a probe; that of starts is higher where a later pool is full."""
    finished_s = np.sort(_times(requests)[1])
    first, last = (int(share * (len(finished_s) - 1)) for share in MIDDLE)
    duration_s = float(finished_s[last] - finished_s[first])
    return (last - first) / duration_s if last - first >= LEAST_COUNTED and duration_s > 0 else None


def _times(requests: Columns) -> tuple[Floats, Floats]:
    return requests["scheduled_s"], requests["finish_s"]
