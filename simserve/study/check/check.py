"""Check: whether a change loses p99 goodput against a baseline; asked again with more seeds until that is clear."""

import math
from dataclasses import dataclass

from simserve.study.check.against import Against
from simserve.study.check.baseline import Baseline
from simserve.study.check.covariate import crowding
from simserve.study.check.gate import LOOKS, Answer, Curve, Loss, answer, doubt_of, loss_between
from simserve.study.check.same_question import Difference, differences, portable
from simserve.study.check.side import Boundless, Side


@dataclass(frozen=True)
class Check:
    """The answer."""

    against: str
    baseline: Baseline
    candidate: Side
    curve: Curve | Boundless
    """Of the candidate."""
    loss: Loss | None
    """None where the candidate has no p99 goodput, as it meets the goal at every load, or at none."""
    tolerance_frac: float
    n_seeds: int
    answer: Answer

    @property
    def passes(self) -> bool:
        """Only what has lost more than the tolerance beyond doubt does not."""
        return self.answer != "fail"

    @property
    def changes(self) -> list[Difference]:
        """What differs in the scenario and may."""
        return differences(self.baseline.scenario, portable(self.candidate.scenario))[1]


def check(against: Against, candidate: Side, tolerance_frac: float) -> Check:
    """Run the candidate about where the baseline's p99 goodput lies. Raises SimserveError."""
    for n_seeds in against.looks:
        baseline = against.with_seeds(n_seeds)
        curve = candidate.curve(baseline.grid, n_seeds, like=baseline.curve(n_seeds))
        if isinstance(curve, Boundless):
            said: Answer = "pass" if curve.is_met else "fail"
            return Check(against.name, baseline, candidate, curve, None, tolerance_frac, n_seeds, said)
        loss = _loss(baseline, candidate, curve)
        said = answer(loss, tolerance_frac, doubt_of(len(LOOKS)))
        if said != "open":
            break
    return Check(against.name, baseline, candidate, curve, loss, tolerance_frac, n_seeds, said)


def _loss(baseline: Baseline, candidate: Side, curve: Curve) -> Loss:
    n_seeds = len(curve.seeds)
    known = baseline.curve(n_seeds)
    if known.seeds == curve.seeds:
        return loss_between(known, curve, candidate.goal_frac)
    scale = math.sqrt(known.scales[0] * known.scales[1])
    luck = crowding(candidate.scenario, scale, curve.seeds, baseline.crowd.above)
    return loss_between(known, curve, candidate.goal_frac, (baseline.crowding(n_seeds), luck))
