"""`simserve capacity` says the highest rate that holds, or that none does."""

import json
from pathlib import Path

from simserve.report.fleet_size import sentence
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario


def test_it_says_the_rate_what_it_comes_to_and_what_was_tried(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path)
    outcome = invoke("capacity", scenario, "--set", "workload.n_requests=200", "--goal", 0.9, "--precision", 0.5)
    assert outcome.exit_code == 0
    assert outcome.out.startswith("p90 goodput of tiny: ")
    assert "on 1 GPU (95 % interval" in outcome.out
    assert outcome.out.splitlines()[2].split("  ")[-1] == "p99 TPOT"
    assert "Beyond it the queue only grows." in outcome.out  # so few requests wait long for so few others
    assert outcome.err == ""


def test_json_has_the_answer_per_gpu_dollar_and_kwh(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path)
    outcome = invoke("capacity", scenario, "--set", "workload.n_requests=200", "--precision", 0.5, "--json")
    found = json.loads(outcome.out)
    answer = found["answer"]
    assert answer["fleet"] == {"n_gpus": 1, "usd_per_hour": 4.0, "kw": 0.7}
    offered = answer["offered_per_s"]["value"]
    assert answer["per_gpu_s"]["value"] == offered
    assert answer["per_usd"]["value"] == offered * 3600 / 4.0
    assert found["state"] == "found"
    assert [point["attained_frac"] for point in found["points"]] == sorted(
        (point["attained_frac"] for point in found["points"]), reverse=True
    )


def test_where_no_rate_holds_the_answer_is_no(tmp_path: Path) -> None:
    outcome = invoke("capacity", write_scenario(tmp_path), "--set", "slo.ttft_s=0.001")
    assert outcome.exit_code == 1
    assert outcome.out.startswith("No rate of tiny holds, down to ")
    assert "(there 0 % of requests meet TTFT ≤ 1 ms, its p99 being " in outcome.out


def test_without_an_slo_it_is_refused(tmp_path: Path) -> None:
    outcome = invoke("capacity", write_scenario(tmp_path, slo={}))
    assert outcome.exit_code == 2
    assert outcome.err.startswith("simserve: error: tiny: needs an slo to be held to")


def test_it_says_how_many_replicas_a_load_needs(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path)
    outcome = invoke("capacity", scenario, "--replicas", "serve")
    assert outcome.exit_code == 0
    assert outcome.out.startswith("tiny needs 1 replica of serve, 1 GPU in all at 4.00 dollars an hour, for ")
    assert json.loads(invoke("capacity", scenario, "--replicas", "serve", "--json").out)["answer"]["replicas"] == 1


def test_where_no_number_of_replicas_is_enough_it_says_where_it_stopped() -> None:
    asked = {
        "scenario": {"name": "tiny"},
        "pool": "serve",
        "slo": {"ttft_s": 0.001},
        "slo_classes": [],
        "goal_frac": 0.99,
    }
    told = sentence(asked | {"answer": None, "points": [{"replicas": 1024, "offered_per_s": 5.0}]})
    assert told.startswith("tiny needs more than 1,024 replicas of serve, where the search stopped, so that 99 % of ")
