"""A run of which nothing is drawn is the same with every seed, and is not counted twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from simserve import Scenario, load_scenario, simulate
from simserve.study.fleet import is_deterministic
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario

FIXED = {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8}
CONSTANT = {"kind": "constant", "rate_per_s": 8}


def trace_of(folder: Path, rows: str = "", **more: Any) -> dict[str, Any]:
    given = rows or "".join(f"{i / 10},500,20\n" for i in range(400))
    (folder / "a.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + given)
    return {"workload": {**more, "trace": {"path": str(folder / "a.csv"), **more.get("trace", {})}}}


def routed(router: str) -> dict[str, Any]:
    pools = [{"name": "serve", "role": "both", "replicas": 2}]
    return {"cluster": {"router": router, "pools": pools}}


def loaded(folder: Path, changes: dict[str, Any]) -> Scenario:
    return load_scenario(write_scenario(folder, **changes))


def test_a_trace_is_repeated_whose_stamps_are_fine_even_if_it_is_to_be_spread(tmp_path: Path) -> None:
    coarse = 4 * "0,8,2\n" + 4 * "1,8,2\n"
    assert is_deterministic(loaded(tmp_path, trace_of(tmp_path)))
    assert is_deterministic(loaded(tmp_path, trace_of(tmp_path, trace={"spread": "uniform"})))
    assert is_deterministic(loaded(tmp_path, trace_of(tmp_path, coarse)))
    assert not is_deterministic(loaded(tmp_path, trace_of(tmp_path, coarse, trace={"spread": "uniform"})))


def test_a_trace_is_not_repeated_whose_tenants_are_drawn(tmp_path: Path) -> None:
    assert not is_deterministic(loaded(tmp_path, trace_of(tmp_path, tenants={"a": 0.5, "b": 0.5})))


@pytest.mark.parametrize(("router", "draws"), [("random", True), ("power_of_two", True), ("prefix_affinity", False)])
def test_a_trace_is_not_repeated_whose_replicas_are_picked_by_chance(tmp_path: Path, router: str, draws: bool) -> None:
    assert is_deterministic(loaded(tmp_path, trace_of(tmp_path) | routed(router))) is not draws


def test_a_trace_is_not_repeated_whose_guessed_tokens_are_accepted_by_chance(tmp_path: Path) -> None:
    guesses = {"kind": "ngram", "tokens": 3, "acceptance": 0.6}
    pools = [{"name": "serve", "role": "both", "replicas": 1, "speculation": guesses}]
    assert not is_deterministic(loaded(tmp_path, trace_of(tmp_path) | {"cluster": {"pools": pools}}))


@pytest.mark.parametrize("jitter", [0.0, 0.5])
def test_a_trace_is_not_repeated_whose_retries_wait_by_chance(tmp_path: Path, jitter: float) -> None:
    patience: dict[str, Any] = {
        "timeout": {"ttft_s": 1.0},
        "retries": {"max_attempts": 2, "backoff_s": 1.0, "jitter": jitter},
    }
    assert is_deterministic(loaded(tmp_path, trace_of(tmp_path, **patience))) is (jitter == 0)


@pytest.mark.parametrize(
    ("arrivals", "lengths", "repeated"),
    [
        (CONSTANT, FIXED, True),
        ({"kind": "poisson", "rate_per_s": 8}, FIXED, False),
        (CONSTANT, {"kind": "uniform", "prompt_tokens": [8, 64], "output_tokens": [8, 8]}, False),
    ],
)
def test_what_is_generated_is_repeated_where_nothing_is_drawn(
    tmp_path: Path, arrivals: dict[str, Any], lengths: dict[str, Any], repeated: bool
) -> None:
    scenario = loaded(tmp_path, {"workload": {"arrivals": arrivals, "lengths": lengths, "duration_s": 30}})
    assert is_deterministic(scenario) is repeated
    runs = [simulate(scenario.model_copy(update={"seed": seed})).summary["ttft_s"] for seed in (3, 4)]
    assert (runs[0] == runs[1]) is repeated


def test_a_capacity_of_a_trace_runs_each_load_once_and_has_no_interval(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path, **trace_of(tmp_path), slo={"ttft_s": 0.1})
    outcome = invoke("capacity", scenario, "--precision", 0.5, "--out", tmp_path / "out")
    assert "(one run, as every seed gives the same; no interval)" in outcome.out
    assert "nothing is drawn, so every seed gives the same run" in outcome.err
    result = json.loads((tmp_path / "out" / "capacity.json").read_text())
    assert result["is_repeated"]
    offered, answer = result["answer"]["offered_per_s"], result["answer"]
    assert (offered["low"], offered["high"], answer["n_seeds"]) == (None, None, 1)
    assert (answer["n_requests"], answer["n_enough"]) == (400, False)
    assert all(point["n_runs"] == 1 for point in result["points"])


def test_replicas_for_a_trace_are_as_sure_as_its_one_run(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path, **trace_of(tmp_path))
    outcome = invoke("capacity", scenario, "--replicas", "serve", "--json")
    answer = json.loads(outcome.out)["answer"]
    within = simulate(load_scenario(scenario)).summary["slo_attainment"]
    assert answer["n_seeds"] == 1
    assert (answer["low_frac"], answer["high_frac"]) == (within["low_frac"], within["high_frac"])
    assert "within one run, which every seed repeats" in invoke("capacity", scenario, "--replicas", "serve").out


def test_a_split_for_a_trace_has_no_interval(tmp_path: Path) -> None:
    pools = [{"name": role, "role": role, "replicas": 1} for role in ("prefill", "decode")]
    cluster = {"cluster": {"pools": pools, "kv_link": {"bytes_per_s": 5.0e10, "latency_s": 0.0}}}
    scenario = write_scenario(tmp_path, **trace_of(tmp_path), **cluster, slo={"ttft_s": 0.1})
    outcome = invoke("capacity", scenario, "--ratio", "prefill:decode", "--out", tmp_path / "out")
    assert "(one run, as every seed gives the same; no interval)" in outcome.out
    row = next(line.split() for line in outcome.out.splitlines() if line.split()[:1] == ["1:1"])
    assert row[2] == "–"
    result = json.loads((tmp_path / "out" / "capacity.json").read_text())
    assert (result["answer"]["n_seeds"], result["answer"]["offered_per_s"]["low"]) == (1, None)


def test_a_closed_loop_of_fixed_lengths_has_a_concurrency_without_an_interval(tmp_path: Path) -> None:
    loop = {"client": {"kind": "closed_loop", "concurrency": 4}, "lengths": FIXED, "n_requests": 60}
    scenario = write_scenario(tmp_path, workload=loop, slo={"ttft_s": 0.04})
    outcome = invoke("capacity", scenario, "--concurrency", "--json", "--out", tmp_path / "out")
    concurrency = json.loads(outcome.out)["answer"]["concurrency"]
    assert concurrency["value"] > 0
    assert (concurrency["low"], concurrency["high"]) == (None, None)


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [("run", "--replications", 4), ("run", "--precision", 0.1), ("sweep", "--replications", 3)],
)
def test_seeds_that_are_all_alike_are_refused(tmp_path: Path, command: str, option: str, value: float) -> None:
    scenario, out = write_scenario(tmp_path, **trace_of(tmp_path)), tmp_path / "out"
    vary = ["--vary", "cluster.pools.0.replicas=1,2"] if command == "sweep" else []
    outcome = invoke(command, scenario, *vary, option, value, "--out", out)
    assert outcome.exit_code == 2
    rule = f"{option}: needs runs that differ from seed to seed, got {value} of tiny, of which nothing is drawn; leave"
    assert outcome.err.startswith(f"simserve: error: {rule}")
    assert not out.exists()


def test_one_seed_of_a_trace_is_swept(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path, **trace_of(tmp_path))
    outcome = invoke("sweep", scenario, "--vary", "cluster.pools.0.replicas=1,2", "--out", tmp_path / "out")
    assert outcome.exit_code == 0
