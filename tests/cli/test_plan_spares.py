"""`simserve plan --spare auto` buys the spares that `simserve resilience` finds, and says the same."""

import json
from pathlib import Path
from typing import Any

import pytest

import simserve
from simserve.report.resilience import headline_of
from tests.cli.invoke import Outcome, invoke
from tests.cli.test_resilience import fleet


def lost_gpus(mtbf_s: float) -> dict[str, Any]:
    """Return a load for two replicas, one of which takes 10 minutes to come back; at 5e4 s it is 2% of the time."""
    scenario = fleet(1, [{"what": "gpu", "mtbf_s": mtbf_s, "detect_s": 2.0}], duration_s=8)
    scenario["cluster"]["pools"][0]["startup"] |= {"provision_s": 600}
    return scenario


def plan(folder: Path, scenario: dict[str, Any], *arguments: object) -> Outcome:
    path = folder / "spared.json"
    path.write_text(json.dumps(scenario))
    return invoke("plan", path, "--tensor", 1, "--by", "noise", "--out", folder / "out", *arguments)


@pytest.mark.parametrize(("mtbf_s", "n_spare"), [(5e4, 1), (5e7, 0)], ids=["often", "seldom"])
def test_it_agrees_with_resilience_of_its_fleet_in_number_and_words(
    tmp_path: Path, mtbf_s: float, n_spare: int
) -> None:
    outcome = plan(tmp_path, lost_gpus(mtbf_s), "--spare", "auto")
    assert outcome.exit_code == 0, outcome.err
    answer = json.loads((tmp_path / "out" / "plan.json").read_text())
    best, assumed = answer["options"][0], answer["assumed"]
    assert (best["needed_replicas"], best["gpus"], assumed["spare_replicas"]) == (2, 2 + n_spare, n_spare)
    assert best["usd_per_month"] == 4 * 730 * (2 + n_spare)
    written = simserve.load_scenario(tmp_path / "out" / "scenario.yaml")
    assert written.cluster.pools[0].replicas == 2 + n_spare
    assert [each.mtbf_s for each in written.cluster.failures or ()] == [mtbf_s]
    own = simserve.resilience(written, replicas=2)
    assert own.best is not None and own.options[own.best].spare == n_spare
    assert own.facts() == answer["spares"] | {"scenario": own.facts()["scenario"]}
    assert assumed["n_failure_runs"] == own.n_runs <= 40
    _, title, minutes = headline_of(own)
    paid = ", $2,920 a month of that" if n_spare else ""
    assert f"{title}{paid} ({own.n_runs} runs with failures). {minutes}" in answer["sentence"]
    assert answer["sentence"] in outcome.out


def test_an_autoscaler_gets_the_warm_spares_that_resilience_finds_for_it(tmp_path: Path) -> None:
    scenario = fleet(1, [{"what": "gpu", "mtbf_s": 5e3, "detect_s": 1.0}], 20, 60)  # few requests, and long ones
    scenario["workload"]["lengths"]["output_tokens"], scenario["slo"] = [400, 600], {"ttft_s": 0.3, "tpot_s": 0.0085}
    scenario["cluster"]["pools"][0]["startup"] |= {"provision_s": 25}
    policy = {"kind": "schedule", "steps": [{"at_s": 0, "replicas": 2}]}
    scenario["cluster"]["pools"][0]["autoscaler"] = policy
    outcome = plan(tmp_path, scenario, "--spare", "auto:1")
    assert outcome.exit_code == 0, outcome.err
    answer = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert (answer["options"][0]["needed_replicas"], answer["assumed"]["spare_replicas"]) == (2, 1)
    written = simserve.load_scenario(tmp_path / "out" / "scenario.yaml")
    pool = written.cluster.pools[0]
    assert (pool.replicas, pool.spares and pool.spares.warm, (pool.autoscaler or {})["kind"]) == (2, 1, "schedule")
    own = simserve.resilience(written, spare="0..1", spares=None)
    assert own.facts() == answer["spares"] | {"scenario": own.facts()["scenario"]}
    assert own.is_scaled and own.best is not None and own.options[own.best].kind == "warm"
    _, title, minutes = headline_of(own)
    assert title == "1 warm spare needed" and f"{title}, " in answer["sentence"] and minutes in answer["sentence"]


def test_none_that_holds_is_exit_code_1_with_the_minutes(tmp_path: Path) -> None:
    outcome = plan(tmp_path, lost_gpus(3e3), "--spare", "auto:1")
    assert outcome.exit_code == 1
    assert "it exceeds the error budget with up to 1 spares, got " in outcome.out
    answer = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert answer["state"] == "none" and answer["options"][0]["state"] == "too many" and answer["spares"] is None
    assert not (tmp_path / "out" / "scenario.yaml").exists()


def test_the_gpus_that_are_allowed_bound_the_spares(tmp_path: Path) -> None:
    outcome = plan(tmp_path, lost_gpus(5e4), "--spare", "auto", "--max-gpus", 2)
    assert outcome.exit_code == 1
    assert "exceeds the error budget with up to 0 spares" in outcome.out
