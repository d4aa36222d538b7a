"""`simserve autoscale`: policies on the same seeds, the cheapest that meets the SLO, and what goes wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

import simserve
from simserve.errors import ScenarioError
from simserve.tables.folder import AUTOSCALE
from tests.cli.invoke import Outcome, invoke

SCENARIO = """schema: simserve/1
name: fleet
model: llama-3.1-8b
gpu: h100-sxm
engine: vllm
cluster:
  pools:
    - replicas: 1
      autoscaler: {kind: schedule, steps: [{at_s: 5, replicas: 3}]}
      startup: {process_s: 2, compile_s: 2, ready_probe_s: 1}
workload:
  arrivals: {kind: poisson, rate_per_s: 150}
  lengths: {kind: uniform, prompt_tokens: [100, 300], output_tokens: [100, 200]}
  duration_s: 60
slo: {ttft_s: 0.5, tpot_s: 0.02}
"""
SLOW = SCENARIO.replace(
    "kind: poisson, rate_per_s: 150", "kind: diurnal, rates_per_s: [50, 150, 50], period_s: 60"
).replace("cluster:", "cluster:\n  scrape: {interval_s: 5}")
FREE = ("--set", "cluster.pools.0.autoscaler=null", "--goal", 0.5)
MORE = "{kind: target, metric: num_requests_running, target: 40, max_replicas: 4}"


def autoscale(folder: Path, *arguments: object, text: str = SCENARIO) -> Outcome:
    path = folder / "fleet.yaml"
    path.write_text(text)
    return invoke("autoscale", path, "--out", folder / "out", "--replications", 2, *arguments)


def test_the_cheapest_policy_that_meets_the_slo_is_named_and_can_be_taken(tmp_path: Path) -> None:
    outcome = autoscale(tmp_path, "--policy", "fixed:6,fixed:3,own,wva", "--by", "noise")
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.startswith("Cheapest that meets the SLO: fixed:3: ")
    answer = json.loads((tmp_path / "out" / "autoscale.json").read_text())
    rows = {each["policy"]: each for each in answer["policies"]}
    assert [*rows] == ["fixed:6", "fixed:3", "own", "wva"]
    assert rows["fixed:3"]["usd_per_hour"] == pytest.approx(rows["fixed:6"]["usd_per_hour"] / 2)
    assert rows["own"]["mean_gpus"] < 3 and rows["own"]["n_scalings"] == 1
    assert rows["own"]["attained_frac"] < rows["fixed:3"]["attained_frac"]
    assert rows["own"]["settings"]["kind"] == "schedule"
    assert answer["best"] == 1 and answer["yaml"] is None
    assert rows["fixed:3"]["on_front"] and not rows["fixed:6"]["on_front"]
    assert 8 <= answer["n_runs"] <= 40


def test_four_policies_have_decisions_with_cost_error_in_40_runs(tmp_path: Path) -> None:
    path, policies = tmp_path / "fleet.yaml", "own,fixed:3,hpa,ray_serve"
    path.write_text(SCENARIO.replace("tpot_s: 0.02", "tpot_s: 0.012").replace("duration_s: 60", "duration_s: 30"))
    outcome = invoke("autoscale", path, "--out", tmp_path / "out", "--policy", policies)
    answer = json.loads((tmp_path / "out" / "autoscale.json").read_text())
    assert answer["n_runs"] <= 40 and f"{answer['n_runs']} runs" in outcome.out
    decisions = [each["decision"] for each in answer["policies"]]
    drawn = [each for each in decisions if each["n_draws"]]
    assert drawn and all((each["n_runs"], each["n_draws"]) == (5, 4) for each in drawn)
    for each in drawn:  # servers' errors and those of costs come on top of noise
        assert each["r_total"][0] < each["r_noise"][0] < each["r_noise"][1] < each["r_total"][1]


def test_a_planner_by_name_has_a_budget_of_as_many_replicas(tmp_path: Path) -> None:
    outcome = autoscale(tmp_path, "--policy", "dynamo_planner", "--json")
    assert outcome.exit_code == 0, outcome.err
    settings = json.loads(outcome.out)["policies"][0]["settings"]
    assert settings["kind"] == "dynamo_planner" and settings["max_gpu_budget"] == 3


def test_signals_are_ranked_by_what_their_best_target_costs_beyond_that_of_the_best(tmp_path: Path) -> None:
    outcome = autoscale(tmp_path, "--signals", "--max-replicas", 4, "--replications", 1, *FREE, text=SLOW)
    assert outcome.exit_code == 0, outcome.err
    answer = json.loads((tmp_path / "out" / "autoscale.json").read_text())
    policies, signals = answer["policies"], answer["signals"]
    assert (len(policies), len(signals)) == (24, 8)
    assert answer["n_runs"] == 24 + 3  # fixed fleets of 3, 2 and 1 or 4
    for signal in signals:
        row = policies[signal["policy"]]
        settings = row["settings"]
        assert (settings["metric"], settings["target"]) == (signal["signal"], signal["target"])
        assert settings["kind"] == "target" and settings["down_below"] == signal["target"]
        assert (row["gpu_hours"], row["attained_frac"]) == (signal["gpu_hours"], signal["attained_frac"])
    reach = [each for each in signals if each["regret_h"] is not None]
    assert reach == signals[: len(reach)] and reach
    assert [each["regret_h"] for each in reach] == sorted(each["gpu_hours"] - reach[0]["gpu_hours"] for each in reach)
    assert all(each["attained_frac"] >= 0.5 for each in reach)
    cheapest = min(each["gpu_hours"] for each in policies if each["attained_frac"] >= 0.5)
    assert reach[0]["gpu_hours"] == cheapest and answer["best"] == reach[0]["policy"]
    assert outcome.out.startswith(f"Best signal: {reach[0]['signal']}, ")
    assert "regret" in outcome.out and "27 runs" in outcome.out
    assert "kind: target" in answer["yaml"]
    assert answer["manifest"] is None and not (tmp_path / "out" / "manifest.yaml").exists()
    assert "Its kind has no manifest: hpa, keda, kpa and ray_serve have one." in " ".join(outcome.out.split())


def test_the_setting_to_take_is_a_manifest_too(tmp_path: Path) -> None:
    outcome = autoscale(tmp_path, "--policy", "keda", "--goal", 0.01)
    assert outcome.exit_code == 0, outcome.err
    assert "manifest.yaml has it for your cluster. Next: give pool" in " ".join(outcome.out.split())
    text = (tmp_path / "out" / "manifest.yaml").read_text()
    assert text.startswith("apiVersion: keda.sh/v1alpha1\n")
    answer = json.loads((tmp_path / "out" / "autoscale.json").read_text())
    assert answer["manifest"] == text
    assert "Show the manifest" in (tmp_path / "out" / "report.html").read_text()


def test_an_interrupted_study_goes_on_and_a_folder_of_another_is_kept(tmp_path: Path) -> None:
    first = autoscale(tmp_path, "--policy", f"own,{MORE}", "--json")
    again = autoscale(tmp_path, "--policy", f"own,{MORE}", "--json")
    assert first.out == again.out
    assert {file.name for file in (tmp_path / "out").iterdir()} == AUTOSCALE.files - {"manifest.yaml"}
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert autoscale(tmp_path).exit_code == 2
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_python_gives_the_same_answer(tmp_path: Path) -> None:
    outcome = autoscale(tmp_path, "--policy", MORE, "--json")
    policy: dict[str, Any] = {"kind": "target", "metric": "num_requests_running", "target": 40, "max_replicas": 4}
    answer = simserve.autoscale(tmp_path / "fleet.yaml", policies=[policy], replications=2)
    assert answer.facts() == json.loads(outcome.out)
    assert "target" in repr(answer) and len(answer.to_frame()) == 1
    assert answer.policies[0].settings is not None and answer.policies[0].settings["target"] == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "hpb"], "unknown autoscaler, got 'hpb'; did you mean hpa?"),
        (["--policy", "fixed:x"], "must be a name, a manifest, `fixed:4` or a mapping with `kind`, got fixed:x"),
        (["--policy", "[a"], "its policies cannot be read as YAML, got [a"),
        (["--policy", ""], "needs at least one policy"),
        (["--pool", "x"], "command line --pool: there is no such pool, got x; use serve"),
        (["--policy", "own", "--set", "cluster.pools.0.autoscaler=null"],
         "the scenario has no autoscaler of its own"),
    ],
)  # fmt: skip
def test_bad_policies_are_refused_before_anything_runs(tmp_path: Path, arguments: list[str], message: str) -> None:
    outcome = autoscale(tmp_path, *arguments)
    assert outcome.exit_code == 2
    assert message in outcome.err
    assert not (tmp_path / "out").exists()


def test_a_policy_that_cannot_run_is_said_and_the_others_stay(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="min_replicas must be at most max_replicas"):
        simserve.autoscale(SCENARIO_DATA, policies=[{"kind": "wva", "min_replicas": 3, "max_replicas": 2}])


SCENARIO_DATA: dict[str, Any] = {
    "schema": "simserve/1",
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 5},
        "lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 10},
        "n_requests": 10,
    },
}
