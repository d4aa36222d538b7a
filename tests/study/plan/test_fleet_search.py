"""The fewest replicas, worked by hand: nothing is run that follows from what was run, nor what cannot hold any more."""

from collections.abc import Sequence
from typing import Any

import pytest

from simserve.errors import NoArrivals
from simserve.study.plan.fleet_search import PROBES, FleetSearch
from simserve.study.run_seeds import Run
from tests.study.plan_world import DisaggregatedWorld, N, World, summary
from tests.study.served import as_runs

SEEDS = range(8)


def search(world: Any, goal_frac: float = 0.99, *, is_disaggregated: bool = False) -> FleetSearch:
    return FleetSearch(world, goal_frac, SEEDS, is_disaggregated=is_disaggregated)


@pytest.mark.parametrize("start", [1, 4, 20])
@pytest.mark.parametrize(("share", "scale", "fewest"), [(0.3, 1.0, 4), (0.3, 2.0, 7), (1.0, 1.0, 1), (0.05, 1.0, 20)])
def test_the_fewest_are_the_demand_by_what_one_replica_serves(
    share: float, scale: float, fewest: int, start: int
) -> None:
    assert search(World(share)).fewest(start, 64, scale) == fewest


def test_no_fleet_is_larger_than_the_limit() -> None:
    world = World(0.1)
    assert search(world).fewest(2, 9) is None
    assert search(World(0.1)).fewest(2, 10) == 10
    assert max(replicas[0] for replicas, _, _ in world.ran) == 9


def test_what_follows_from_what_was_run_is_not_run() -> None:
    world = World(0.3)
    result = search(world)
    assert result.fewest(4, 64) == 4
    ran = len(world.ran)
    assert result.holds(5, 0.9)
    assert result.holds(4, 1.0)
    assert not result.holds(3, 1.2)
    assert not result.holds(2, 1.0)
    assert len(world.ran) == ran
    assert not result.holds(4, 1.3)  # this does not follow
    assert len(world.ran) > ran


@pytest.mark.parametrize(("n_missed", "is_cut"), [(40, False), (41, True)])
def test_seeds_are_left_out_where_the_first_alone_miss_more_than_all_may(n_missed: int, is_cut: bool) -> None:
    """Of 8,000 requests 80 may miss; the first two runs have missed 80 or 82."""
    result = search(World(0.3, n_missed=n_missed)).best(1)
    assert result.is_cut == is_cut
    assert len(result.point.runs) == (PROBES if is_cut else len(SEEDS))


def test_a_fleet_whose_queue_only_grows_does_not_hold() -> None:
    grows = {"saturated": True}
    assert not search(lambda replicas, scale, seeds: as_runs(summary(scale, trust=grows) for _ in seeds)).holds(1)


@pytest.mark.parametrize(
    ("prefill_share", "decode_share", "split"),
    [(1.0, 0.25, (1, 4)), (0.25, 1.0, (4, 1)), (0.5, 0.35, (2, 3)), (1.0, 1.0, (1, 1)), (0.105, 0.5, (10, 2))],
)
def test_apart_the_split_is_found_that_the_shares_of_both_sides_ask_for(
    prefill_share: float, decode_share: float, split: tuple[int, int]
) -> None:
    result = search(DisaggregatedWorld(prefill_share, decode_share), is_disaggregated=True)
    size = result.fewest(3, 64)
    assert size == sum(split) - 1
    assert result.best(size).replicas == split


def test_splits_of_a_total_are_bisected() -> None:
    world = DisaggregatedWorld(0.02, 1.0)
    search(world, is_disaggregated=True).best(63)
    assert len({replicas for replicas, _, _ in world.ran}) <= 6


def answers_whole(short: str) -> Any:
    """SLOs of whole answers: all that is known is what the runs say binds, until four replicas do that."""

    def runs(replicas: tuple[int, int], scale: float, seeds: Sequence[int]) -> list[Run]:
        is_enough = replicas[0 if short == "prefill" else 1] >= 4
        n_met = N if is_enough else 500
        attained = {"n_met": n_met, "n_arrived": N, "frac": n_met / N, "by_slo": {"e2e_s": n_met / N}}
        return as_runs(summary(scale, slo_attainment=attained, transfer={"binds": short}) for _ in seeds)

    return runs


@pytest.mark.parametrize(("short", "split"), [("prefill", (4, 1)), ("decode", (1, 4))])
def test_for_slos_of_whole_answers_the_split_follows_what_binds(short: str, split: tuple[int, int]) -> None:
    assert search(answers_whole(short), is_disaggregated=True).best(4).replicas == split


def test_prompts_that_wait_because_nobody_fetches_want_decode_replicas() -> None:
    def runs(replicas: tuple[int, int], scale: float, seeds: Sequence[int]) -> list[Run]:
        n_met = N if replicas[1] >= 4 else 500
        attained = {"n_met": n_met, "n_arrived": N, "frac": n_met / N, "by_slo": {"ttft_s": n_met / N, "tpot_s": 1.0}}
        return as_runs(summary(scale, slo_attainment=attained, transfer={"binds": "decode"}) for _ in seeds)

    assert search(runs, is_disaggregated=True).best(4).replicas == (1, 4)


def test_one_seed_says_where_to_begin_and_a_load_of_nobody_says_nothing() -> None:
    world = World(0.3)
    assert search(world).may_hold((1,), 0.25)
    assert not search(world).may_hold((1,), 0.5)
    assert {n_seeds for _, _, n_seeds in world.ran} == {1}

    def nobody(replicas: Any, scale: float, seeds: Sequence[int]) -> list[Run]:
        raise NoArrivals("nobody came")

    assert not search(nobody).may_hold((1,), 0.25)
