"""The search finds the fewest replicas that hold."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from simserve import load_scenario
from simserve.errors import SimserveError
from simserve.study.capacity.fleet_size import MOST, fleet_size_answer, search, study_fleet_size
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.fleet import with_replicas
from simserve.study.run_seeds import Run
from tests.cli.scenarios import write_scenario
from tests.study.served import as_runs


def requested(folder: Path, *overrides: str, goal_frac: float = 0.99) -> CapacityQuestion:
    return CapacityQuestion(load_scenario(write_scenario(folder), overrides=overrides), goal_frac, 0.03)


class Needs:
    """A load that so many replicas serve well, and fewer do not."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.probed: list[int] = []

    def __call__(self, n: int, seeds: Sequence[int]) -> list[Run]:
        self.probed.append(n)
        return as_runs([_run(1.0 if n >= self.n else 0.9)] * len(seeds))


def _run(frac: float) -> dict[str, Any]:
    met = {"n_met": round(1000 * frac), "n_arrived": 1000, "frac": frac, "by_slo": {"ttft_s": 1.0}}
    result = {"slo_attainment": met, "requests": {"arrived": 1000}, "trust": {"saturated": False}}
    return result | {"offered_per_s": 5.0, **dict.fromkeys(("ttft_s", "tpot_s", "itl_s", "e2e_s"), LATENCY)}


LATENCY = dict.fromkeys(("p50", "p90", "p99", "p99.9"), 0.1)


@pytest.mark.parametrize("own", [1, 3, 8, 50])
@pytest.mark.parametrize("needed", [1, 2, 3, 7, 8, 9, 33])
def test_it_finds_the_fewest_from_any_number_on_and_tries_none_twice(tmp_path: Path, own: int, needed: int) -> None:
    needs = Needs(needed)
    answer = search(requested(tmp_path, f"cluster.pools.0.replicas={own}"), 0, needs)
    assert answer.fewest is not None
    assert answer.fewest.scale == needed
    assert len(needs.probed) == len(set(needs.probed)) <= 14
    assert [point.scale for point in answer.points] == sorted(needs.probed)


def test_where_no_number_holds_it_says_so(tmp_path: Path) -> None:
    needs = Needs(10**9)
    answer = search(requested(tmp_path), 0, needs)
    assert answer.fewest is None
    assert needs.probed[-1] == MOST


def test_a_number_on_the_edge_is_not_the_answer_and_is_named_as_tied(tmp_path: Path) -> None:
    """Two replicas attain 98% and 100% by turns, in however many runs; three miss nothing."""

    def runs_with(n: int, seeds: Sequence[int]) -> list[Run]:
        return as_runs(_run({1: 0.5, 2: 0.98 if seed % 2 else 1.0}.get(n, 1.0)) for seed in seeds)

    result = fleet_size_answer(search(requested(tmp_path), 0, runs_with))
    assert result.answer is not None and result.tied is not None
    assert (result.answer.replicas, result.answer.decision) == (3, "met")
    assert (result.tied.replicas, result.tied.decision, result.tied.n_seeds) == (2, "edge", 32)
    assert [point.decision for point in result.points][:3] == ["missed", "edge", "met"]


def test_a_real_load_needs_more_replicas_when_it_comes_faster(tmp_path: Path) -> None:
    fast = ["workload.arrivals.rate_per_s=400", "workload.n_requests=1500", "slo={ttft_s: 0.05, tpot_s: 0.012}"]
    result = study_fleet_size(requested(tmp_path, *fast), "serve").answer.facts()
    n = result["answer"]["replicas"]
    assert n > 1
    assert result["answer"]["fleet"] == {"n_gpus": n, "usd_per_hour": 4.0 * n, "kw": pytest.approx(0.7 * n)}
    by_replicas = {point["replicas"]: point for point in result["points"]}
    assert by_replicas[n - 1]["attained_frac"] < 0.99 <= by_replicas[n]["attained_frac"]


def test_only_the_pool_that_is_asked_for_changes(tmp_path: Path) -> None:
    scenario = requested(tmp_path).scenario
    assert [pool.replicas for pool in with_replicas(scenario, {0: 7}).cluster.pools] == [7]
    assert with_replicas(scenario, {0: 1}) == scenario


def test_it_needs_a_pool_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(SimserveError, match="--replicas: must be the name of a pool, got serv; did you mean serve"):
        study_fleet_size(requested(tmp_path), "serv")
