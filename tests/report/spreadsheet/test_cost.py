"""What a fleet costs: worked by hand, from what each command tells."""

from dataclasses import replace

import pytest

from simserve.report.spreadsheet.cost import Basis, CostAtLoad, FleetPoint, Known, grown
from simserve.report.spreadsheet.cost_sources import cost_basis
from simserve.report.spreadsheet.formulas import price_name
from tests.report.answers_by_hand import (
    capacity_answer,
    capacity_json,
    plan_answer,
    pool,
    replicas_answer,
    run_answer,
    sweep_answer,
    sweep_json,
)


def known(value: float | None) -> Known:
    return Known(value, "by hand")


def basis() -> Basis:
    """Units of two GPUs at 3 dollars that hold 3 requests/s, of which half is used, for 10 requests/s."""
    return Basis(
        unit="replica",
        gpus={"h100-sxm": 2},
        prices={"h100-sxm": known(3.0)},
        holds_per_s=known(3.0),
        demand_per_s=known(10.0),
        good_frac=known(0.9),
        prompt_tokens=known(300.0),
        output_tokens=known(100.0),
        mean_frac=known(0.5),
        target_frac=known(0.5),
        spare_units=known(1.0),
        growth_frac=known(0.1),
        months_ahead=known(2.0),
    )


def test_the_demand_is_rounded_up_to_whole_units_and_the_spare_ones_come_on_top() -> None:
    cost = grown(basis(), 0)
    assert cost.units == 8  # 10 / 1.5 is 6.67, so 7, and 1 spare
    assert cost.gpus == 16
    assert cost.used_frac == pytest.approx(10 / 24)


def test_a_month_is_all_units_for_all_its_hours() -> None:
    assert grown(basis(), 0).usd_per_month == 35_040  # 16 GPUs at 3 dollars for 730 hours


def test_what_a_million_costs() -> None:
    cost = grown(basis(), 0)
    assert cost.requests_per_month == 13_140_000  # 5 a second on average
    assert cost.usd_per_million(1.0) == pytest.approx(2666.67, abs=0.01)
    assert cost.usd_per_million(basis().good_frac.value) == pytest.approx(2962.96, abs=0.01)
    assert cost.usd_per_million(basis().all_tokens) == pytest.approx(6.6667, abs=1e-4)
    assert cost.usd_per_million(basis().good_tokens) == pytest.approx(29.63, abs=0.01)


def test_growth_is_compound() -> None:
    cost = grown(basis(), 2)
    assert cost.demand_per_s == pytest.approx(12.1)
    assert cost.units == 10  # 12.1 / 1.5 is 8.07
    assert cost.usd_per_month == 43_800


def test_a_need_that_is_whole_but_for_rounding_is_not_rounded_up() -> None:
    full = {"holds_per_s": known(0.1), "target_frac": known(1.0), "spare_units": known(0.0)}
    assert (0.1 + 0.2) / 0.1 > 3
    assert CostAtLoad(replace(basis(), **full), 0.1 + 0.2).units == 3  # type: ignore[arg-type]


def test_a_simulated_fleet_is_never_divided_and_grows_in_proportion() -> None:
    """Four replicas meet at 6 requests/s and six at 12, at half of which they are used."""
    fleets = [FleetPoint("by hand", 4, 6.0, meets=True), FleetPoint("by hand", 6, 12.0, meets=True)]
    fleets += [FleetPoint("by hand", 1, 100.0)]
    sized = replace(basis(), fleets=fleets, spare_units=known(0.0))
    assert [CostAtLoad(sized, demand).units for demand in (0.5, 3.0, 3.1, 6.0, 7.0)] == [4, 4, 5, 6, 7]


