"""Classes, tenants and batch traffic in a scenario: what goes together, and what does not."""

from collections.abc import Callable

import pytest

from simserve.scenario import Scenario

Load = Callable[..., Scenario]
MessagesOf = Callable[..., list[str]]

TWO = "workload.classes={chat: {share: 0.75}, bulk: {share: 0.25, priority: 10}}"
JOB = "workload.batch={n_requests: 5, lengths: {kind: fixed, prompt_tokens: 9, output_tokens: 9}}"


def test_classes_tenants_and_jobs_are_spelled_out_and_load_again(load: Load, small: str) -> None:
    slo = "slo={default: {ttft_s: 1}, classes: {bulk: {e2e_s: 60}, batch: {e2e_s: 600}}}"
    scenario = load(small, TWO, JOB, "workload.tenants={a: 0.5, b: 0.5}", slo)
    assert load(scenario.to_yaml()) == scenario
    assert scenario.workload.batch is not None
    assert (scenario.workload.batch.slo_class, scenario.workload.batch.priority) == ("batch", 1)
    assert scenario.workload.classes["bulk"].priority == 10
    assert scenario.slo.classes["batch"].e2e_s == 600


def test_classes_that_all_have_lengths_need_none_beside_them(load: Load, small: str) -> None:
    text = small.replace("  lengths: {kind: fixed, prompt_tokens: 512, output_tokens: 192}\n", "")
    own = "{kind: fixed, prompt_tokens: 10, output_tokens: 10}"
    scenario = load(text, f"workload.classes={{a: {{share: 0.5, lengths: {own}}}, b: {{share: 0.5, lengths: {own}}}}}")
    assert scenario.workload.lengths is None
    assert load(scenario.to_yaml()) == scenario


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["workload.classes={chat: {share: 0.7}, bulk: {share: 0.2}}"],
            "shares must sum to one, got 0.9; make the shares of chat and bulk come to 1",
        ),
        (
            ["workload.tenants={a: 0.7, b: 0.7}"],
            "shares must sum to one, got 1.4; make the shares of a and b come to 1",
        ),
        (["workload.classes={chat: {share: 0}}"], "workload.classes.chat.share: must be more than 0, got 0"),
        (
            ["workload.classes={chat: {share: 1, prio: 1}}"],
            "workload.classes.chat.prio: unknown key; did you mean priority?",
        ),
        (
            [TWO, "slo={classes: {chatt: {ttft_s: 1}}}"],
            "slo.classes.chatt: no request is of this class; did you mean chat?",
        ),
        (
            ["slo={classes: {chat: {ttft_s: 1}}}"],
            "slo.classes.chat: no request is of this class; give workload.classes",
        ),
        (
            [TWO, "slo={classes: {chat: {}}}"],
            "slo.classes.chat: needs a target; give ttft_s, tpot_s, itl_s or e2e_s; a class without urgency has "
            "a large e2e_s",
        ),
        (
            [
                "workload.classes={chat: {share: 1, lengths: {kind: fixed, prompt_tokens: 9, output_tokens: 9}}}",
                "workload.prefixes={kind: shared, prefix_tokens: 100}",
            ],
            "with prefixes, lengths are drawn before requests get their class; leave it out, or leave out "
            "workload.prefixes",
        ),
        (
            ["workload.classes={chat: {share: 1, lengths: {kind: fixed, prompt_tokens: 0, output_tokens: 9}}}"],
            "workload.classes.chat.lengths.prompt_tokens: must be at least 1, got 0",
        ),
        (
            [JOB[:-1] + ", at_s: [0, 50], over_s: 20}", "workload.n_requests=null", "workload.duration_s=60"],
            "at_s + over_s must be at most workload.duration_s, 60, got 70; the load ends there",
        ),
        (
            ["workload.batch={lengths: {kind: fixed, prompt_tokens: 9, output_tokens: 9}}"],
            "workload.batch.n_requests: ",
        ),
        (
            ["cluster.pools.0.scheduler.policy=prio"],
            "must be one of fcfs, priority or vtc, got 'prio'; did you mean priority?",
        ),
        (
            ["cluster.pools.0.scheduler={policy: vtc, vtc: {output_weight: 0}}"],
            "cluster.pools.0.scheduler.vtc.output_weight: must be more than 0, got 0",
        ),
        (
            ["cluster.pools.0.scheduler={policy: fcfs, vtc: {output_weight: 1}}"],
            "vtc goes with policy vtc, got policy fcfs",
        ),
    ],
)
def test_what_cannot_be_is_told_with_its_place(
    messages_of: MessagesOf, small: str, overrides: list[str], message: str
) -> None:
    (result,) = messages_of(small, *overrides)
    assert message in result
