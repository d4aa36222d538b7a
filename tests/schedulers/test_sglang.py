"""SGLang's rules on cases small enough to work by hand. A step takes 10 ms; a page is one token."""

from dataclasses import replace

import numpy as np
import pytest

from simserve.engine.replica_setup import ReplicaSetup
from simserve.schedulers.sglang import SgLang
from simserve.state.request import Request
from simserve.workload.trace import Prefixes
from tests.doubles import MS, LineCost, instants, replica_setup, serve, trace

TEN_MS = LineCost(step=10 * MS)


def setup(policy: SgLang, n_tokens: int = 1000) -> ReplicaSetup:
    return replica_setup(policy, TEN_MS, n_blocks=n_tokens, block_size=1)


def test_decode_waits_while_prompts_can_start() -> None:
    cluster = serve(setup(SgLang()), trace([0.0, 0.015], [8, 8], [4, 1], max_tokens=[9, 9]))
    # Prefill of a, a's second token at 20, then b's prompt alone to 30, then a's last two.
    assert instants(cluster, "finish_ps") == [50, 30]
    rows = cluster.recorder.step_runs(0)
    assert [(r["prefill_tokens"], r["decode_requests"]) for r in rows] == [(8, 0), (0, 1), (8, 0), (0, 1)]


def test_mixed_chunks_let_running_requests_decode_beside_prompts() -> None:
    policy = SgLang(enable_mixed_chunk=True, chunked_prefill_size=5)
    rows = serve(setup(policy), trace([0.0, 0.015], [5, 8], [4, 1], max_tokens=[9, 9])).recorder.step_runs(0)
    # The decode token is one of the 5 tokens of a step.
    assert [(r["prefill_tokens"], r["decode_requests"]) for r in rows] == [(5, 0), (0, 1), (4, 1), (4, 1)]


@pytest.mark.parametrize(("is_ahead", "scheduled_ms"), [(False, [0, 50, 60, 110]), (True, [0, 50, 100, 100])])
def test_it_looks_for_arrivals_after_every_few_decode_steps_and_after_prompts(
    is_ahead: bool, scheduled_ms: list[int]
) -> None:
    how = replace(setup(SgLang(scheduler_recv_interval=4)), async_scheduling=is_ahead)
    cluster = serve(how, trace([0.0, 0.015, 0.055, 0.075], [8] * 4, [20, 1, 1, 1], max_tokens=[20] * 4))
    # It looks at 10, after the first prompt, and at 50, after four decode steps. Planned ahead, the third request could
    # run from 70 on: the look at 60, after the second prompt, is too early for it.
    assert instants(cluster, "scheduled_ps") == scheduled_ms


def test_it_looks_for_arrivals_at_once_while_nothing_runs() -> None:
    cluster = serve(setup(SgLang(scheduler_recv_interval=4)), trace([0.0, 0.033], [8, 8], [2, 1], max_tokens=[9, 9]))
    assert instants(cluster, "scheduled_ps") == [0, 33]


def test_a_prompt_begun_is_finished_before_others_start() -> None:
    policy = SgLang(chunked_prefill_size=10)
    cluster = serve(setup(policy), trace([0.0, 0.001], [25, 3], [1, 1], max_tokens=[5, 5]))
    assert cluster.recorder.step_runs(0)["prefill_tokens"].tolist() == [10, 10, 8]
    assert instants(cluster, "scheduled_ps") == [0, 20]


def test_where_prompts_are_not_cut_a_long_one_goes_alone() -> None:
    policy = SgLang(chunked_prefill_size=None, max_prefill_tokens=16)
    cluster = serve(setup(policy), trace([0.0] * 3, [20, 5, 5], [1] * 3, max_tokens=[5] * 3))
    assert cluster.recorder.step_runs(0)["prefill_tokens"].tolist() == [20, 10]


def test_a_new_request_is_charged_all_its_tokens_and_a_running_one_a_share() -> None:
    cluster = serve(setup(SgLang(), n_tokens=100), trace([0.0, 0.0], [10, 10], [2, 2], max_tokens=[40, 40]))
    # Each needs 10 + 40 + 1 of 100 tokens, so one starts. While it runs it is charged 0.7 x 39 = 27.3 of the 89 tokens
    # free beside its next one, and the remaining 61.7 exceed 51.
    assert instants(cluster, "scheduled_ps") == [0, 10]