def test_a_month_reserved_and_owned() -> None:
    whole = grown(replace(basis(), watts_per_gpu=known(1000.0)), 0)
    assert whole.usd_reserved == pytest.approx(0.6 * 35_040)
    assert whole.usd_owned == pytest.approx(16 * (36_000 / 48 + 1.3 * 730 * 0.1))
    assert grown(basis(), 0).usd_owned is None  # its power is unknown


@pytest.mark.parametrize("name", ["holds_per_s", "demand_per_s"])
def test_what_is_not_known_leaves_what_follows_from_it_empty(name: str) -> None:
    cost = grown(replace(basis(), **{name: known(None)}), 0)  # type: ignore[arg-type]
    assert (cost.units, cost.gpus, cost.used_frac, cost.usd_per_month, cost.usd_per_million(1.0)) == (None,) * 5


def test_without_lengths_only_tokens_have_no_price() -> None:
    bare = replace(basis(), prompt_tokens=known(None))
    assert CostAtLoad(bare, 10.0).usd_per_million(bare.all_tokens) is None
    assert CostAtLoad(bare, 10.0).usd_per_million(bare.good_tokens) is not None


def test_names_of_prices_are_names_that_a_workbook_takes() -> None:
    assert price_name("h100-sxm") == "price_per_gpu_hour_h100_sxm"
    assert price_name("=my card/2") == "price_per_gpu_hour__my_card_2"


def test_a_run_that_met_its_slo_holds_what_it_offered() -> None:
    result = cost_basis([run_answer()])
    assert result is not None
    assert result.holds_per_s.value == 6.0  # 12 on two replicas
    assert (result.unit, dict(result.gpus), result.prices["h100-sxm"].value) == ("replica", {"h100-sxm": 2}, 3.0)
    assert (result.prompt_tokens.value, result.output_tokens.value, result.good_frac.value) == (300.0, 100.0, 0.999)
    assert grown(result, 0).units == 2  # the fleet that was simulated, and no more


def test_a_run_that_missed_it_tells_no_capacity_and_says_what_would() -> None:
    result = cost_basis([run_answer(slo_attainment={"frac": 0.5, "by_slo": {}})])
    assert result is not None
    assert result.holds_per_s.value is None
    assert result.holds_per_s.origin.endswith(
        "does not surely meet its SLO (50.0% attained), so its capacity is unknown: export a capacity with it."
    )


def test_a_run_on_the_edge_of_its_slo_tells_no_capacity_either() -> None:
    edge = {"frac": 0.999, "low_frac": 0.98, "high_frac": 1.0, "by_slo": {}}
    result = cost_basis([run_answer(slo_attainment=edge)])
    assert result is not None
    assert result.holds_per_s.value is None


def test_a_run_holds_the_nominal_load_that_its_answer_is_about() -> None:
    load = {"nominal_per_s": 12.4, "drawn_per_s": 12.0, "off_frac": -0.032}
    result = cost_basis([run_answer(load=load)])
    assert result is not None
    assert (result.holds_per_s.value, result.demand_per_s.value) == (6.2, 12.4)


def test_a_run_without_an_slo_holds_what_it_served() -> None:
    result = cost_basis([run_answer(slo={}, slo_attainment=None, served_per_s=11.0)])
    assert result is not None
    assert result.holds_per_s.value == 5.5
    assert result.good_frac.value is None


def test_pools_that_depend_on_each_other_grow_together() -> None:
    result = cost_basis([run_answer(pools=[pool("prefill", 1, 2), pool("decode", 3, 1, "l40s")])])
    assert result is not None
    assert (result.unit, dict(result.gpus), result.holds_per_s.value) == ("fleet", {"h100-sxm": 2, "l40s": 3}, 12.0)
    assert result.usd_per_unit_hour == 15.0


def test_a_capacity_says_what_a_replica_holds_and_a_run_beside_it_what_requests_are_like() -> None:
    result = cost_basis([run_answer(offered_per_s=7.0), capacity_answer()])
    assert result is not None
    assert result.holds_per_s.value == 9.0  # 18 on two replicas
    assert result.demand_per_s.value == 12.0  # its scenario's own load
    assert (result.prompt_tokens.value, result.output_tokens.value, result.good_frac.value) == (300.0, 100.0, 0.99)


