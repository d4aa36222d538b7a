"""Plans of each policy, on cases small enough to work by hand. A step takes 10 ms unless noted otherwise."""

import numpy as np
import pytest

from simserve.schedulers.base import Scheduler
from simserve.schedulers.chunked import Chunked
from simserve.schedulers.continuous import Continuous
from simserve.schedulers.dynamic import Dynamic
from simserve.schedulers.prefill_first import PrefillFirst
from simserve.schedulers.sglang import SgLang
from simserve.schedulers.static import Static
from simserve.schedulers.trtllm import TrtLlm
from tests.doubles import MS, LineCost, instants, replica_setup, serve, trace

TEN_MS = LineCost(step=10 * MS)


@pytest.mark.parametrize(
    ("policy", "budget_tokens", "max_running"),
    [
        (Chunked(max_num_batched_tokens=99, max_num_seqs=7), 99, 7),
        (PrefillFirst(max_num_batched_tokens=99, max_num_seqs=7), 99, 7),
        (PrefillFirst(), None, 256),
        (Continuous(max_num_seqs=7), None, 7),
        (TrtLlm(max_num_tokens=99, max_batch_size=7), 99, 7),
        (SgLang(chunked_prefill_size=99), 99, None),
        (SgLang(chunked_prefill_size=None, max_prefill_tokens=77, max_running_requests=7), 77, 7),
        (Static(batch_size=7), None, 7),
        (Scheduler(), None, None),
    ],
)
def test_a_policy_says_the_most_tokens_of_a_step_and_its_slots(
    policy: Scheduler, budget_tokens: int | None, max_running: int | None
) -> None:
    assert (policy.budget_tokens, policy.max_running) == (budget_tokens, max_running)


def blocked(rows: np.ndarray) -> list[int]:
    return [int(code) for code in rows["blocked_by"]]


def test_chunked_decodes_first_and_gives_the_rest_of_the_budget_to_prompts() -> None:
    policy = Chunked(max_num_batched_tokens=10, max_num_seqs=4)
    rows = serve(replica_setup(policy, TEN_MS), trace([0.0, 0.0], [10, 15], [5, 1])).recorder.step_runs(0)
    assert [(r["prefill_tokens"], r["decode_requests"]) for r in rows][:3] == [(10, 0), (9, 1), (6, 1)]


def test_chunked_never_gives_one_prompt_more_than_its_threshold() -> None:
    policy = Chunked(max_num_batched_tokens=10, max_num_seqs=4, long_prefill_token_threshold=3)
    rows = serve(replica_setup(policy, TEN_MS), trace([0.0], [7], [1])).recorder.step_runs(0)
    assert rows["prefill_tokens"].tolist() == [3, 3, 1]


def test_two_prompts_that_fit_singly_but_not_together_are_not_both_admitted() -> None:
    for policy in (Chunked(), PrefillFirst(), Continuous()):
        setup = replica_setup(policy, TEN_MS, n_blocks=6, block_size=10, max_model_len=60)
        cluster = serve(setup, trace([0.0, 0.0], [38, 38], [2, 2], max_tokens=[2, 2]))
        assert instants(cluster, "scheduled_ps") == [0, 20], type(policy).__name__
        assert blocked(cluster.recorder.step_runs(0))[0] == 2


def test_two_requests_and_one_seat_are_served_one_after_the_other() -> None:
    policies: list[Scheduler] = [
        Chunked(max_num_seqs=1), PrefillFirst(max_num_seqs=1), Continuous(max_num_seqs=1), Static(batch_size=1)
    ]  # fmt: skip
    for policy in policies:
        cluster = serve(replica_setup(policy, TEN_MS), trace([0.0, 0.0], [8, 8], [3, 3], max_tokens=[9, 9]))
        assert instants(cluster, "finish_ps") == [30, 60], type(policy).__name__


def test_a_blocked_head_of_line_waits_for_the_first_finish_and_nobody_passes_it() -> None:
    setup = replica_setup(Chunked(), TEN_MS, n_blocks=10, block_size=10, max_model_len=100)
    cluster = serve(setup, trace([0.0, 0.001, 0.002], [50, 60, 5], [5, 1, 1]))
    assert instants(cluster, "scheduled_ps") == [0, 50, 50]


def test_prefill_first_stops_decoding_while_prompts_can_start() -> None:
    cluster = serve(replica_setup(PrefillFirst(), TEN_MS), trace([0.0, 0.015], [8, 8], [4, 1]))
    # Prefill of a, a's second token at 20, then b's prompt alone to 30, then a's last two.
    assert instants(cluster, "finish_ps") == [50, 30]
    rows = cluster.recorder.step_runs(0)
    assert [(r["prefill_tokens"], r["decode_requests"]) for r in rows] == [(8, 0), (0, 1), (8, 0), (0, 1)]


