"""Which fleets are compared, and what of the scenario's own fleet the others take over."""

from pathlib import Path
from typing import Any

import pytest

from simserve import Scenario, load_scenario
from simserve.errors import Problem, SimserveError
from simserve.study.plan.options import Fleets, Option, checked, options, usd_per_gpu_hour
from tests.cli.scenarios import write_scenario

ROOT = Path(__file__).resolve().parents[3]


def tiny(folder: Path, *overrides: str, **changes: Any) -> Scenario:
    return load_scenario(write_scenario(folder, **changes), overrides=overrides)


def test_every_card_is_compared_at_every_degree_together_then_apart(tmp_path: Path) -> None:
    result = options(tiny(tmp_path), ["l40s", "h100-sxm", "l40s"], [1, 2, 2], is_split=True)
    together = ["l40s TP 1", "l40s TP 2", "h100-sxm TP 1", "h100-sxm TP 2"]
    assert [option.name for option in result] == together + [f"{name}, disaggregated" for name in together]


def test_without_a_card_it_is_the_scenarios_own(tmp_path: Path) -> None:
    assert options(tiny(tmp_path), [], [1], is_split=False) == [Option("h100-sxm", 1, is_disaggregated=False)]


def test_an_unknown_card_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SimserveError, match="--gpu: no such GPU in the catalog, got 'h100-smx'; did you mean h100-sxm"):
        options(tiny(tmp_path), ["h100-smx"], [1], is_split=False)


def test_prices_are_the_catalogs_or_those_given(tmp_path: Path) -> None:
    result = options(tiny(tmp_path), ["l40s", "h100-sxm"], [1], is_split=False)
    assert usd_per_gpu_hour(result, {"l40s": 0.5}) == {"l40s": 0.5, "h100-sxm": 4.0}
    with pytest.raises(SimserveError, match="--price: must name a GPU that is compared, got a100; "):
        usd_per_gpu_hour(result, {"a100": 1.0})
    for usd in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(SimserveError, match="--price l40s: must be dollars an hour above 0, got "):
            usd_per_gpu_hour(result, {"l40s": usd})


def test_what_cannot_be_is_kept_with_the_reason(tmp_path: Path) -> None:
    scenario = tiny(tmp_path, "cluster.pools.0.parallel.tensor=4", model="llama-3.1-70b")
    result = checked(scenario, options(scenario, ["h100-sxm"], [1, 3, 4, 16], is_split=False))
    small, odd, right, wide = result.values()
    assert isinstance(right, Fleets) and isinstance(wide, Fleets)
    assert wide.gpus_per_replica == 16  # over two nodes
    for problem, text in (
        (small, "does not fit the memory of 1 h100-sxm"),
        (odd, "64 attention heads"),
    ):
        assert isinstance(problem, Problem)
        assert text in problem.rule


def test_a_fleet_is_the_scenario_on_other_cards(tmp_path: Path) -> None:
    fleets = Fleets(tiny(tmp_path, "cluster.pools.0.replicas=7"), Option("l40s", 2, is_disaggregated=False))
    fleet = fleets.of((3,))
    (pool,) = fleet.cluster.pools
    assert (pool.name, pool.role, pool.replicas, pool.parallel.tensor) == ("serve", "both", 3, 2)
    assert fleet.setups[0].gpu.name == "l40s"
    assert fleets.gpus_per_replica == 2
    assert pool.calibration is not None
    assert pool.calibration.file == "l40s/vllm"  # not the h100's, which resolving had filled in
    assert fleet.workload == tiny(tmp_path).workload


def test_what_was_written_of_the_pool_goes_with_it_and_what_holds_for_one_card_does_not(tmp_path: Path) -> None:
    own = [
        "cluster.pools.0.scheduler={kind: chunked, max_num_seqs: 77}",
        "cluster.pools.0.num_gpu_blocks=9000",
        "cluster.pools.0.max_model_len=4096",
    ]
    scenario = tiny(tmp_path, *own)
    for option, n_blocks in (
        (Option("h100-sxm", 1, is_disaggregated=False), 9000),
        (Option("l40s", 2, is_disaggregated=False), None),
    ):
        (pool,) = Fleets(scenario, option).least.cluster.pools
        assert pool.num_gpu_blocks == n_blocks
        assert pool.max_model_len == 4096
        assert pool.scheduler is not None
        assert pool.scheduler["max_num_seqs"] == 77
    budgets = [
        pool.scheduler["max_num_batched_tokens"]
        for gpu in ("h100-sxm", "l40s")
        for pool in Fleets(scenario, Option(gpu, 1, is_disaggregated=False)).least.cluster.pools
        if pool.scheduler is not None
    ]
    assert budgets == [8192, 2048]  # what was not written is the engine's own for each card


def test_apart_there_is_a_pool_for_prefill_and_one_for_decode(tmp_path: Path) -> None:
    fleets = Fleets(
        tiny(tmp_path, "cluster.pools.0.enable_prefix_caching=true"), Option("h100-sxm", 1, is_disaggregated=True)
    )
    fleet = fleets.of((2, 3))
    assert [(pool.role, pool.replicas) for pool in fleet.cluster.pools] == [("prefill", 2), ("decode", 3)]
    assert fleet.cluster.kv_link is not None


def test_a_scenario_with_roles_can_be_planned_together_and_keeps_its_link_apart() -> None:
    scenario = load_scenario(ROOT / "scenarios" / "disaggregated.yaml", overrides=["cluster.kv_link.latency_s=0.002"])
    together = Fleets(scenario, Option("h100-sxm", 1, is_disaggregated=False)).least
    assert [pool.role for pool in together.cluster.pools] == ["both"]
    assert together.cluster.kv_link is None
    disaggregated = Fleets(scenario, Option("h100-sxm", 1, is_disaggregated=True)).of((2, 2))
    assert disaggregated.cluster == scenario.cluster