@pytest.mark.parametrize(("arrival_s", "scheduled_ms"), [(0.005, 500), (0.115, 120)])
def test_the_share_falls_so_that_who_comes_later_may_start(arrival_s: float, scheduled_ms: int) -> None:
    policy = SgLang(new_token_ratio_decay_steps=10)
    load = trace([0.0, arrival_s], [10, 10], [50, 1], max_tokens=[90, 30])
    cluster = serve(setup(policy, n_tokens=110), load)
    # It needs 41. At 10 ms, 99 - 0.7 x 89 = 36.7 are left, and the batch stays full until the first is done at 500 ms;
    # at 120 ms, after 11 steps, 88 - 0.098 x 78 = 80.4 are left.
    assert instants(cluster, "scheduled_ps") == [0, scheduled_ms]


def test_the_share_falls_over_600_decode_steps_and_starts_again_when_idle() -> None:
    policy = SgLang()
    shares = [policy.new_token_ratio]
    for n_steps, has_prefill in ((300, False), (50, True), (300, False), (1000, False)):
        policy.on_commit(n_steps, has_prefill, None)
        shares.append(policy.new_token_ratio)
    assert shares == pytest.approx([0.7, 0.399, 0.399, 0.098, 0.098])
    policy.on_idle()
    assert policy.new_token_ratio == 0.7


def test_after_a_retraction_the_share_is_what_the_rest_used_and_20_steps_more() -> None:
    policy = SgLang()
    policy.on_commit(600, False, None)
    stays, goes = Request(0, 0, 10, 100), Request(1, 0, 10, 100)
    for request in (stays, goes):
        request.emitted_tokens = 1
        policy.on_join(request)
    policy.on_commit(29, False, None)
    policy.on_leave(goes)
    policy.on_preempt()
    assert policy.new_token_ratio == pytest.approx((30 + 20) / 101)
    policy.on_commit(1, False, None)  # the step after the preemption
    assert policy.new_token_ratio == pytest.approx((30 + 20) / 101)
    policy.on_commit(1, False, None)
    assert policy.new_token_ratio == pytest.approx((30 + 20) / 101 - 0.602 / 600)


def test_a_full_batch_is_tried_again_one_decode_step_after_somebody_left() -> None:
    policy = SgLang(max_running_requests=2)
    cluster = serve(setup(policy), trace([0.0] * 3, [5] * 3, [3, 10, 1], max_tokens=[20] * 3))
    assert instants(cluster, "finish_ps")[0] == 30
    assert instants(cluster, "scheduled_ps") == [0, 0, 40]


def test_the_request_with_the_fewest_tokens_is_retracted_to_the_end_of_the_queue() -> None:
    policy = SgLang(schedule_conservativeness=0)
    load = trace([0.0, 0.015, 0.095], [10, 10, 2], [15, 12, 2], max_tokens=[20, 12, 2])
    cluster = serve(setup(policy, n_tokens=40), load)
    # At 120 ms a has 11 output tokens and b 10, and 39 of 40 tokens are held: b is retracted, behind c, which starts at
    # 130. b's 20 tokens do not fit beside a, done at 170; then b recomputes them, and has its last token at 190.
    assert instants(cluster, "scheduled_ps") == [0, 20, 130]
    assert instants(cluster, "finish_ps") == [170, 190, 150]
    assert cluster.recorder.columns["n_preemptions"].tolist() == [0, 1, 0]
    assert cluster.recorder.columns["n_recomputed_tokens"].tolist() == [0, 19, 0]


@pytest.mark.parametrize("has_ids", [False, True])
def test_what_a_retracted_request_has_decoded_is_freed_and_its_prompt_stays(has_ids: bool) -> None:
    load = trace([0.0, 0.015], [10, 10], [15, 12], max_tokens=[20, 12])
    if has_ids:  # of its answers, too
        load = replace(load, prefixes=Prefixes.from_ids(1, np.arange(49), np.array([0, 25, 47])))
    how = replace(setup(SgLang(schedule_conservativeness=0), n_tokens=40), keeps_contents=True, caches_prefixes=has_ids)
    cluster = serve(how, load)
    # At 120 ms b leaves with 19 tokens, and all 10 of its prompt are there when it returns: it computes 9 again.
    assert cluster.recorder.columns["n_preemptions"].tolist() == [0, 1]
    assert cluster.recorder.columns["n_recomputed_tokens"].tolist() == [0, 9]


def test_a_request_as_long_as_the_whole_cache_starts_when_nobody_runs() -> None:
    cluster = serve(setup(SgLang(), n_tokens=50), trace([0.0], [30], [20], max_tokens=[20]))
    assert instants(cluster, "finish_ps") == [200]