def test_chunked_bounds_the_stall_that_prefill_first_causes() -> None:
    cost = LineCost(token=MS)
    load = trace([0.0, 0.0155], [8, 1000], [20, 1])
    stalls = []
    for policy in (PrefillFirst(), Chunked(max_num_batched_tokens=64, max_num_seqs=8)):
        rows = serve(replica_setup(policy, cost), load).recorder.step_runs(0)
        stalls.append(int(rows["first_ps"].max()) // MS)
    assert stalls == [1000, 64]


def test_continuous_reserves_to_the_longest_answer_so_that_nothing_is_preempted() -> None:
    setup = replica_setup(Continuous(), TEN_MS, n_blocks=10, block_size=10, max_model_len=100)
    cluster = serve(setup, trace([0.0, 0.0], [10, 10], [2, 2], max_tokens=[41, 50]))
    # 51 tokens take 6 blocks, 60 take 6 more: together they do not fit 10, though 12 tokens each would.
    assert instants(cluster, "scheduled_ps") == [0, 20]
    row = cluster.recorder.step_runs(0)[0]
    assert (row["kv_blocks_used"], row["kv_blocks_reserved"]) == (1, 5)


def test_continuous_mixes_whole_prompts_with_decoding() -> None:
    cluster = serve(replica_setup(Continuous(), TEN_MS), trace([0.0, 0.015], [8, 500], [4, 1], max_tokens=[9, 9]))
    rows = cluster.recorder.step_runs(0)
    assert [(r["prefill_tokens"], r["decode_requests"]) for r in rows] == [(8, 0), (0, 1), (500, 1), (0, 1)]


def test_static_pads_to_the_longest_prompt_and_all_wait_for_the_longest_answer() -> None:
    policy = Static(batch_size=2)
    cluster = serve(replica_setup(policy, TEN_MS), trace([0.0, 0.0], [10, 30], [2, 5], max_tokens=[9, 9]))
    assert instants(cluster, "finish_ps") == instants(cluster, "first_token_ps") == [50, 50]
    rows = cluster.recorder.step_runs(0)
    assert rows["prefill_tokens"].tolist()[0] == 60
    assert sum(r["n_steps"] * r["decode_requests"] for r in rows) == 4 * 2
    # Both attend as if their prompts had 30 tokens.
    assert rows["kv_tokens"][1] == 31 + 31


def test_static_gives_tokens_as_they_come_when_it_streams() -> None:
    policy = Static(batch_size=2, stream=True)
    cluster = serve(replica_setup(policy, TEN_MS), trace([0.0, 0.0, 0.0], [10, 30, 8], [2, 5, 1], max_tokens=[9] * 3))
    assert instants(cluster, "first_token_ps") == [10, 10, 60]
    assert instants(cluster, "finish_ps") == [20, 50, 60]


def test_static_starts_what_waits_when_idle_and_nobody_joins_a_running_batch() -> None:
    load = trace([0.0, 0.001, 0.002], [8, 8, 8], [3, 2, 2], max_tokens=[9] * 3)
    cluster = serve(replica_setup(Static(batch_size=8), TEN_MS), load)
    assert instants(cluster, "scheduled_ps") == [0, 30, 30]
    assert instants(cluster, "finish_ps") == [30, 50, 50]


def test_a_batch_of_one_token_answers_ends_with_its_prefill() -> None:
    cluster = serve(replica_setup(Static(), TEN_MS), trace([0.0, 0.0], [8, 9], [1, 1], max_tokens=[9, 9]))
    assert instants(cluster, "finish_ps") == [10, 10]


def test_dynamic_waits_for_company_until_its_window_is_over() -> None:
    policy = Dynamic(batch_size=3, window_s=0.1)
    cluster = serve(replica_setup(policy, TEN_MS), trace([0.0, 0.05, 0.2], [8] * 3, [2] * 3, max_tokens=[9] * 3))
    assert instants(cluster, "scheduled_ps") == [100, 100, 300]


def test_dynamic_starts_at_once_when_the_batch_is_full() -> None:
    policy = Dynamic(batch_size=2, window_s=0.1)
    cluster = serve(replica_setup(policy, TEN_MS), trace([0.0, 0.03], [8] * 2, [2] * 2, max_tokens=[9] * 2))
    assert instants(cluster, "scheduled_ps") == [30, 30]


def test_a_batch_takes_only_as_many_as_its_padded_size_fits() -> None:
    setup = replica_setup(Static(batch_size=8), TEN_MS, n_blocks=10, block_size=10, max_model_len=100)
    # Alone 20 + 20 tokens take 4 blocks. With the second both are 40 + 20 long: 12 blocks of 10.
    cluster = serve(setup, trace([0.0, 0.0], [20, 40], [2, 2], max_tokens=[20, 20]))
    assert instants(cluster, "scheduled_ps") == [0, 20]


def test_iteration_level_batching_beats_static_batching() -> None:
    rng = np.random.default_rng(0)
    n = 200
    load = trace([0.0] * n, [64] * n, rng.integers(1, 200, n).tolist(), max_tokens=[200] * n)
    ends = []
    for policy in (Static(batch_size=16), Continuous(max_num_seqs=16)):
        ends.append(max(instants(serve(replica_setup(policy, TEN_MS), load), "finish_ps")))
    assert ends[1] < 0.7 * ends[0]
