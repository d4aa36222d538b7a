"""Point runs: a point of a sweep with its runs, their means and SLO answer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simserve.metrics.answer import Attained
from simserve.study.intervals import Estimate, mean_of
from simserve.study.measures import GOODPUT, Measure
from simserve.study.slo_answer import mean_load, outcomes_from, slo_answer
from simserve.study.sweep.points import SweepPoint
from simserve.study.sweep.run import ALL_MEASURES, FLEET, Row

COST = "usd_per_hour"


@dataclass(frozen=True)
class PointRuns:
    """A point and its runs."""

    point: SweepPoint
    rows: Sequence[Row]
    """All runs, one per seed; shared seeds come first."""
    n_shared: int
    """Seeds shared by all points."""
    goal_frac: float

    @cached_property
    def measures(self) -> Mapping[str, Estimate]:
        """Return means over the finished shared seeds, so that points are comparable; empty without one."""
        finished = [row for row in self.shared if row["status"] == "finished"]
        return {measure.key: _mean(finished, measure) for measure in ALL_MEASURES} if finished else {}

    @property
    def shared(self) -> Sequence[Row]:
        """Return the runs with shared seeds."""
        return self.rows[: self.n_shared]

    @property
    def finished(self) -> list[Row]:
        """Return the finished runs."""
        return [row for row in self.rows if row["status"] == "finished"]

    @property
    def warnings(self) -> list[str]:
        """Return the warnings of its costs and reservations, from the run with most of them."""
        return max((row["warnings"] for row in self.finished), key=len, default=[])

    @property
    def status(self) -> str:
        """Return `finished`, `partly` or `failed`."""
        n = sum(row["status"] == "finished" for row in self.shared)
        return "finished" if n == len(self.shared) else "partly" if n else "failed"

    @property
    def is_saturated(self) -> bool:
        """Return whether most of its runs are saturated."""
        return 2 * sum(bool(row.get("saturated")) for row in self.rows) > len(self.rows)

    @property
    def is_ranked(self) -> bool:
        """Return whether its figures compare with those of others."""
        return self.status == "finished" and not self.is_saturated

    @property
    def has_goodput(self) -> bool:
        """Return whether it has a goodput above 0."""
        return self.is_ranked and self.value(GOODPUT.key) > 0

    @cached_property
    def answer(self) -> dict[str, Any] | None:
        """Return the SLO answer of all its runs at the nominal load; None without a run or an SLO."""
        runs = [outcomes_from(row["outcomes"]) for row in self.finished]
        return slo_answer(runs, self.goal_frac) if runs else None

    @property
    def decision(self) -> Attained | None:
        """Return whether the SLO is met; None without an answer. A failed run turns "met" into "edge"."""
        if self.answer is None:
            return None
        decision: Attained = self.answer["decision"]
        return "edge" if self.status == "partly" and decision == "met" else decision

    @property
    def load(self) -> dict[str, Any]:
        """Return the drawn load of its runs."""
        return mean_load([row["load"] for row in self.finished])

    @property
    def shared_load(self) -> dict[str, Any]:
        """Return the drawn load of the shared seeds, which its measures have."""
        return mean_load([row["load"] for row in self.shared if row["status"] == "finished"])

    def value(self, key: str) -> float:
        """Return a figure of the fleet or a mean; NaN if missing."""
        return float(self.rows[0][key]) if key in FLEET else self.measures[key].value


def _mean(rows: Sequence[Row], measure: Measure) -> Estimate:
    """Return a mean; its interval, which Student makes wide for few runs, ends at 0 and a share's at 1."""
    mean = mean_of([math.nan if row[measure.key] is None else row[measure.key] for row in rows])
    most = 1.0 if measure.unit == "frac" else math.inf
    return Estimate(mean.value, max(mean.low, 0.0), min(mean.high, most))
