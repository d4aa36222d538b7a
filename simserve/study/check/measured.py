"""Measured: a scenario's p99 goodput as a baseline, to keep in a file or compare with another side."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simserve.errors import ScenarioError, SimserveError
from simserve.metrics.answers.baseline import LOOKS, Baseline, BaselineLoad, Crowd, Rate
from simserve.scenario import Scenario
from simserve.study.capacity.question import check_slo
from simserve.study.check.baseline import curve_of, grid_of, portable
from simserve.study.check.gate import AttainmentCurve, loss_between, significance
from simserve.study.check.load_facts import load_facts, short
from simserve.study.check.side import FEW_SEEDS, Boundless, GateSide, Grid
from simserve.study.fleet import at_scale
from simserve.study.intervals import around, standard_error
from simserve.tables.columns import Floats, Ints
from simserve.version import __version__
from simserve.workload.load import offered_load

LARGE = 2.5
"""Tolerances of loss that even a side with other seeds should detect."""


def check_can_be_gated(scenario: Scenario) -> None:
    """Raise SimserveError where there is no SLO, or no rate to scale."""
    check_slo(scenario)
    try:
        at_scale(scenario, 1.0)
    except ScenarioError:
        rule = "needs a rate to be gated on: arrivals with rate_per_s or rates_per_s, or a trace"
        remedy = "hold two closed loops against each other with `simserve compare`"
        raise SimserveError(f"{scenario.name}: workload: {rule}; {remedy}") from None


def find_grid(side: GateSide) -> Grid:
    """Return loads about where a side stops meeting the goal. Raises SimserveError where it always does, or never."""
    check_can_be_gated(side.scenario)
    result = side.find_grid()
    if isinstance(result, Grid):
        return result
    facts = load_facts(result.scale, side.runs(result.scale, FEW_SEEDS))
    name, at = side.scenario.name, f"{facts.offered_per_s:.4g} requests/s"
    goal = f"{side.goal_frac * 100:.4g}% of requests"
    if result.is_met:
        raise SimserveError(
            f"{name}: slo: must be missed at some rate to be gated on, got {goal} meeting it up to {at}"
        )
    key = facts.fails_first
    sentence = f"{(facts.by_slo[key] or 0.0) * 100:.3g}% meet {key} there" if key else "too few arrive there"
    remedy = "give a looser slo or a smaller --goal"
    raise SimserveError(f"{name}: slo: {goal} must meet it at some rate, got none down to {at} ({sentence}); {remedy}")


def measured(side: GateSide, grid: Grid, n_seeds: int) -> Baseline:
    """Measure with n_seeds, at the two loads of the grid that the goal then lies between. Raises SimserveError."""
    curve = side.curve(grid, n_seeds)
    if isinstance(curve, Boundless):
        rule = "must stop meeting the goal at some rate, whatever the seed"
        raise SimserveError(f"{side.scenario.name}: slo: {rule}; make the runs longer")
    scale = math.sqrt(curve.scales[0] * curve.scales[1])
    above = crowd(side.scenario, scale, curve.seeds[:FEW_SEEDS], side.goal_frac)
    return Baseline(
        schema_="simserve-check/1",
        simserve=__version__,
        goal_frac=side.goal_frac,
        goodput_per_s=goodput(side, curve),
        scenario=portable(side.scenario),
        first_seed=side.scenario.seed,
        crowd=Crowd(
            above=above, frac=tuple(short(each) or 0.0 for each in covariate(side.scenario, scale, curve.seeds, above))
        ),
        loads=(_load(side, curve, 0), _load(side, curve, 1)),
    )


def well_measured(side: GateSide, tolerance_frac: float) -> Baseline:
    """Measure with seeds enough for the gate to detect a loss of LARGE tolerances, or the most of LOOKS."""
    grid = find_grid(side)
    for n_seeds in LOOKS:
        result = measured(side, grid, n_seeds)
        if least_found_frac(result, side.goal_frac, tolerance_frac) <= LARGE * tolerance_frac:
            break
        grid = grid_of(result)
    return result


def gate_warnings(baseline: Baseline, goal_frac: float, tolerance_frac: float) -> list[str]:
    """Return what speaks against gating on a baseline."""
    result = []
    least = least_found_frac(baseline, goal_frac, tolerance_frac)
    if least > LARGE * tolerance_frac:
        text = f"only a loss of {least * 100:.2g}% would be found by a side that has other seeds"
        result.append(f"{text}, for the seeds differ much: make the runs longer, or raise --tolerance")
    if (baseline.lower_facts.saturated_frac or 0.0) > 0.5:
        text = "where the goal is just met the queue only grows in most runs"
        result.append(f"{text}, so the rate is one for runs of this length: make them longer, or the slo stricter")
    return result


def least_found_frac(baseline: Baseline, goal_frac: float, tolerance_frac: float) -> float:
    """Return the smallest loss that is detected with probability FOUND, of an equal side with as many other seeds."""
    curve, control_variate = curve_of(baseline, baseline.n_seeds), np.array(baseline.crowd.frac)
    other = replace(curve, seeds=tuple(seed + len(curve.seeds) for seed in curve.seeds))
    loss = loss_between(curve, other, goal_frac, (control_variate, control_variate))
    return loss.smallest_found(tolerance_frac, significance(len(LOOKS)))


def goodput(side: GateSide, curve: AttainmentCurve) -> Rate:
    """Return the p99 goodput with its interval."""
    n_seeds = len(curve.seeds)
    error = standard_error(curve.log_roots_without(side.goal_frac))
    result = around(curve.log_root(side.goal_frac), error, n_seeds - 1)
    per_scale = rate_per_scale(side, curve)
    value, low, high = (short(per_scale * math.exp(end)) or 0.0 for end in (result.value, result.low, result.high))
    return Rate(value=value, low=low, high=high)


def rate_per_scale(side: GateSide, curve: AttainmentCurve) -> float:
    """Return the drawn requests per second at scale 1, a mean over both loads of the curve."""
    runs = [(scale, run) for scale in curve.scales for run in side.runs(scale, len(curve.seeds))]
    return sum(run.at("offered_per_s") / scale for scale, run in runs) / len(runs)


def _load(side: GateSide, curve: AttainmentCurve, place: int) -> BaselineLoad:
    scale = curve.scales[place]
    return BaselineLoad(
        scale=scale,
        n_met=tuple(curve.n_met[place].tolist()),
        n_arrived=tuple(curve.n_arrived[place].tolist()),
        load_facts=load_facts(scale, side.runs(scale, min(LOOKS[0], len(curve.seeds)))),
    )


def in_progress(scenario: Scenario, scale: float, seed: int) -> Ints:
    """Count the others that each request meets on a server as slow as the SLO allows, `(n_requests,)`.

    It is known without a run, and explains most of why one seed's p99 goodput differs from another's: 70% of the
    variance on scenarios/chat_burst.yaml. So two sides that had other seeds can be told apart with far fewer of them.
    Requests of the warm-up are left out, where it is given in seconds.
    """
    scaled = at_scale(scenario, scale)
    trace = offered_load(scaled.workload, seed, scaled.base_dir).trace
    arrival_s = trace.arrival_s
    end_s = np.sort(arrival_s + _allowed_s(scenario, trace.output_tokens))
    met = np.arange(len(arrival_s)) - np.searchsorted(end_s, arrival_s, side="right")
    warmup_s = scaled.measure.warmup_s
    return met[arrival_s >= warmup_s] if isinstance(warmup_s, float) else met


def crowd(scenario: Scenario, scale: float, seeds: Sequence[int], goal_frac: float) -> float:
    """Return the number of others that the goal's share of all requests meets at most."""
    return float(np.quantile(np.concatenate([in_progress(scenario, scale, seed) for seed in seeds]), goal_frac))


def covariate(scenario: Scenario, scale: float, seeds: Sequence[int], above: float) -> Floats:
    """Return the share of each seed's requests that meet more than that, `(n_seeds,)`."""
    return np.array([float((in_progress(scenario, scale, seed) > above).mean()) for seed in seeds])


def _allowed_s(scenario: Scenario, output_tokens: Ints) -> Floats:
    """Return the time that each request may take, `(n_requests,)`; of classes, the longest."""
    targets = [scenario.slo.default, *scenario.slo.classes.values()]
    ttft_s, tpot_s, e2e_s = (
        max((getattr(each, key) or 0.0 for each in targets), default=0.0) for key in ("ttft_s", "tpot_s", "e2e_s")
    )
    if not (ttft_s or tpot_s):
        return np.full(len(output_tokens), e2e_s)
    allowed_s: Floats = ttft_s + tpot_s * output_tokens.astype(np.float64)
    return allowed_s