def test_a_number_of_replicas_that_holds_shares_the_load() -> None:
    result = cost_basis([replicas_answer()])
    assert result is not None
    assert (result.unit, dict(result.gpus)) == ("replica", {"h100-sxm": 2})
    assert result.holds_per_s.value == 4.0  # 12 by three replicas
    assert result.demand_per_s.value == 12.0
    assert grown(result, 0).units == 3  # what was found to be enough, without more headroom


def test_a_capacity_without_an_answer_leaves_the_floor_to_others() -> None:
    nothing = capacity_answer(answer=None, stopped_at=capacity_json()["points"][0])
    result = cost_basis([nothing, run_answer()])
    assert result is not None
    assert result.holds_per_s.value == 6.0
    assert cost_basis([nothing]) is None


def test_a_plan_comes_to_what_the_plan_says() -> None:
    result = cost_basis([run_answer(), capacity_answer(), plan_answer()])
    assert result is not None
    cost = grown(result, 0)
    assert (cost.units, cost.gpus, cost.usd_per_month) == (5, 10, 21_900)
    assert result.prompt_tokens.value == pytest.approx(300)
    assert result.good_frac.value == pytest.approx(0.99)
    # the plan's own: 21,900 dollars for 12 requests/s of 100 tokens
    assert cost.usd_per_million(result.output_tokens.value) == pytest.approx(21_900 / (12 * 730 * 3600 * 100) * 1e6)
    assert {gpu: price.value for gpu, price in result.prices.items()} == {"h100-sxm": 3.0, "l40s": 1.0}
    assert [price.origin for price in result.prices.values()] == ["Plan chat: given.", "Plan chat: the catalog."]


def test_a_plan_that_grew_says_what_a_replica_holds_at_most() -> None:
    """Five that hold 40 a second in month 2, one of the six being spare, say more than four that hold 24 today."""
    rows = [{"month": 0, "offered_per_s": 24.0, "replicas": 5}, {"month": 2, "offered_per_s": 40.0, "replicas": 6}]
    basis = cost_basis([plan_answer(growth={"rows": [each | {"gpus": 2 * each["replicas"]} for each in rows]})])
    assert basis is not None
    assert basis.holds_per_s.value == 8.0


def test_a_plan_that_found_nothing_leaves_the_floor_to_others() -> None:
    assert cost_basis([plan_answer(options=[])]) is None


def test_a_sweep_offers_its_cheapest_point() -> None:
    result = cost_basis([sweep_answer()])
    assert result is not None
    assert (result.unit, dict(result.gpus), result.holds_per_s.value) == ("fleet", {"h100-sxm": 2}, 10.0)
    assert result.output_tokens.value == 100.0
    assert grown(result, 0).units == 1


@pytest.mark.parametrize("gpus", [["a100", "h100-sxm"], []])
def test_a_fleet_of_several_cards_is_paid_at_its_own_mean_price(gpus: list[str]) -> None:
    points = sweep_json()["points"]
    first, second = points[:2]
    for point, usd_per_hour in ((first, 6.0), (second, 7.33)):  # the second pays more, and is named last
        point["fleet"] |= {"n_gpus": 2, "usd_per_hour": usd_per_hour, "gpus": gpus}
    result = cost_basis([sweep_answer(points=points)])
    assert result is not None
    assert result.usd_per_unit_hour == 6.0
    assert {gpu: price.value for gpu, price in result.prices.items()} == {"mean of its GPUs": 3.0}
    assert result.prices["mean of its GPUs"].origin == "Sweep chat, point 0: its fleet by its GPUs."


def test_nothing_to_pay_for_is_no_basis() -> None:
    assert cost_basis([]) is None
