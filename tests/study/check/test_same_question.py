"""What two sides of the gate must have in common, and what a change may change."""

from pathlib import Path
from typing import Any

from simserve import load_scenario
from simserve.metrics.answers.check import ScenarioDifference
from simserve.study.check.baseline import differences, portable
from tests.cli.scenarios import write_scenario


def difference(key: str, baseline: Any, candidate: Any) -> ScenarioDifference:
    return ScenarioDifference(key=key, baseline=baseline, candidate=candidate)


def compared(folder: Path, *overrides: str) -> tuple[list[ScenarioDifference], list[ScenarioDifference]]:
    file = write_scenario(folder)
    return differences(*(portable(load_scenario(file, overrides=each)) for each in ((), overrides)))


def test_the_load_the_slo_and_the_model_are_the_question(tmp_path: Path) -> None:
    requested, changed = compared(tmp_path, "workload.n_requests=50", "slo.ttft_s=1.0", "measure.warmup_s=1")
    assert requested == [
        difference("workload.n_requests", 40, 50),
        difference("measure.warmup_s", 0.0, 1.0),
        difference("slo.ttft_s", 0.5, 1.0),
    ]
    assert changed == []


def test_servers_and_policies_are_what_a_change_may_change(tmp_path: Path) -> None:
    requested, changed = compared(tmp_path, "cluster.pools.0.replicas=2", "cluster.pools.0.scheduler={max_num_seqs: 8}")
    assert requested == []
    assert changed == [
        difference("cluster.pools.0.replicas", 1, 2),
        difference("cluster.pools.0.scheduler.max_num_seqs", 1024, 8),
    ]


def test_another_seed_or_number_of_replays_is_no_difference(tmp_path: Path) -> None:
    assert compared(tmp_path, "seed=4", "measure.replays=8") == ([], [])


def test_a_name_and_the_same_name_with_arguments_are_one(tmp_path: Path) -> None:
    requested, changed = compared(tmp_path, "engine={name: vllm, step_host_s: 0.01}")
    assert requested == []
    assert changed == [difference("engine.step_host_s", None, 0.01)]


def test_a_baseline_without_the_version_of_its_engine_is_compared_and_the_version_listed(tmp_path: Path) -> None:
    candidate = portable(load_scenario(write_scenario(tmp_path)))
    assert candidate["engine"] == {"name": "vllm", "version": "0.19"}
    version = difference("engine.version", None, "0.19")
    assert differences(candidate | {"engine": "vllm"}, candidate) == ([], [version])


def test_files_are_known_by_name_and_hash_wherever_they_lie(tmp_path: Path) -> None:
    result = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0.5,10,10\n1.5,10,10\n")
        trace = {"trace": {"path": "mine.csv", "format": "simserve"}}
        result.append(portable(load_scenario(write_scenario(folder, workload=trace))))
    assert result[0]["workload"]["trace"]["path"] == "mine.csv"
    assert differences(*result) == ([], [])
