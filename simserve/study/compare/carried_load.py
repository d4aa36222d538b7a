"""Carried load: which of two scenarios carries more load within its SLO, by the two-load method of `simserve check`.

A draw of a cost has one factor on both sides where the same fit stands behind both, so it cancels in the difference of
their highest loads as far as both depend on it alike.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from simserve.errors import NoArrivals, ScenarioError, SimserveError
from simserve.metrics.answers.baseline import LOOKS
from simserve.metrics.answers.comparison import LoadDecision, NoDecision, SideLoad
from simserve.metrics.answers.parts import Verdict
from simserve.metrics.cost_error import factors_at, half_gaps, in_points, over_scores
from simserve.metrics.decision import DEFAULT_EFFORT, Effort
from simserve.metrics.goal import GOAL_FRAC
from simserve.metrics.margin import Margin
from simserve.scenario import Scenario
from simserve.study.capacity.drawn_loads import RatioCurve
from simserve.study.capacity.question import check_slo
from simserve.study.check.gate import AttainmentCurve, loss_between
from simserve.study.check.load_facts import load_facts
from simserve.study.check.measured import rate_per_scale
from simserve.study.check.side import FEW_SEEDS, Boundless, GateSide, Grid
from simserve.study.cost_draws import reach_of
from simserve.study.drawn_costs import DrawnCosts
from simserve.study.fleet import at_scale, is_deterministic
from simserve.study.intervals import CONFIDENCE
from simserve.tables.columns import Floats
from simserve.tables.schema import MOST

LEAST_SEEDS = LOOKS[0]
"""Seeds of each side; fewer tell little of bursts that come once in many seeds."""

NO_SCENARIOS = NoDecision(reason="results and benchmarks cannot be run at other loads")
NO_SLO = NoDecision(reason="without an SLO on both sides, no load is too much")
NO_RATE = NoDecision(reason="a closed loop, or arrivals without a rate, cannot be scaled")
NO_ARRIVALS = NoDecision(reason="no request arrives at light loads")

Numbers = tuple[float | None, float | None, float | None]


def why_not(a: Scenario, b: Scenario) -> NoDecision | None:
    """Return why load cannot decide between the two; None where it can."""
    try:
        check_slo(a)
        check_slo(b)
        at_scale(a, 1.0)
        at_scale(b, 1.0)
    except ScenarioError:
        return NO_RATE
    except SimserveError:
        return NO_SLO
    return None


def carried_load(a: Scenario, b: Scenario, n_seeds: int, effort: Effort = DEFAULT_EFFORT) -> LoadDecision | NoDecision:
    """Return which side carries more load, or why that cannot be told. One seed: nothing is drawn.

    Both sides run at the same two loads with the same seeds, so most of what chance does cancels.
    Raises SimserveError as `simulate` does.
    """
    same_seeds = b.model_copy(update={"seed": a.seed})
    sides = [GateSide(each, GOAL_FRAC, min(FEW_SEEDS, n_seeds)) for each in (a, same_seeds)]
    try:
        grid = sides[0].find_grid()
        if isinstance(grid, Grid):
            curves = [side.curve(grid, n_seeds) for side in sides]
        else:
            of_b = sides[1].find_grid()
            curves = [grid, sides[1].curve(of_b, n_seeds) if isinstance(of_b, Grid) else of_b]
        loads = [_side_load(side, curve) for side, curve in zip(sides, curves, strict=True)]
    except NoArrivals:
        return NO_ARRIVALS
    if isinstance(curves[0], AttainmentCurve) and isinstance(curves[1], AttainmentCurve):
        return _compared((sides[0], curves[0]), (sides[1], curves[1]), loads, effort)
    carried = [each.goodput_per_s or (math.inf if each.holds_every_load else 0.0) for each in loads]
    outcome: Verdict = "unclear" if carried[0] == carried[1] else "better" if carried[1] > carried[0] else "worse"
    return _decision(outcome, loads, (None, None, None), n_seeds)


def _side_load(side: GateSide, curve: AttainmentCurve | Boundless) -> SideLoad:
    goodput_per_s, is_met = None, None
    if isinstance(curve, Boundless):
        scale, is_met = curve.scale, curve.is_met
    else:
        scale, goodput_per_s = curve.scales[1], rate_per_scale(side, curve) * math.exp(curve.log_root(GOAL_FRAC))
    return SideLoad(
        goodput_per_s=goodput_per_s,
        holds_every_load=is_met,
        last_per_s=load_facts(scale, side.runs(scale, side.n_few)).offered_per_s,
        fails_first=side.first_limit(scale),
    )


def _compared(
    a: tuple[GateSide, AttainmentCurve], b: tuple[GateSide, AttainmentCurve], loads: Sequence[SideLoad], effort: Effort
) -> LoadDecision:
    """Return the answer where both sides have a p99 goodput. A side that carries more by noise is tied where the error
    of costs leaves that unsure."""
    loss = loss_between(a[1], b[1], GOAL_FRAC)
    # a loss is one of scales, each times its side's own rates
    ratio = 1.0 if a[0].scenario.workload == b[0].scenario.workload else rate_per_scale(*b) / rate_per_scale(*a)
    more, high, low = (min(ratio * (1 - frac) - 1, MOST) for frac in (loss.frac, *loss.interval()))
    of_b = loads[1].model_copy(update={"goodput_per_s": (loads[0].goodput_per_s or 0.0) * (1 + more)})
    n_seeds = len(a[1].seeds)
    if low == more == high == 0:
        outcome: Verdict = "same"
    elif n_seeds > 1 and (low > 0 or high < 0):
        outcome = "better" if low > 0 else "worse"
    else:
        outcome = "unclear"
    ends = (low, high) if n_seeds > 1 else (None, None)
    decision = _decision(outcome, (loads[0], of_b), (more, *ends), n_seeds)
    costs = [None if effort.by == "noise" else SideCosts.of(side, curve) for side, curve in (a, b)]
    if costs[0] is None or costs[1] is None or outcome == "same":
        return decision
    margin = with_costs(Margin(0.0, loss.error, max(1, int(loss.n_free))), costs[0], costs[1])
    total, sure = (
        [min(end * (1 + more) - 1, MOST) for end in margin.interval(at)] for at in (CONFIDENCE, effort.confidence)
    )
    is_sure = sure[0] > 0 or sure[1] < 0
    known = {"total": total, "probability": 1 - margin.probability(-math.log1p(more))}
    if outcome in ("better", "worse") and not is_sure:
        known |= {"outcome": "unclear", "edge_by": "cost"}
    return decision.model_copy(update=known)


def _decision(outcome: Verdict, loads: Sequence[SideLoad], more: Numbers, n_seeds: int) -> LoadDecision:
    more_frac, low_frac, high_frac = more
    return LoadDecision(
        outcome=outcome,
        goal_frac=GOAL_FRAC,
        confidence=CONFIDENCE,
        more_frac=more_frac,
        low_frac=low_frac,
        high_frac=high_frac,
        n_seeds=n_seeds,
        a=loads[0],
        b=loads[1],
    )


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
    Others are errors of their own."""
    if a.server == b.server:
        known = {name: sd for side in (a, b) for name, sd in side.server_sd.items() if sd}
        return over_scores(known, lambda wait, step: b.errors(wait, step) - a.errors(wait, step))
    own = [over_scores(each.server_sd, each.errors) for each in (a, b)]
    return in_points(np.subtract.outer(own[1], own[0]).ravel())
