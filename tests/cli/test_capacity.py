"""`simserve capacity` says the highest rate that holds, or that none does."""

import json
from pathlib import Path

import pyarrow.parquet as pq

from simserve import load_scenario
from simserve.report.capacity.fleet_size import sentence
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.report.answers_by_hand import point, replicas_answer


def test_it_says_the_rate_what_it_comes_to_and_what_was_tried(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path)
    outcome = invoke("capacity", scenario, "--set", "workload.n_requests=200", "--goal", "p90", "--precision", 0.5)
    assert outcome.exit_code == 0
    assert outcome.out.startswith("p90 goodput of tiny: ")
    assert "req/s on 1 GPU (95% CI " in outcome.out
    assert outcome.out.splitlines()[2].startswith(
        "No SLO binds before the queue begins to grow. p99 TTFT doubles its light-load value ("
    )
    assert outcome.out.splitlines()[4].split("  ")[-1] == "p99 TPOT"
    assert "Beyond it the queue only grows." in outcome.out  # so few requests wait long for so few others
    assert "their start-up may look like a queue that only grows; lengthen the runs" in outcome.err


def test_json_has_the_answer_per_gpu_dollar_and_kwh(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path)
    outcome = invoke("capacity", scenario, "--set", "workload.n_requests=200", "--precision", 0.5, "--json")
    result = json.loads(outcome.out)
    answer = result["answer"]
    assert answer["fleet"] == {"n_gpus": 1, "usd_per_hour": 4.0, "kw": 0.7}
    offered = answer["offered_per_s"]["value"]
    assert answer["per_gpu_s"]["value"] == offered
    assert answer["per_usd"]["value"] == offered * 3600 / 4.0
    assert result["state"] == "found"
    assert [point["attained_frac"] for point in result["points"]] == sorted(
        (point["attained_frac"] for point in result["points"]), reverse=True
    )


def test_where_no_rate_holds_the_answer_is_no(tmp_path: Path) -> None:
    outcome = invoke("capacity", write_scenario(tmp_path), "--set", "slo.ttft_s=0.001")
    assert outcome.exit_code == 1
    assert outcome.out.startswith("No rate of tiny holds, down to ")
    assert "(there 0% of requests meet TTFT ≤ 1 ms, p99 is " in outcome.out


def test_without_an_slo_it_is_refused(tmp_path: Path) -> None:
    outcome = invoke("capacity", write_scenario(tmp_path, slo={}))
    assert outcome.exit_code == 2
    assert outcome.err.startswith("simserve: error: tiny: needs an SLO, got none")


def test_it_says_how_many_replicas_a_load_needs(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path)
    outcome = invoke("capacity", scenario, "--replicas", "serve")
    assert outcome.exit_code == 0
    assert outcome.out.startswith("tiny needs 1 replica of serve, 1 GPU in all at 4.00 dollars an hour, for ")
    assert json.loads(invoke("capacity", scenario, "--replicas", "serve", "--json").out)["answer"]["replicas"] == 1


def test_where_no_number_of_replicas_is_enough_it_says_where_it_stopped() -> None:
    text = sentence(replicas_answer(answer=None, points=[point(5.0, 0.9, replicas=1024)]).answer)
    assert text.startswith("chat needs more than 1,024 replicas of serve, where the search stopped, so that 99% of ")


def test_a_goal_that_is_none_is_refused(tmp_path: Path) -> None:
    outcome = invoke("capacity", write_scenario(tmp_path), "--goal", "99")
    assert outcome.exit_code == 2
    assert outcome.err.startswith("simserve: error: --goal: must be a share from 0.01 to 0.9999, or a percentile")


def test_two_questions_at_once_are_refused(tmp_path: Path) -> None:
    outcome = invoke("capacity", write_scenario(tmp_path), "--concurrency", "--replicas", "serve")
    assert outcome.exit_code == 2
    assert "ask one thing at a time" in outcome.err


def test_a_closed_loop_is_sent_to_its_concurrency_and_an_open_load_back(tmp_path: Path) -> None:
    opened = write_scenario(tmp_path)
    assert "leave out --concurrency for its rate" in invoke("capacity", opened, "--concurrency").err
    lengths = {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8}
    client = {"client": {"kind": "closed_loop", "concurrency": 4}, "n_requests": 40, "lengths": lengths}
    closed = write_scenario(tmp_path, workload=client)
    assert "search over --concurrency or --replicas instead" in invoke("capacity", closed).err
    outcome = invoke("capacity", closed, "--concurrency", "--set", "slo={tpot_s: 0.0095}", "--goal", "p90", "--json")
    assert json.loads(outcome.out)["asked"] == "concurrency"


def test_out_writes_the_answer_its_rows_the_scenario_and_a_page_and_again_over_them(tmp_path: Path) -> None:
    scenario, folder = write_scenario(tmp_path), tmp_path / "out"
    for _ in range(2):
        outcome = invoke("capacity", scenario, "--replicas", "serve", "--out", folder, "--json")
        assert outcome.exit_code == 0
    names = {"capacity.json", "capacity.parquet", "scenario.yaml", "report.html"}
    assert {path.name for path in folder.iterdir()} == names
    assert (folder / "capacity.json").read_text() == outcome.out
    rows = pq.read_table(folder / "capacity.parquet").to_pylist()
    assert [(row["load"], row["seed"]) for row in rows] == [(1.0, seed) for seed in range(3, 11)]
    assert load_scenario(folder / "scenario.yaml") == load_scenario(scenario)


def test_a_folder_of_somebody_else_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    outcome = invoke("capacity", write_scenario(tmp_path), "--out", tmp_path / "mine")
    assert outcome.exit_code == 2
    assert "must be empty or hold only an earlier result, got notes.txt" in outcome.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_splits_are_not_compared_with_cost_error(tmp_path: Path) -> None:
    result = invoke("capacity", write_scenario(tmp_path), "--ratio", "prefill:decode", "--by", "total")
    assert result.exit_code == 2
    assert "--by: must not be total with --ratio" in result.err
    assert "leave it out" in result.err
