"""Every shipped scenario runs from file to tables, and a run is a pure function of its scenario."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve import Results, Scenario, load_scenario, simulate

ROOT = Path(__file__).resolve().parents[1]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
AZURE = ROOT.parent / "shared" / "data" / "traces" / "azure_llm_2023_conv.csv"

CHAT: dict[str, Any] = {
    "schema": "simserve/1",
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "engine": "vllm",
    "cluster": {
        "router": "power_of_two",
        "pools": [{"replicas": 3, "scheduler": {"kind": "chunked", "max_num_seqs": 16}, "num_gpu_blocks": 900}],
    },
    "workload": {
        "arrivals": {"kind": "mmpp", "rates_per_s": [10, 60], "mean_dwell_s": [5, 2]},
        "lengths": {"kind": "profile", "name": "azure-conv-2023"},
        "n_requests": 400,
    },
    "slo": {"ttft_s": 0.5, "tpot_s": 0.05},
}


def digest(results: Results) -> str:
    """Digest all tables of a run."""
    tables = (results.requests, results.steps, results.spans, results.timeseries)
    return hashlib.sha256("".join(table.to_csv() for table in tables).encode()).hexdigest()


def changed(**cluster: Any) -> Scenario:
    """Return CHAT with another cluster."""
    return Scenario.from_dict(CHAT | {"cluster": CHAT["cluster"] | cluster})


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_shipped_scenario_runs_shortened(path: Path) -> None:
    overrides = ["workload.n_requests=60", "measure.warmup_s=0"]
    text = path.read_text()
    if "trace:" in text:
        if not AZURE.exists():
            pytest.skip("the real traces are not beside the checkout")
        overrides.append(f"workload.trace.path={AZURE}")
    if "duration_s:" in text:
        overrides = ["workload.duration_s=8", "measure.warmup_s=0"]
    if "warmup_requests:" in text:
        overrides = ["workload.n_requests=160"]
    if "over_s:" in text:
        overrides += ["workload.batch.n_requests=40", "workload.batch.over_s=4"]
    results = simulate(load_scenario(path, overrides=overrides))
    requests = results.requests
    assert len(requests) > 0
    assert set(requests["status"]) == {"finished"}
    assert (requests["ttft_s"] > 0).all()
    assert (requests["e2e_s"] >= requests["ttft_s"]).all()


def test_the_same_scenario_gives_the_same_tables_in_any_process() -> None:
    code = (
        "from tests.test_simulation import *\n"
        "print(digest(simulate(Scenario.from_dict(CHAT))))"
    )  # fmt: skip
    result = {digest(simulate(Scenario.from_dict(CHAT)))}
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        result.add(done.stdout.strip())
    assert len(result) == 1


def test_another_seed_gives_other_tables() -> None:
    assert digest(simulate(Scenario.from_dict(CHAT))) != digest(simulate(Scenario.from_dict(CHAT | {"seed": 1})))


def test_the_resolved_scenario_gives_identical_tables(tmp_path: Path) -> None:
    first = simulate(Scenario.from_dict(CHAT))
    first.write(tmp_path / "run", report=None)
    again = simulate(load_scenario(tmp_path / "run" / "scenario.yaml"))
    assert digest(first) == digest(again)


def test_a_router_or_a_replica_more_does_not_move_the_load() -> None:
    pool = CHAT["cluster"]["pools"][0]
    runs = [
        changed(),
        changed(router="random"),
        changed(pools=[pool | {"replicas": 4}]),
        changed(pools=[pool, pool | {"name": "more", "gpu": "a100-sxm"}]),
    ]
    loads = [simulate(run).requests[["arrival_s", "prompt_tokens", "output_tokens"]].to_numpy() for run in runs]
    assert all(np.array_equal(load, loads[0]) for load in loads)


def test_two_runs_in_one_process_do_not_know_of_each_other() -> None:
    scenario = changed(router="round_robin")
    assert digest(simulate(scenario)) == digest(simulate(scenario))


def test_arrived_is_finished_plus_rejected_plus_unfinished_and_tokens_are_those_of_spans() -> None:
    data = CHAT | {"workload": CHAT["workload"] | {"drain_limit_s": 0.5}}
    results = simulate(Scenario.from_dict(data))
    requests, spans = results.requests, results.spans
    counts = requests["status"].value_counts()
    assert counts.sum() == 400
    assert counts["unfinished"] > 0
    produced = (2 + spans["last_step"] - spans["first_step"]).groupby(spans["request_id"]).sum()
    finished = requests[requests["status"] == "finished"]
    assert (produced.loc[finished["request_id"]].to_numpy() == finished["output_tokens"].to_numpy()).all()
    assert results.summary["preemptions"]["n"] == requests["n_preemptions"].sum() > 0


def test_an_ideal_engine_never_beats_the_data_sheet() -> None:
    series = simulate(Scenario.from_dict(CHAT | {"engine": "ideal"})).timeseries
    assert 0 < series["mfu"].max() <= 1.0 + 1e-9
    assert 0 < series["mbu"].max() <= 1.0 + 1e-9


def test_real_engines_are_slower_than_the_data_sheet() -> None:
    ideal, real = (simulate(Scenario.from_dict(CHAT | {"engine": name})).summary for name in ("ideal", "vllm"))
    assert ideal["tpot_s"]["p50"] < real["tpot_s"]["p50"]


@pytest.mark.skipif(not AZURE.exists(), reason="the real traces are not beside the checkout")
@pytest.mark.parametrize("name", ["azure_conv_8b_x4", "azure_conv_70b_tp4_x2"])
def test_the_azure_conversation_trace_replays_whole(name: str) -> None:
    path = ROOT / "scenarios" / f"{name}.yaml"
    results = simulate(load_scenario(path, overrides=[f"workload.trace.path={AZURE}"]))
    assert len(results.requests) == 19_366
    assert (results.requests["status"] == "finished").all()
    assert results.requests["prompt_tokens"].mean() == pytest.approx(1154.7, abs=0.1)


@pytest.mark.parametrize("is_apart", [True, False], ids=["disaggregated", "aggregated"])
def test_a_hand_over_delays_a_disaggregated_first_token_and_no_other(is_apart: bool) -> None:
    roles = ("prefill", "decode") if is_apart else ("both",)
    data = {
        "schema": "simserve/1",
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "cluster": {"pools": [{"name": role, "role": role} for role in roles]},
        "workload": {
            "arrivals": {"kind": "constant", "rate_per_s": 1},
            "lengths": {"kind": "fixed", "prompt_tokens": 500, "output_tokens": 10},
            "n_requests": 5,
        },
    }
    without, with_it = (simulate(data | {"engine": {"name": "vllm", "hand_over_s": each}}) for each in (0.0, 0.2))
    later_s = with_it.requests.ttft_s - without.requests.ttft_s
    assert later_s.to_numpy() == pytest.approx(0.2 if is_apart else 0.0, abs=1e-9)
    assert with_it.requests.tpot_s.to_numpy() == pytest.approx(without.requests.tpot_s.to_numpy())


def test_a_drain_limit_that_is_not_needed_does_not_lengthen_the_run() -> None:
    workload = CHAT["workload"]
    free, limited = (
        simulate(Scenario.from_dict(CHAT | {"workload": workload | more})).summary
        for more in ({}, {"drain_limit_s": 1000.0})
    )
    assert free["simulated_s"] == limited["simulated_s"]
