"""The best split of GPUs into prefill and decode."""

from pathlib import Path
from typing import Any

import pytest

from simserve import load_scenario
from simserve.errors import SimserveError
from simserve.metrics.result_folder import read_result_folders
from simserve.scenario import Scenario
from simserve.study.capacity.question import CapacityQuestion, RunsAt
from simserve.study.capacity.ratio import FEW, TOGETHER, search, splits_of, study_ratio, together
from simserve.study.fleet import with_replicas
from simserve.tables.files import json_text
from tests.cli.scenarios import write_scenario
from tests.report.pages import paragraphs
from tests.study.served import runs_at

POOLS = [{"name": "ask", "role": "prefill", "replicas": 2}, {"name": "answer", "role": "decode", "replicas": 3}]


def disaggregated(folder: Path, *overrides: str) -> Scenario:
    cluster = {"pools": POOLS, "kv_link": {"bytes_per_s": 50e9, "latency_s": 1e-5}}
    return load_scenario(write_scenario(folder, cluster=cluster), overrides=overrides)


class Fleet:
    """Each prefill replica takes 3 requests a second, each decode replica 1: the scarcer side binds."""

    def __init__(self) -> None:
        self.probed: set[str] = set()

    def __call__(self, name: str) -> RunsAt:
        self.probed.add(name)
        prefill, decode = map(int, name.split(":"))
        most = min(3 * prefill, decode) / 10  # the double offers ten times the load
        return runs_at({"ttft_s": lambda load: 0.01 * (load / most) ** 8})


@pytest.mark.parametrize("n_gpus", [4, 8, 9, 40, 64])
def test_the_best_split_is_found_where_both_sides_bind_alike(tmp_path: Path, n_gpus: int) -> None:
    fleet = Fleet()
    splits = splits_of(n_gpus, [1, 1])
    served = search(CapacityQuestion(disaggregated(tmp_path), 0.99, 0.03), splits, fleet)
    best = max(served, key=lambda each: each.rate.value)
    prefill, decode = map(int, best.name.split(":"))
    assert min(3 * prefill, decode) == max(min(3 * n, n_gpus - n) for n in range(1, n_gpus))
    assert best.rate.value == pytest.approx(min(3 * prefill, decode), rel=5e-3)
    assert len(fleet.probed) == len(splits) if len(splits) <= FEW else len(fleet.probed) <= 14


def test_splits_use_as_many_gpus_as_whole_replicas_allow() -> None:
    assert [split.name for split in splits_of(8, [2, 1])] == ["1:6", "2:4", "3:2"]
    assert [split.name for split in splits_of(8, [1, 4])] == ["1:1", "2:1", "3:1", "4:1"]
    with pytest.raises(SimserveError, match="--gpus: must be enough for a replica of each pool, 5 GPUs, got 4"):
        splits_of(4, [1, 4])


def test_only_the_numbers_of_the_two_pools_change(tmp_path: Path) -> None:
    scenario = disaggregated(tmp_path)
    changed = with_replicas(scenario, {0: 4, 1: 1})
    assert [pool.replicas for pool in changed.cluster.pools] == [4, 1]
    assert with_replicas(changed, {0: 2, 1: 3}) == scenario


def test_together_the_same_gpus_do_both_without_a_link(tmp_path: Path) -> None:
    result = together(disaggregated(tmp_path), (0, 1), 5)
    assert result is not None
    (pool,) = result.cluster.pools
    assert (pool.name, pool.role, pool.replicas, result.cluster.kv_link) == (TOGETHER, "both", 5, None)


def test_pools_that_differ_have_no_such_reference(tmp_path: Path) -> None:
    assert together(disaggregated(tmp_path, "cluster.pools.1.parallel.tensor=2"), (0, 1), 6) is None


@pytest.mark.parametrize(
    ("pools", "text"),
    [
        ("ask", "--ratio: must be the names of a prefill and of a decode pool, as in prefill:decode, got ask"),
        ("ask:replies", "--ratio: must be the name of a pool, got replies"),
        ("answer:ask", "--ratio: pool answer must have the role prefill, got decode; name the pools in the order"),
    ],
)
def test_pools_that_cannot_be_split_are_refused(tmp_path: Path, pools: str, text: str) -> None:
    with pytest.raises(SimserveError) as error:
        study_ratio(CapacityQuestion(disaggregated(tmp_path), 0.99, 0.03), pools)
    assert str(error.value).startswith(text)


@pytest.mark.thorough
def test_real_servers_of_long_prompts_want_more_to_compute_them(tmp_path: Path) -> None:
    long = ["workload.lengths.prompt_tokens=6000", "workload.lengths.output_tokens=4", "workload.n_requests=120"]
    result = study_ratio(CapacityQuestion(disaggregated(tmp_path, *long), 0.9, 0.03), "ask:answer", 3)
    facts: dict[str, Any] = result.answer.facts()
    assert facts["answer"]["split"] == "2:1"
    assert [each["split"] for each in facts["splits"]] == ["1:2", "2:1"]
    assert facts["together"]["offered_per_s"]["value"] > 0
    assert facts["answer"]["fleet"]["n_gpus"] == 3
    assert {split for split, _ in result.probed} == {"1:2", "2:1", TOGETHER}


def test_an_answer_without_a_split_that_holds_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    scenario = disaggregated(tmp_path, "slo={e2e_s: 0.00001}", "workload.n_requests=20")
    answer = study_ratio(CapacityQuestion(scenario, 0.9, 0.5), "ask:answer", 2).answer
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "capacity.json").write_text(json_text(answer.facts()))
    (folder,) = read_result_folders([tmp_path / "out"])
    assert folder.answer == answer
    assert (answer.answer, answer.state) == (None, "no load")
    assert "meets the SLO at any rate" in paragraphs(folder.answer)[0]
