"""The search for a capacity where only classes have targets."""

from simserve.report.capacity.rate import sentence
from simserve.scenario import Scenario
from simserve.study.capacity.boundary import Unbounded
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.capacity.rate import rate_answer
from tests.study.served import highest_rate

FIXED = {"kind": "fixed", "prompt_tokens": 50, "output_tokens": 5}


def test_loads_are_held_against_the_targets_of_classes() -> None:
    data = {
        "schema": "simserve/1",
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": 10},
            "lengths": FIXED,
            "n_requests": 200,
            "classes": {"chat": {"share": 1.0}},
        },
        "slo": {"classes": {"chat": {"ttft_s": 1e-6}}},
    }
    question = CapacityQuestion(Scenario.from_dict(data), 0.99, 0.1)
    result = highest_rate(question)
    assert isinstance(result, Unbounded)
    assert not result.is_met
    text = sentence(rate_answer(question, result, result.ends))
    assert "99% of requests have latencies within the SLO of their class" in text
