"""Check: whether a change loses p99 goodput against a baseline, with more seeds until that is clear."""

import math
from dataclasses import dataclass

from simserve.study.check.against import Against
from simserve.study.check.baseline import Baseline
from simserve.study.check.covariate import covariate
from simserve.study.check.gate import LOOKS, Answer, AttainmentCurve, Loss, answer, loss_between, significance
from simserve.study.check.same_question import ScenarioDifference, differences, portable
from simserve.study.check.side import Boundless, GateSide


@dataclass(frozen=True)
class Check:
    """The answer."""

    against: str
    baseline: Baseline
    candidate: GateSide
    curve: AttainmentCurve | Boundless
    """Curve of the candidate."""
    loss: Loss | None
    """None where the candidate has no p99 goodput, as it meets the goal at every load, or at none."""
    tolerance_frac: float
    n_seeds: int
    answer: Answer

    @property
    def passes(self) -> bool:
        """Return whether the candidate has not surely lost more than the tolerance."""
        return self.answer != "fail"

    @property
    def changes(self) -> list[ScenarioDifference]:
        """Return the differences of the scenario that a change may have."""
        return differences(self.baseline.scenario, portable(self.candidate.scenario))[1]


def check(against: Against, candidate: GateSide, tolerance_frac: float) -> Check:
    """Run the candidate about where the baseline's p99 goodput lies. Raises SimserveError."""
    for n_seeds in against.looks:
        baseline = against.with_seeds(n_seeds)
        curve = candidate.curve(baseline.grid, n_seeds, like=baseline.curve(n_seeds))
        if isinstance(curve, Boundless):
            text: Answer = "pass" if curve.is_met else "fail"
            return Check(against.name, baseline, candidate, curve, None, tolerance_frac, n_seeds, text)
        loss = _loss(baseline, candidate, curve)
        text = answer(loss, tolerance_frac, significance(len(LOOKS)))
        if text != "open":
            break
    return Check(against.name, baseline, candidate, curve, loss, tolerance_frac, n_seeds, text)


def _loss(baseline: Baseline, candidate: GateSide, curve: AttainmentCurve) -> Loss:
    n_seeds = len(curve.seeds)
    known = baseline.curve(n_seeds)
    if known.seeds == curve.seeds:
        return loss_between(known, curve, candidate.goal_frac)
    scale = math.sqrt(known.scales[0] * known.scales[1])
    control_variate = covariate(candidate.scenario, scale, curve.seeds, baseline.crowd.above)
    return loss_between(known, curve, candidate.goal_frac, (baseline.covariate(n_seeds), control_variate))
