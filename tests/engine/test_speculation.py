"""Speculative decoding: worked by hand, and compared with the formulas of the paper."""

from dataclasses import replace

import numpy as np
import pytest

from simserve.catalog.layers import LayerGroup
from simserve.cost.speculative import Drafting, ModelDrafting, SpeculativeCost
from simserve.engine.decode import Speculation
from simserve.engine.replica_setup import ReplicaSetup
from simserve.schedulers.chunked import Chunked
from simserve.state.acceptance import Acceptance
from simserve.state.layer_blocks import KvGroup, LayerBlocks
from tests.agreement import engine_steps, token_times
from tests.doubles import MS, LineCost, instants, replica_setup, serve, trace

MILLISECOND_A_STEP = LineCost(step=MS)


def speculating(rates: tuple[float, ...], setup: ReplicaSetup, draft: LineCost | None = None) -> ReplicaSetup:
    """Add proposals to a replica, by a draft with given costs, or free."""
    drafting = Drafting() if draft is None else ModelDrafting(draft, len(rates))
    how = Speculation(Acceptance(rates), n_slots=len(rates) + 1)
    return replace(setup, cost=SpeculativeCost(setup.cost, drafting, len(rates)), speculation=how)


def test_what_is_sure_to_be_accepted_comes_three_at_a_time() -> None:
    # 1 token of the prefill, then 3, 3 and the last of a run of 3 that is cut: 8 in all.
    cluster = serve(speculating((1.0, 1.0), replica_setup(cost=MILLISECOND_A_STEP)), trace([0.0], [10], [8]))
    assert token_times(cluster) == {0: [1 * MS, 2 * MS, 3 * MS, 4 * MS]}
    steps = [step for step in engine_steps(cluster, 0) if step["decode_requests"]]
    assert [step["accepted_tokens"] for step in steps] == [2, 2, 0]
    assert [step["kv_tokens"] for step in steps] == [11, 14, 17]
    assert instants(cluster, "finish_ps") == [4]


def test_a_step_has_the_time_of_its_drafts_and_of_what_it_verifies() -> None:
    target = LineCost(step=1_000_000, token=1_000, row=100, key=10)
    draft = LineCost(step=50_000, token=20, row=3, key=1)
    cluster = serve(speculating((0.0, 0.0), replica_setup(cost=target), draft), trace([0.0], [10], [3]))
    prefill, first, second = engine_steps(cluster, 0)
    prompt_ps = 1_000_000 + 10 * 1_000 + 100 + 10 * 10  # ten tokens, a row, ten keys
    assert (
        prefill["end_ps"] - prefill["start_ps"] == prompt_ps + 50_000 + 10 * 20 + 10 * 1
    )  # and once through the draft
    verify_ps = 1_000_000 + 3 * 1_000 + 3 * 100 + 13 * 10  # three tokens, of which the last attends 13 keys
    drafts_ps = 2 * (50_000 + 20 + 3) + 11 + 12  # two passes, over 11 and 12 keys
    assert first["end_ps"] - first["start_ps"] == verify_ps + drafts_ps
    assert second["end_ps"] - second["start_ps"] == verify_ps + 10 + drafts_ps + 2  # a key more, for each
    assert cluster.replicas[0].decode.drafting_ps == 50_000 + 10 * 20 + 10 + 2 * drafts_ps + 2


def test_a_window_of_the_draft_costs_and_frees_by_itself() -> None:
    """A block of the target is 2 tokens, and one of the draft 4, in a window of 5 tokens: of 8 tokens computed it keeps
    those from 4 on."""
    layers = LayerBlocks((KvGroup(2), KvGroup(4, 1, LayerGroup("windowed", 1, 5))), most_chunk=6)
    setup = replica_setup(cost=MILLISECOND_A_STEP, block_size=2, n_blocks=20)
    setup = speculating((0.0,), setup, LineCost(windows=(1_000,)))
    assert isinstance(setup.cost, SpeculativeCost) and isinstance(setup.cost.drafting, ModelDrafting)
    cost = replace(setup.cost, drafting=replace(setup.cost.drafting, n_windows=1))
    cluster = serve(replace(setup, layers=layers, cost=cost), trace([0.0], [6], [5]))
    prefill, *steps = engine_steps(cluster, 0)
    pairs = 1 + 2 + 3 + 4 + 5 + 5
    assert prefill["end_ps"] - prefill["start_ps"] == MS + 1_000 * (3 * pairs + 6)
    assert [step["end_ps"] - step["start_ps"] - MS for step in steps] == [2 * 5 * 1_000] * 4
    assert cluster.replicas[0].decode.drafting_ps == 1_000 * (3 * pairs + 6) + 4 * 2 * 5 * 1_000
    # 6 tokens, and after each step room for 8, 9 and 10; of the last two, the draft's window has left 4
    assert [step["kv_blocks_used"] for step in (prefill, *steps)] == [3 + 2, 3 + 2, 4 + 2, 5 + 3 - 1, 5 + 3 - 1]


