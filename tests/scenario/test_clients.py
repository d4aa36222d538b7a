"""Admission, timeouts and retries in a scenario: what goes together, and what does not."""

from collections.abc import Callable

import pytest

from simserve.admission.queue_length import QueueLength
from simserve.scenario import Scenario

Load = Callable[..., Scenario]
MessagesOf = Callable[..., list[str]]

FULL = "cluster.admission={kind: queue_length, max_outstanding: 8}"


def test_a_policy_is_written_down_with_all_its_arguments_and_built_anew_for_each_run(load: Load, small: str) -> None:
    scenario = load(small, FULL)
    assert scenario.cluster.admission == {"kind": "queue_length", "max_waiting": None, "max_outstanding": 8}
    policy = scenario.build_admission()
    assert isinstance(policy, QueueLength)
    assert policy is not scenario.build_admission()
    assert load(scenario.to_yaml()) == scenario
    assert load(small).build_admission() is None


def test_retries_are_those_of_openais_client_unless_given(load: Load, small: str) -> None:
    retries = load(small, "workload.timeout.ttft_s=5", "workload.retries={}").workload.retries
    assert retries is not None
    assert (retries.max_attempts, retries.backoff_s, retries.multiplier) == (3, 0.5, 2)
    assert (retries.max_backoff_s, retries.jitter) == (8, 0.25)


def test_the_resolved_scenario_holds_every_knob(load: Load, small: str) -> None:
    scenario = load(small, "workload.timeout={ttft_s: 5, e2e_s: 60}", "workload.retries={jitter: 0}")
    assert load(scenario.to_yaml()) == scenario
    assert scenario.origins["workload.retries.jitter"] == "explicit"
    assert scenario.origins["workload.retries.backoff_s"] == "default"
    assert scenario.digest != load(small).digest


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["workload.timeout.ttft_s=0"], "workload.timeout.ttft_s=0: must be more than 0, got 0"),
        (["workload.timeout.e2e_s=-1"], "must be more than 0, got -1"),
        (["workload.timeout={}"], "workload.timeout={}: needs ttft_s, e2e_s or both; for example {ttft_s: 10, e2e_s:"),
        (
            ["workload.timeout={ttft_s: 9, e2e_s: 9}"],
            "timeout.ttft_s: must be less than e2e_s, 9, or it never applies, got 9; lower it, or leave it out",
        ),
        (["workload.timeout={ttft: 9}"], "workload.timeout.ttft: unknown key"),
        (
            ["workload.retries={}"],
            "workload.retries={}: retries need requests that are rejected or time out; give "
            "workload.timeout or cluster.admission, or leave it out",
        ),
        ([FULL, "workload.retries.max_attempts=1"], "max_attempts=1: must be at least 2, got 1"),
        ([FULL, "workload.retries.multiplier=0.5"], "multiplier=0.5: must be at least 1, got 0.5"),
        ([FULL, "workload.retries.jitter=1.5"], "jitter=1.5: must be at most 1, got 1.5"),
        ([FULL, "workload.retries.backoff_s=-1"], "backoff_s=-1: must be at least 0, got -1"),
        (
            [FULL, "workload.retries.budget_frac=1.5"],
            "workload.retries.budget_frac=1.5: must be at most 1, got 1.5",
        ),
        ([FULL, "workload.retries.budget_frac=0"], "budget_frac=0: must be more than 0, got 0"),
        ([FULL, "workload.retries.budget_burst=0"], "budget_burst=0: must be at least 1, got 0"),
        ([FULL, "workload.retries.percent_can_retry=0.2"], "workload.retries.budget_frac"),
        (["cluster.admission=token_buckt"], "unknown admission policy, got 'token_buckt'; did you mean token_bucket?"),
        (["cluster.admission=queue_length"], "needs max_waiting or max_outstanding"),
        (["cluster.admission={kind: token_bucket, rate_per_s: 0}"], "rate_per_s: must be more than 0, got 0"),
        (["cluster.admission={kind: token_bucket, rate_per_s: .inf}"], "must be a finite number, got infinity"),
    ],
)
def test_what_does_not_go_together_is_a_mistake(
    messages_of: MessagesOf, small: str, overrides: list[str], message: str
) -> None:
    assert any(message in each for each in messages_of(small, *overrides))


@pytest.mark.parametrize("retries", [[], ["workload.retries={backoff_s: 0}"]])
def test_a_refused_client_of_a_closed_loop_must_wait_before_it_asks_again(
    messages_of: MessagesOf, small: str, retries: list[str]
) -> None:
    closed = small.replace("arrivals: {kind: poisson, rate_per_s: 8}", "client: {kind: closed_loop, concurrency: 4}")
    (message,) = messages_of(closed, FULL, *retries)
    assert "a closed-loop client that is rejected retries at once, endlessly" in message
    assert "give workload.retries with a backoff_s above 0" in message
