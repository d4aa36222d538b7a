"""Sizes, costs, ranks and growth of whole plans, by hand: what every replica serves is known, and prices are round."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from simserve import Scenario, load_scenario
from simserve.study.plan.facts import plan_facts
from simserve.study.plan.fleet_search import FleetSearch
from simserve.study.plan.growth import cost_of, hours_of, needs, outgrown_month
from simserve.study.plan.options import Demand, Fleets, Option
from simserve.study.plan.outcome import Bounds, OptionOutcome, Sized, settled, sized
from simserve.study.plan.plan import Plan, PlanQuestion, planned, settle
from simserve.study.run_seeds import Run
from tests.cli.scenarios import write_scenario
from tests.study.plan_world import DisaggregatedWorld, N, World, summary
from tests.study.served import as_runs

H100 = Option("h100-sxm", 1, is_disaggregated=False)
L40S = Option("l40s", 2, is_disaggregated=False)
BOUNDS = Bounds(0.99, 0, 64)
SEEDS = range(3, 11)


def tiny(folder: Path) -> Scenario:
    return load_scenario(write_scenario(folder))


def outcome(folder: Path, option: Option, world: Any, bounds: Bounds = BOUNDS, **demand: Any) -> OptionOutcome:
    """What comes of an option in a world."""
    scenario = tiny(folder)
    known = OptionOutcome(option, "too many", fleets=Fleets(scenario, option))
    search = FleetSearch(world, bounds.goal_frac, SEEDS, is_disaggregated=option.is_disaggregated)
    asked = Demand("arrivals", scenario, **demand)
    return settled(sized(known, search, asked, bounds), asked, bounds)


def held(folder: Path, option: Option, world: Any, bounds: Bounds = BOUNDS, **demand: Any) -> Sized:
    result = outcome(folder, option, world, bounds, **demand).sized
    assert result is not None
    return result


def plan_of(
    folder: Path, worlds: Mapping[Option, Any], usd: Mapping[str, float], bounds: Bounds = BOUNDS, **requested: Any
) -> Plan:
    scenario = tiny(folder)
    demand = Demand("arrivals", scenario)
    outcomes = [outcome(folder, option, world, bounds) for option, world in worlds.items()]
    return planned(PlanQuestion(scenario, bounds, **requested), demand, usd, outcomes)


def test_spare_replicas_come_on_top_of_the_fewest_that_hold(tmp_path: Path) -> None:
    """A replica serves 0.3 of the demand: four are needed, so five may lose one and six two."""
    for spare in (0, 1, 2):
        result = held(tmp_path, H100, World(0.3), Bounds(0.99, spare, 64))
        assert (result.needed.replicas, result.all_up.replicas) == ((4,), (4 + spare,))
        assert result.needed.point.attained_frac == 1.0
        assert result.fewer is not None
        assert result.fewer.replicas == (3,)


def test_apart_each_pool_has_its_own_spare_ones(tmp_path: Path) -> None:
    option = Option("h100-sxm", 1, is_disaggregated=True)
    result = held(tmp_path, option, DisaggregatedWorld(0.5, 0.35), Bounds(0.99, 1, 64))
    assert (result.needed.replicas, result.all_up.replicas) == ((2, 3), (3, 4))


@pytest.mark.parametrize(("max_gpus", "state"), [(10, "holds"), (9, "too many"), (3, "too many"), (1, "too many")])
def test_spare_replicas_count_among_the_gpus_that_are_allowed(tmp_path: Path, max_gpus: int, state: str) -> None:
    """Four replicas of two GPUs and a spare one are ten GPUs."""
    result = outcome(tmp_path, L40S, World(0.3), Bounds(0.99, 1, max_gpus))
    assert result.state == state
    if max_gpus < 4:
        assert result.nearest is None
    elif state == "too many":
        assert result.nearest is not None
        assert result.nearest.replicas == (3,)


def test_costs_are_arithmetic(tmp_path: Path) -> None:
    """Four replicas of two cards at 0.5 dollars an hour are 4 dollars an hour, 2,920 a month of 730 hours. 200 tokens a
    second are 525.6 million a month, so a million costs 2,920 / 525.6; of 1,000 with the prompts a fifth of that."""
    cost = cost_of(held(tmp_path, L40S, World(0.3)), 0.5)
    assert (cost.n_gpus, cost.usd_per_hour, cost.usd_per_month) == (8, 4.0, 2920.0)
    assert cost.output_tokens.value == pytest.approx(525.6e6)
    assert cost.usd_per_million(cost.output_tokens).value == pytest.approx(2920 / 525.6)
    assert cost.usd_per_million(cost.tokens).value == pytest.approx(2920 / 2628)
    assert cost.kwh_at_tdp == pytest.approx(8 * 0.35 * 730)  # 350 W by the data sheet
    assert cost.kwh == pytest.approx(8 * 0.35 * 730 / 2)  # a step runs half of the time
    assert (cost.usd_low, cost.usd_per_month) == (2920.0, 2920.0)
    assert cost.price().gpu_hours_per_month == 8 * 730


def test_tokens_whose_requests_missed_the_slo_are_not_good(tmp_path: Path) -> None:
    """995 of 1,000 requests meet it: a million good tokens costs 1 / 0.995 of a million tokens."""
    sized_ = held(tmp_path, H100, lambda replicas, scale, seeds: as_runs(summary(scale, 995) for _ in seeds))
    cost = cost_of(sized_, 4.0)
    ratio = cost.usd_per_million(cost.good_tokens).value / cost.usd_per_million(cost.output_tokens).value
    assert ratio == pytest.approx(1 / 0.995)


def test_more_tokens_make_the_low_end_of_what_a_million_costs(tmp_path: Path) -> None:
    """Two runs of 100 and 300 tokens a second: a mean of 200, whose interval reaches as far up as down."""

    def runs(replicas: Any, scale: float, seeds: Any) -> list[Run]:
        return as_runs(summary(scale, output_tokens_per_s=100 if seed % 2 else 300) for seed in seeds)

    cost = cost_of(held(tmp_path, H100, runs), 4.0)
    per = cost.usd_per_million(cost.output_tokens)
    assert per.low < per.value < per.high
    assert 1 / per.low + 1 / per.high == pytest.approx(2 / per.value)


def test_tokens_and_energy_are_those_at_the_mean_demand(tmp_path: Path) -> None:
    result = held(tmp_path, H100, World(0.3), mean_load_frac=0.5)
    assert cost_of(result, 4.0).output_tokens.value == pytest.approx(100 * 730 * 3600)
    assert result.needed.point.offered_per_s == 10.0


def spread(n_met: list[int]) -> Any:
    """Of one replica all miss half, of two the runs differ by chance, of three all meet it."""

    def runs(replicas: Any, scale: float, seeds: Any) -> list[Run]:
        by_size = {1: [500] * 8, 2: n_met}
        return as_runs(summary(scale, by_size.get(replicas[0], [N] * 8)[(seed - 3) % 8]) for seed in seeds)

    return runs


UNSURE = [971, 1000, 985, 1000, 990, 992, 995, 985]
"""A mean of 990: on the edge of 99% however often it is repeated."""


ABOVE = [981, 1000, 985, 1000, 990, 992, 995, 985]
"""A mean of 991, whose interval reaches below 990."""


def test_a_fleet_on_the_edge_is_not_bought_and_its_cost_is_the_low_end(tmp_path: Path) -> None:
    """Two replicas at 730 dollars are unsure, so three are bought; where 999 of 1,000 requests are met two are sure."""
    sized_ = {name: held(tmp_path, H100, spread(runs)) for name, runs in (("edge", UNSURE), ("sure", [999] * 8))}
    usd = {name: cost_of(each, 1.0) for name, each in sized_.items()}
    assert (usd["sure"].usd_low, usd["sure"].usd_per_month, sized_["sure"].tied) == (1460.0, 1460.0, None)
    assert (usd["edge"].usd_low, usd["edge"].usd_per_month) == (1460.0, 2190.0)
    tied = sized_["edge"].tied
    assert tied is not None
    assert (tied.replicas, tied.decision, len(tied.point.runs)) == ((2,), "edge", 32)


def test_a_plan_names_the_sure_fleet_and_the_cheaper_tied_one(tmp_path: Path) -> None:
    (row,) = plan_facts(plan_of(tmp_path, {H100: spread(UNSURE)}, {"h100-sxm": 1.0})).options
    assert (row.decision, row.replicas, row.tied_replicas, row.tied_n_seeds) == ("met", 3, 2, 32)
    assert row.tied_low_frac is not None
    assert row.tied_high_frac is not None
    assert row.tied_low_frac < 0.99 <= row.tied_high_frac
    assert (row.usd_per_month_low, row.usd_per_month) == (1460.0, 2190.0)


def test_seeds_are_added_only_to_options_that_may_be_the_cheapest(tmp_path: Path) -> None:
    """Three replicas at 1 dollar are sure; two of the others at 4 dollars cost more, sure or not."""
    scenario = tiny(tmp_path)
    demand, usd = Demand("arrivals", scenario), {"h100-sxm": 1.0, "l40s": 4.0}
    outcomes = []
    for option in (L40S, H100):
        search = FleetSearch(spread(ABOVE), BOUNDS.goal_frac, SEEDS, is_disaggregated=False)
        known = OptionOutcome(option, "too many", fleets=Fleets(scenario, option))
        outcomes.append(sized(known, search, demand, BOUNDS))
    expensive, cheap = (each.sized for each in settle(outcomes, demand, BOUNDS, usd))
    assert expensive is not None
    assert cheap is not None
    assert cheap.needed.decision == "met"
    assert (expensive.needed.decision, len(expensive.needed.point.runs)) == ("edge", 8)


def test_where_the_largest_fleet_is_on_the_edge_none_is_bought(tmp_path: Path) -> None:
    result = outcome(tmp_path, H100, spread(UNSURE), Bounds(0.99, 0, 2))
    assert result.state == "too many"
    assert result.nearest is not None
    assert result.nearest.decision == "edge"


def test_the_cheapest_a_month_comes_first_then_the_cheapest_for_good_tokens(tmp_path: Path) -> None:
    """Four H100s at 4 dollars; eight L40S at 1; and as many dollars as the latter where more requests meet the SLO."""
    better = Option("l40s", 1, is_disaggregated=False)
    worlds = {
        H100: World(0.3),
        L40S: lambda replicas, scale, seeds: as_runs(summary(scale, 995 if replicas >= (4,) else 0) for _ in seeds),
        better: World(1 / 8),
    }
    plan = plan_of(tmp_path, worlds, {"h100-sxm": 4.0, "l40s": 1.0})
    assert [choice.outcome.option for choice in plan.choices] == [better, L40S, H100]
    rows = plan_facts(plan).options
    assert [row.rank for row in rows] == [1, 2, 3]
    assert [row.usd_per_month for row in rows] == [5840.0, 5840.0, 11680.0]
    assert [row.gpus for row in rows] == [8, 8, 4]
    assert [row.close_call for row in rows] == [False, True, False]


def test_what_does_not_hold_comes_last_with_what_the_largest_fleet_did(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {L40S: World(0.01), H100: World(0.3)}, {"h100-sxm": 4.0, "l40s": 1.0})
    first, last = plan_facts(plan).options
    assert (first.option, first.state, last.option, last.state) == (
        H100.name,
        "holds",
        L40S.name,
        "too many",
    )
    assert (last.rank, last.needed_replicas, last.attained_frac) == (None, 32, 0.5)
    assert (last.fails_first, last.fails_first_frac, last.n_seeds) == ("ttft_s", 0.5, 2)


def test_growth_outgrows_the_fleet_in_the_month_that_arithmetic_says(tmp_path: Path) -> None:
    """Four replicas of 0.3 serve 1.2 of the demand: at a tenth more each month 1.1 is served, 1.21 is not; five serve
    1.5, up to 1.464 in the fourth month; six 1.8, up to 1.772 in the sixth; seven 2.1, up to 1.949 in the seventh."""
    result = held(tmp_path, H100, World(0.3))
    scales = [1.1**month for month in range(8)]
    months = needs(result, scales, BOUNDS)
    assert [need.n_replicas for need in months] == [4, 4, 5, 5, 5, 6, 6, 7]
    assert outgrown_month(result, scales) == 2
    assert outgrown_month(result, scales[:2]) is None
    assert [need.n_replicas for need in needs(result, scales, Bounds(0.99, 1, 64))] == [5, 5, 6, 6, 6, 7, 7, 8]


def test_months_that_need_more_than_is_allowed_are_unknown(tmp_path: Path) -> None:
    result = held(tmp_path, H100, World(0.3))
    months = needs(result, [1.0, 1.4, 1.6], Bounds(0.99, 0, 5))
    assert [need.n_replicas for need in months] == [4, 5, None]


def test_hours_need_what_their_own_rate_asks_and_at_least_a_replica(tmp_path: Path) -> None:
    result = held(tmp_path, H100, World(0.3))
    demand = Demand("diurnal", tiny(tmp_path), hours=(1.0, 0.55, 0.3, 0.0, 0.9))
    assert [need.n_replicas for need in hours_of(result, demand, BOUNDS)] == [4, 2, 1, 1, 3]


def test_few_months_are_run_where_the_need_does_not_change(tmp_path: Path) -> None:
    world = World(0.3)
    result = held(tmp_path, H100, world)
    before = len(world.ran)
    needs(result, [1 + month / 1000 for month in range(121)], BOUNDS)
    assert len(world.ran) - before == 2  # the last month, its first seeds and its others


def test_the_facts_follow_growth_of_what_may_be_cheaper_in_the_end(tmp_path: Path) -> None:
    """After 12 months at 6% the demand is 2.012: seven H100s for 20,440 dollars. The L40S at 1 dollar cost 14,600 with
    10 replicas of two today, and there are 21 in the end; those of two H100s cost more than 20,440 today."""
    expensive = Option("h100-sxm", 2, is_disaggregated=False)
    worlds = {H100: World(0.3), L40S: World(0.1), expensive: World(0.25)}
    plan = plan_of(tmp_path, worlds, {"h100-sxm": 4.0, "l40s": 1.0}, growth_frac=0.06, months=12)
    facts = plan_facts(plan)
    ends = {row.option: (row.gpus_at_end, row.usd_per_month_at_end) for row in facts.options}
    assert ends == {H100.name: (7, 20440.0), L40S.name: (42, 30660.0), expensive.name: (None, None)}
    assert facts.growth is not None
    assert facts.growth.outgrown_month == facts.options[0].outgrown_month == 4  # 1.06^4 = 1.262
    assert [row.gpus for row in facts.growth.rows][:5] == [4, 4, 4, 4, 5]
    assert facts.growth.rows[1].offered_per_s == pytest.approx(10.6)


def test_a_fleet_that_follows_the_hours_saves_what_they_do_not_need(tmp_path: Path) -> None:
    """Needs of 4, 2, 1 and 1 of four replicas: half is saved."""
    scenario = tiny(tmp_path)
    demand = Demand("diurnal", scenario, 0.45, (1.0, 0.5, 0.3, 0.0))
    result = outcome(tmp_path, H100, World(0.3), mean_load_frac=0.45)
    plan = planned(PlanQuestion(scenario, BOUNDS), demand, {"h100-sxm": 4.0}, [result])
    facts = plan_facts(plan).autoscaling
    assert facts is not None
    assert facts.saves_at_best_frac == 0.5
    assert facts.usd_per_month_at_best == 2 * 4 * 730
    assert [row.gpus for row in facts.rows] == [4, 2, 1, 1]


def test_all_that_is_told_of_an_option_says_how_many_seeds_it_rests_on(tmp_path: Path) -> None:
    facts = plan_facts(plan_of(tmp_path, {H100: World(0.3)}, {"h100-sxm": 4.0}))
    (row,) = facts.options
    assert (row.n_seeds, row.fewer_n_seeds, facts.assumed.n_seeds) == (8, 2, 8)
    assert row.fewer_attained_frac == 1 - 500 / N


def test_a_small_class_that_misses_its_goal_keeps_a_fleet_from_being_bought(tmp_path: Path) -> None:
    """All 1,000 requests of a run meet the goal of 99% with 995; of the class's 20, 15 do, until there are four."""
    own = {"chat": {"n_met": 980, "n_arrived": 980, "frac": 1.0}, "rare": {"n_met": 15, "n_arrived": 20, "frac": 0.75}}
    small = {name: {"requests": {"arrived": each["n_arrived"]}, "slo_attainment": each} for name, each in own.items()}

    def runs(replicas: Any, scale: float, seeds: Any) -> list[Run]:
        changes = {"classes": small} if replicas < (4,) else {}
        return as_runs(summary(scale, 995, **changes) for _ in seeds)

    assert held(tmp_path, H100, runs).needed.replicas == (4,)
