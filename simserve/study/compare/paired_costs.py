"""Paired costs: what the error of costs leaves of the difference between two sides' highest loads.

A draw of a cost has one factor on both sides where the same fit stands behind both, so it cancels as far as both depend
on it alike.
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from simserve.errors import NoArrivals
from simserve.metrics.cost_error import factors_at, half_gaps, in_points, over_scores
from simserve.metrics.margin import Margin
from simserve.scenario import Scenario
from simserve.study.capacity.drawn_loads import RatioCurve
from simserve.study.check.gate import AttainmentCurve
from simserve.study.check.side import GateSide
from simserve.study.cost_draws import reach_of
from simserve.study.deterministic_load import is_deterministic
from simserve.study.drawn_costs import DrawnCosts
from simserve.study.load_scale import at_scale
from simserve.tables.columns import Floats


@dataclass(frozen=True)
class SideCosts:
    """Draws of the costs of a side, and r of its runs against the load."""

    scenario: Scenario
    costs: DrawnCosts
    curve: RatioCurve
    scale: float
    """Highest load of the side, as a multiple of its rates."""

    @classmethod
    def of(cls, side: GateSide, curve: AttainmentCurve) -> "SideCosts | None":
        """Return the costs of a side; None where they count as exact."""
        scenario = side.scenario
        n_seeds = 1 if is_deterministic(scenario) else side.n_few
        costs = DrawnCosts.of(scenario, partial(at_scale, scenario), n_seeds)
        if not costs.draws:
            return None
        scale = math.exp(curve.log_root(side.goal_frac))
        with suppress(NoArrivals):  # as low as the highest load of a draw may lie
            side.runs(scale * math.exp(-reach_of(scenario.setups)), side.n_few)
        ratios = side.ratio_curve(len(costs.draws))
        return None if ratios is None else cls(scenario, costs, ratios, scale)

    def errors(self, wait: float, step: float) -> float:
        """Return the logarithm of the highest load at scores of servers' errors."""
        return self.curve.root_with(factors_at(self.server_sd, wait, step))

    @cached_property
    def server_sd(self) -> dict[str, float]:
        """Standard deviations of servers' errors, by limit."""
        return {name: self.costs.server_sd.get(name, 0.0) for name in self.curve.limits}

    @property
    def server(self) -> set[tuple[str, str, str]]:
        """What servers' errors are errors of."""
        return {(setup.model.name, setup.engine.name, setup.gpu.name) for setup in self.scenario.setups}


def with_costs(by_noise: Margin, a: SideCosts, b: SideCosts) -> Margin:
    """Return the margin of the logarithm of B's highest load over A's, with the error of costs."""
    sd, n_free = _drawn_error(a, b)
    return Margin(by_noise.log_r, by_noise.noise_sd, by_noise.n_free, sd, n_free, _of_servers(a, b))


def _drawn_error(a: SideCosts, b: SideCosts) -> tuple[float, int]:
    """Return the spread of the difference between draws, less the noise of pairs, and its degrees of freedom."""
    (roots_a, pairs_a), (roots_b, pairs_b) = (each.curve.drawn_roots(each.costs, each.scale) for each in (a, b))
    n = min(len(roots_a), len(roots_b))
    both = [place for place in range(n) if place in pairs_a and place in pairs_b]
    of_a, of_b = (
        half_gaps([pairs[place] for place in both], side.curve.goal_frac) / side.curve.slope
        for side, pairs in ((a, pairs_a), (b, pairs_b))
    )
    noise = float(np.square(of_b - of_a).sum()) / 4 / max(1, len(both))
    return math.sqrt(max(float((roots_b[:n] - roots_a[:n]).var(ddof=1)) - noise, 0.0)), n - 1


def _of_servers(a: SideCosts, b: SideCosts) -> Floats:
    """Return what errors of servers add, at points of equal probability: one error for the same engine, card and model.

    Others are errors of their own.
    """
    if a.server == b.server:
        known = {name: sd for side in (a, b) for name, sd in side.server_sd.items() if sd}
        return over_scores(known, lambda wait, step: b.errors(wait, step) - a.errors(wait, step))
    own = [over_scores(each.server_sd, each.errors) for each in (a, b)]
    return in_points(np.subtract.outer(own[1], own[0]).ravel())
