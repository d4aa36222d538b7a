"""Rate study: the highest rate, how far each SLO and class alone would hold, and the curve of latency against rate."""

from simserve.study.capacity.capacity_result import Found
from simserve.study.capacity.facts import capacity_facts
from simserve.study.capacity.load_curve import look_around
from simserve.study.capacity.load_curve_facts import requests_per_s, surroundings_facts
from simserve.study.capacity.probed_loads import RunsAt, Told, Tried
from simserve.study.capacity.question import Question
from simserve.study.capacity.rate import SCALES, Capacity, runs_at_scale, search_in


def study_rate(question: Question, told: Told | None = None) -> Found:
    """Search and look around. Raises SimserveError as `find_capacity` does."""
    return study(question, runs_at_scale(question), told)


def study(question: Question, runs_at: RunsAt, told: Told | None = None) -> Found:
    """Likewise, whatever it is that runs."""
    tried = Tried(runs_at, question.scenario.seed, told, question.most_seeds)
    found = search_in(question, tried)
    more = {}
    if isinstance(found, Capacity):
        around = look_around(found, tried, SCALES)
        more = surroundings_facts(around, found.offered_per_s, requests_per_s(found))
    return Found(capacity_facts(found, tried.points) | more, tuple((None, point) for point in tried.points))
