"""SLOs, attainment and goodput."""

from typing import Any

import numpy as np
import pytest

from simserve.metrics.goodput import AttainmentJson, attainment, good_tokens, goodput, met_by_goal
from simserve.metrics.window import Window
from simserve.tables.columns import Categorical, Columns
from tests.metrics.stories import STATUS, Life, Teller, pool_facts, run_facts, tables, window_of


def requests(status: list[str], output_tokens: list[int] | None = None, **latencies: list[float]) -> Columns:
    n = len(status)
    columns: Columns = {name: np.full(n, np.nan) for name in ("ttft_s", "tpot_s", "e2e_s", "max_itl_s")}
    columns |= {name: np.array(values) for name, values in latencies.items()}
    codes = np.array([STATUS.index(name) for name in status], np.int32)
    columns |= {"status": Categorical(codes, STATUS), "n_in_system": np.zeros(n)}
    return columns | {"output_tokens": np.array(output_tokens or [9] * n)}


def everything(n: int) -> Window:
    return Window(0.0, 10.0, 10.0, "last arrival", np.ones(n, np.bool_))


def attained(columns: Columns, **slo: float) -> Any:
    result = attainment(columns, everything(len(columns["output_tokens"])), met_by_goal(columns, slo))
    assert result is not None
    return result.facts()


def test_a_latency_equal_to_the_goal_meets_it() -> None:
    columns = requests(["finished"] * 3, ttft_s=[0.4, 0.5, 0.6])
    assert met_by_goal(columns, {"ttft_s": 0.5})["ttft_s"].tolist() == [True, True, False]


def test_all_goals_must_hold() -> None:
    columns = requests(["finished"] * 4, ttft_s=[1, 1, 9, 9], e2e_s=[2, 9, 2, 9])
    result = attained(columns, ttft_s=1, e2e_s=2)
    assert result["frac"] == 0.25
    assert result["by_slo"] == {"ttft_s": 0.5, "e2e_s": 0.5}


def test_one_output_token_meets_goals_between_tokens_but_no_others() -> None:
    columns = requests(["finished"], [1], ttft_s=[1.0], e2e_s=[1.0])
    met = met_by_goal(columns, {"tpot_s": 0.01, "itl_s": 0.01, "ttft_s": 0.5})
    assert {goal: bool(flags[0]) for goal, flags in met.items()} == {"tpot_s": True, "itl_s": True, "ttft_s": False}


def test_an_itl_goal_holds_when_the_largest_gap_does() -> None:
    columns = requests(["finished"] * 2, max_itl_s=[0.05, 0.2])
    assert met_by_goal(columns, {"itl_s": 0.1})["itl_s"].tolist() == [True, False]


def test_whoever_did_not_finish_is_a_miss() -> None:
    columns = requests(["finished", "rejected", "timed_out", "unfinished"], ttft_s=[0.1, np.nan, 0.1, 0.1])
    assert attained(columns, ttft_s=1)["frac"] == 0.25


def test_the_denominator_is_who_arrived_and_the_others_stand_beside_it() -> None:
    """Dividing by completed requests only would report 100% for a cluster that turned half of them away."""
    columns = requests(["finished", "finished", "rejected", "unfinished"], ttft_s=[0.1, 0.1, np.nan, np.nan])
    result = attained(columns, ttft_s=1)
    assert (result["frac"], result["denominator"]) == (0.5, "arrived in the window")
    assert result["of_admitted_frac"] == pytest.approx(2 / 3)
    assert result["of_finished_frac"] == 1.0
    assert (result["n_met"], result["n_arrived"]) == (2, 4)


def test_requests_outside_of_the_window_do_not_count() -> None:
    columns = requests(["finished"] * 2, ttft_s=[0.1, 9.0])
    window = Window(0.0, 10.0, 10.0, "last arrival", np.array([True, False]))
    result = attainment(columns, window, met_by_goal(columns, {"ttft_s": 1}))
    assert result is not None
    assert (result.frac, result.n_arrived) == (1.0, 1)


def test_without_a_goal_there_is_no_attainment() -> None:
    assert attainment(requests(["finished"]), everything(1), {}) is None


def test_without_arrivals_the_share_is_unknown_rather_than_perfect() -> None:
    columns = requests(["finished"], ttft_s=[0.1])
    nobody = Window(0.0, 10.0, np.nan, "last arrival", np.array([False]))
    result = attainment(columns, nobody, met_by_goal(columns, {"ttft_s": 1}))
    assert result is not None
    assert (result.frac, result.low_frac, result.by_slo) == (None, None, {"ttft_s": None})


def test_goodput_is_per_second_per_gpu_and_per_dollar() -> None:
    lives = [Life(0, 1)]
    pools = (pool_facts("a", 2, gpus_per_replica=4, price_per_gpu_hour_usd=9.0),)
    facts = run_facts(tables(lives, [Teller(lives)]), pools=pools)
    # 800 requests in 10 s on 8 GPUs that cost 72 dollars an hour, which is 0.02 dollars a second
    result = goodput(AttainmentJson(frac=1.0, n_met=800), window_of(0.0, 10.0), facts)
    assert result is not None
    assert result.facts() == pytest.approx({"per_s": 80.0, "per_gpu_s": 10.0, "per_usd": 4000.0})


def test_good_tokens_are_those_of_requests_in_the_window_that_met_every_slo() -> None:
    columns = requests(["finished", "finished", "finished", "rejected"], [10, 20, 40, 80], ttft_s=[0.1, 9.0, 0.1, 0.1])
    columns["prompt_tokens"] = np.array([100, 200, 400, 800])
    window = Window(0.0, 10.0, 10.0, "last arrival", np.array([True, True, False, True]))
    result = good_tokens(columns, window, met_by_goal(columns, {"ttft_s": 1}))
    assert result == {"output_tokens_per_s": 1.0, "total_tokens_per_s": 11.0}  # the first alone: 10 and 110 in 10 s
