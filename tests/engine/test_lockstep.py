"""Data-parallel ranks that step together, on cases small enough to work by hand."""

from dataclasses import replace

from simserve.engine.replica_setup import ReplicaSetup
from simserve.schedulers.chunked import Chunked
from tests.doubles import MS, LineCost, balance, instants, replica_setup, serve, trace

COST = LineCost(step=10 * MS, token=1 * MS)


def ranks(n: int, cost: LineCost = COST) -> ReplicaSetup:
    policy = Chunked(max_num_batched_tokens=100, max_num_seqs=10)
    return replace(replica_setup(policy, cost, n_blocks=1000, block_size=1), n_in_step=n)


def test_a_step_lasts_as_long_as_that_of_the_slowest_rank() -> None:
    # Prompts of 5 and 20 take 15 and 30 ms: both end at 30. Then both decode one token in 11 ms.
    cluster = serve(ranks(2), trace([0.0, 0.0], [5, 20], [2, 2]))
    assert instants(cluster, "first_token_ps") == [30, 30]
    assert instants(cluster, "finish_ps") == [41, 41]


def test_experts_are_paid_for_the_tokens_of_all_ranks() -> None:
    # In addition, 25 prompt tokens at 0.1 ms, then two decoded ones.
    cost = replace(COST, shared=MS // 10)
    cluster = serve(ranks(2, cost), trace([0.0, 0.0], [5, 20], [2, 2]))
    assert instants(cluster, "first_token_ps") == [32.5, 32.5]
    assert instants(cluster, "finish_ps") == [43.7, 43.7]


def test_what_the_busiest_rank_sends_is_paid_once_a_step() -> None:
    # In addition, 20 prompt tokens at 0.1 ms, then one decoded one.
    cost = replace(COST, busiest=MS // 10)
    cluster = serve(ranks(2, cost), trace([0.0, 0.0], [5, 20], [2, 2]))
    assert instants(cluster, "first_token_ps") == [32, 32]
    assert instants(cluster, "finish_ps") == [43.1, 43.1]


def test_who_comes_to_an_idle_rank_waits_for_the_step_of_the_others() -> None:
    # Round robin sends b to the idle rank; a's prefill runs from 0 to 30.
    cluster = serve(ranks(2), trace([0.0, 0.001], [20, 5], [1, 1]))
    assert instants(cluster, "scheduled_ps") == [0, 30]
    assert instants(cluster, "finish_ps") == [30, 45]


def test_a_rank_without_requests_does_not_slow_the_others() -> None:
    load = trace([0.0], [20], [5])
    assert instants(serve(ranks(3), load), "finish_ps") == instants(serve(ranks(1), load), "finish_ps") == [74]


def test_two_groups_do_not_wait_for_each_other() -> None:
    cluster = serve([ranks(2), ranks(2)], trace([0.0] * 4, [5, 5, 5, 20], [1] * 4))
    assert instants(cluster, "finish_ps") == [15, 15, 30, 30]


def test_ranks_go_through_the_stages_together_in_each_of_their_lanes() -> None:
    # Two stages and two lanes of two ranks; round robin sends a and b to the first lane, c to the second. The prompts
    # of a and b take 15 and 30 ms, and 25 tokens of experts 2.5: 16.25 in each stage. c's 15.5 ms enter at 16.25 and
    # have the second from 32.5 to 40.25. The decode step of a and b, 11.2, has the first from 32.5 and waits for that.
    setup = replace(ranks(2, replace(COST, shared=MS // 10)), n_stages=2)
    cluster = serve(setup, trace([0.0, 0.0, 0.0], [5, 20, 5], [2, 2, 1]))
    assert instants(cluster, "first_token_ps") == [32.5, 32.5, 40.25]
    assert instants(cluster, "finish_ps") == [45.85, 45.85, 40.25]


def test_a_chunk_of_one_rank_waits_for_the_tokens_of_another() -> None:
    # a's prompt of 20 takes two chunks; alone, its second would enter when the first has left the first stage. b's
    # token leaves the last one at 20, and only then do both plan again.
    policy = Chunked(max_num_batched_tokens=10, max_num_seqs=10)
    setup = replace(replica_setup(policy, COST, n_blocks=1000, block_size=1), n_in_step=2, n_stages=2)
    assert instants(serve(setup, trace([0.0], [20], [1])), "finish_ps") == [30]
    cluster = serve(setup, trace([0.0, 0.0], [20, 10], [1, 1]))
    assert instants(cluster, "finish_ps") == [40, 20]


def balanced(timeout_iters: int, batching_wait_iters: int) -> ReplicaSetup:
    return replace(ranks(2), balance=balance(timeout_iters, batching_wait_iters))


def test_a_prompt_waits_for_one_on_each_rank_until_it_has_waited_long_enough() -> None:
    # a and b begin together, as no rank decodes. c comes to a's rank; its prompt runs in the third step from 15 on.
    load = trace([0.0, 0.0, 0.001], [5, 5, 5], [10, 10, 1])
    assert instants(serve(ranks(2), load), "first_token_ps") == [15, 15, 31]
    assert instants(serve(balanced(3, 0), load), "first_token_ps") == [15, 15, 53]
    assert instants(serve(balanced(1, 0), load), "first_token_ps") == [15, 15, 31]


def test_steps_without_any_prompt_count_towards_the_time_out() -> None:
    # c comes while a and b take the first step after their prompts, from 15 to 26, and waits for one more.
    cluster = serve(balanced(3, 0), trace([0.0, 0.0, 0.016], [5, 5, 5], [10, 10, 1]))
    assert instants(cluster, "first_token_ps") == [15, 15, 53]


def test_prompts_on_each_rank_wait_for_more_only_to_be_batched() -> None:
    load = trace([0.0, 0.0, 0.001, 0.001], [5, 5, 5, 5], [10, 10, 1, 1])
    assert instants(serve(balanced(9, 0), load), "first_token_ps") == [15, 15, 31, 31]
    assert instants(serve(balanced(9, 2), load), "first_token_ps") == [15, 15, 53, 53]


def test_an_idle_rank_lets_prompts_wait_and_one_with_nothing_to_decode_does_not() -> None:
    idle = serve(balanced(3, 0), trace([0.0, 0.0, 0.001], [5, 5, 5], [10, 1, 1]))
    assert instants(idle, "first_token_ps") == [15, 15, 53]
    only_a_prompt = serve(balanced(3, 0), trace([0.0, 0.001], [20, 5], [10, 1]))
    assert instants(only_a_prompt, "first_token_ps") == [30, 45]