def test_blocks_are_taken_for_all_proposals_and_kept() -> None:
    # 4 tokens a block; stored 4, 5, 6, 7, each with room for 3 more: 2, 2, 3 and 3 blocks.
    setup = replica_setup(cost=MILLISECOND_A_STEP, block_size=4, n_blocks=9)
    cluster = serve(speculating((0.0, 0.0), setup), trace([0.0], [4], [5]))
    assert [step["kv_blocks_used"] for step in engine_steps(cluster, 0)] == [1, 1, 2, 2, 3]
    pool = cluster.replicas[0].pool
    assert (pool.free_blocks, pool.least_free_blocks) == (9, 9 - 3)  # never for more than prompt and answer, 9 tokens


def test_decoding_requests_take_all_that_they_verify_from_the_budget() -> None:
    scheduler = Chunked(max_num_batched_tokens=10, max_num_seqs=4)
    setup = speculating((0.0,) * 4, replica_setup(scheduler, MILLISECOND_A_STEP))
    cluster = serve(setup, trace([0.0, 0.0015], [5, 20], [9, 1]))
    chunks = [step["prefill_tokens"] for step in engine_steps(cluster, 0)]
    assert chunks[:6] == [5, 0, 5, 5, 5, 5]  # 10 minus five of the decoding request


@pytest.mark.parametrize(("rate", "k", "cost_ratio"), [(0.8, 5, 0.05), (0.6, 2, 0.1), (0.9, 7, 0.02), (0.5, 3, 0.4)])
def test_alone_the_speed_up_is_that_of_the_paper(rate: float, k: int, cost_ratio: float) -> None:
    load = trace([0.0], [1], [40_000])
    setup = replica_setup(cost=MILLISECOND_A_STEP)
    plain = serve(setup, load)
    quick = serve(speculating((rate,) * k, setup, LineCost(step=round(cost_ratio * MS))), load)
    took = [cluster.recorder.columns["finish_ps"][0] - cluster.recorder.first_token_ps[0] for cluster in (plain, quick)]
    theory = (1 - rate ** (k + 1)) / ((1 - rate) * (k * cost_ratio + 1))  # Leviathan et al., ICML '23, theorem 3.8
    assert took[0] / took[1] == pytest.approx(theory, rel=0.02)


def test_a_preempted_request_keeps_what_it_has_and_goes_on() -> None:
    setup = replica_setup(cost=LineCost(step=MS, key=10), block_size=1, n_blocks=40)
    cluster = serve(speculating((0.7, 0.7), setup), trace([0.0, 0.0], [10, 10], [20, 20]))
    n_preemptions = cluster.recorder.columns["n_preemptions"].tolist()
    assert n_preemptions[0] == 0 < n_preemptions[1]
    n_tokens = [0, 0]
    for span in cluster.recorder.spans(0).tolist():
        n_tokens[span[0]] += 1
    assert n_tokens == [1, 1 + n_preemptions[1]]  # one of each prefill
    accepted = cluster.recorder.step_runs(0)["accepted_tokens"].sum()
    decoded = cluster.recorder.step_runs(0)["decode_requests"].sum()
    assert accepted + decoded + sum(n_tokens) == 40


def test_tenants_pay_for_accepted_tokens_as_they_come() -> None:
    # Three tokens a step. At 10 a has paid 5 + 2 and b 16 + 2, and the head, a's next, lacks blocks. a pays 6 a step:
    # 13 at 20, and 19 at 30, when b's next is the head and has room; a's other waits for the last of 20 tokens, at 80.
    policy = Chunked(max_num_batched_tokens=100, max_num_seqs=10, policy="vtc")
    setup = replica_setup(policy, LineCost(step=10 * MS), n_blocks=30, block_size=1)
    load = trace([0.0, 0.0, 0.0, 0.005], [5, 16, 28, 3], [20, 1, 1, 1])
    cluster = serve(speculating((1.0, 1.0), setup), replace(load, tenant=np.array(list("abab"))))
    assert instants(cluster, "scheduled_ps") == [0, 0, 80, 30]


def test_who_comes_while_a_stretch_is_blocked_is_counted_from_then_on() -> None:
    scheduler = Chunked(max_num_seqs=1)
    setup = speculating((0.0,), replica_setup(scheduler, MILLISECOND_A_STEP))
    cluster = serve(setup, trace([0.0, 0.0001, 0.0025], [1, 1, 1], [6, 1, 1]))
    assert [step["queue_len"] for step in engine_steps(cluster, 0)][:6] == [0, 1, 1, 2, 2, 2]
