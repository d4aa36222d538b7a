"""Rate study: the highest rate, how far each SLO and class alone would hold, and the curve of latency against rate."""

from simserve.study.capacity.capacity_result import CapacityResult
from simserve.study.capacity.facts import capacity_facts
from simserve.study.capacity.load_curve import look_around
from simserve.study.capacity.load_curve_facts import load_curve_facts, requests_per_s
from simserve.study.capacity.probed_loads import OnProbe, ProbedLoads, RunsAt
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.capacity.rate import SCALES, Capacity, runs_at_scale, search_in


def study_rate(question: CapacityQuestion, progress: OnProbe | None = None) -> CapacityResult:
    """Search and look around. Raises SimserveError as `find_capacity` does."""
    return study(question, runs_at_scale(question), progress)


def study(question: CapacityQuestion, runs_at: RunsAt, progress: OnProbe | None = None) -> CapacityResult:
    """Likewise, whatever it is that runs."""
    probed = ProbedLoads(runs_at, question.scenario.seed, progress, question.most_seeds)
    result = search_in(question, probed)
    more = {}
    if isinstance(result, Capacity):
        around = look_around(result, probed, SCALES)
        more = load_curve_facts(around, result.offered_per_s, requests_per_s(result), question.goal_frac)
    return CapacityResult(capacity_facts(result, probed.points) | more, tuple((None, point) for point in probed.points))
