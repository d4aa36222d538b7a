"""Rate study: the highest rate, that of each SLO and class alone, and latency against rate."""

from simserve.study.capacity.capacity_result import CapacityResult
from simserve.study.capacity.facts import capacity_facts
from simserve.study.capacity.load_curve import load_curve
from simserve.study.capacity.load_curve_facts import load_curve_facts, requests_per_s
from simserve.study.capacity.probed_loads import OnProbe, ProbedLoads, RunsAt
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.capacity.rate import SCALES, Capacity, runs_at_scale, search_in


def study_rate(question: CapacityQuestion, progress: OnProbe | None = None) -> CapacityResult:
    """Return the highest rate and its load curve. Raises SimserveError as `find_capacity` does."""
    return study(question, runs_at_scale(question), progress)


def study(question: CapacityQuestion, runs_at: RunsAt, progress: OnProbe | None = None) -> CapacityResult:
    """Return the highest rate and its load curve, from any function that runs a load."""
    probed = ProbedLoads(runs_at, question.scenario.seed, progress, question.most_seeds)
    answer = search_in(question, probed)
    more = {}
    if isinstance(answer, Capacity):
        curve = load_curve(answer, probed, SCALES)
        more = load_curve_facts(curve, answer.offered_per_s, requests_per_s(answer), question.goal_frac)
    return CapacityResult(capacity_facts(answer, probed.points) | more, tuple((None, point) for point in probed.points))
