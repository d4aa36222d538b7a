"""A load is measured before it is drawn, and a run beyond the simulated time that 64 bits hold is refused."""

import math
from pathlib import Path
from typing import Any

import pytest

from simserve import load_scenario
from simserve.workload import size
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario

LENGTHS = {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8}
POISSON = {"kind": "poisson", "rate_per_s": 1e12}


@pytest.mark.parametrize(
    ("workload", "line", "got"),
    [
        ({"arrivals": POISSON, "duration_s": 60}, "workload.arrivals", "6e+13"),
        ({"arrivals": {"kind": "poisson", "rate_per_s": 8}, "n_requests": 10**9}, "workload.n_requests", "1e+09"),
        ({"client": {"kind": "closed_loop", "concurrency": 10**9}, "duration_s": 60}, "workload.client", "1e+09"),
        (
            {"arrivals": {"kind": "poisson", "rate_per_s": 8}, "n_requests": 50}
            | {"batch": {"n_requests": 10**8, "lengths": LENGTHS, "at_s": [1.0, 2.0]}},
            "workload.n_requests",
            "2e+08",
        ),
    ],
)
def test_a_load_of_too_many_requests_is_refused_before_it_is_drawn(
    workload: dict[str, Any], line: str, got: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size, "free_memory_bytes", lambda: None)
    for command in ("explain", "run"):
        outcome = invoke(command, write_scenario(tmp_path, workload={"lengths": LENGTHS} | workload))
        assert outcome.exit_code == 2
        assert outcome.err.startswith(f"simserve: error: {tmp_path / 'tiny.yaml'}:")
        rule = "a run may have at most 100,000,000 requests"
        assert f" {line}: {rule}, got " in outcome.err
        count = float(outcome.err.split(", got ")[1].split(", which take about")[0].replace(",", ""))
        assert f"{count:.0e}" == got
        assert " GiB and " in outcome.err


def test_less_memory_holds_fewer_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free_bytes = size.BYTES_PER_REQUEST * 5_000
    assert size.why_too_many(5_000, free_bytes) is None
    rule, value, _ = size.why_too_many(5_001, free_bytes) or ("", "", "")
    assert rule == "the 0.0014 GiB of free memory hold a run of about 5,000 requests"
    assert value.startswith("5,001, which take about 0.001397 GiB and ")
    assert size.why_too_many(math.inf) is not None
    monkeypatch.setattr(size, "free_memory_bytes", lambda: free_bytes)
    scenario = write_scenario(
        tmp_path, workload={"arrivals": {"kind": "poisson", "rate_per_s": 9}, "lengths": LENGTHS, "n_requests": 5_001}
    )
    load_scenario(scenario)  # it may run on another machine, or a part of it here
    for command in ("explain", "run"):
        outcome = invoke(command, scenario)
        assert outcome.exit_code == 2
        assert f"workload: {rule}, got {value}; shorten the load" in outcome.err


def test_the_system_tells_its_free_memory() -> None:
    free_bytes = size.free_memory_bytes()
    assert free_bytes is not None and 2**20 < free_bytes < 2**50


@pytest.mark.parametrize(("host_s", "said"), [(3600, "a step of pool serve took 1 h"), (1e9, "must be at most 3600")])
def test_simulated_time_has_an_end(host_s: float, said: str, tmp_path: Path) -> None:
    lengths = {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 3_000}
    workload = {"arrivals": {"kind": "poisson", "rate_per_s": 8}, "lengths": lengths, "n_requests": 2}
    engine = {"name": "vllm", "step_host_s": host_s}
    outcome = invoke("run", write_scenario(tmp_path, workload=workload, engine=engine), "--out", tmp_path / "out")
    assert outcome.exit_code == 2, outcome.err
    assert said in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", [{"replicas": 10**9}, {"parallel": {"data": 10**9}}])
def test_a_pool_of_too_many_schedulers_is_refused_before_it_is_made(change: dict[str, Any], tmp_path: Path) -> None:
    pools = [{"name": "serve", "role": "both"} | change]
    outcome = invoke("explain", write_scenario(tmp_path, cluster={"router": "round_robin", "pools": pools}))
    assert outcome.exit_code == 2
    key = "replicas" if "replicas" in change else "parallel.data"
    assert f"cluster.pools.0.{key}: a pool may have at most 10,000 schedulers" in outcome.err


def test_a_generated_trace_has_the_same_bound(tmp_path: Path) -> None:
    options = ("--arrivals", "{kind: poisson, rate_per_s: 1e12}", "--lengths", f"{LENGTHS}", "--duration-s", 60)
    outcome = invoke("trace", "generate", tmp_path / "trace.csv", *options)
    assert outcome.exit_code == 2, outcome.err
    assert ", got 6e+13, which take about " in outcome.err


@pytest.mark.parametrize("kind", ["poisson", "constant", "gamma", "vllm_bench"])
@pytest.mark.parametrize("command", ["explain", "run"])
def test_arrivals_end_within_the_longest_run(kind: str, command: str, tmp_path: Path) -> None:
    def with_rate(rate_per_s: str) -> str:
        more = ", burstiness: 0.5" if kind == "gamma" else ""
        rate = f"workload.arrivals={{kind: {kind}, rate_per_s: {rate_per_s}{more}}}"
        outcome = invoke(command, write_scenario(tmp_path), "--set", rate)
        assert outcome.exit_code == 2
        return outcome.err

    err = with_rate("1e-6")
    assert err.startswith("simserve: error: workload: all requests must arrive within 90 days, got one at ")
    assert err.endswith(" s; take fewer requests, or raise their rate\n")
    assert "simserve.workload" not in with_rate("1e-12"), "nothing internal is named"
    assert ".rate_per_s: must be at least 1e-12, got 5e-324" in with_rate("5e-324")


@pytest.mark.parametrize(("last_s", "exit_code"), [(90 * 86_400, 0), (90 * 86_400 + 1, 2)])
def test_a_replayed_trace_may_be_as_long_as_a_run(last_s: int, exit_code: int, tmp_path: Path) -> None:
    trace = tmp_path / "long.csv"
    trace.write_text(f"arrival_s,prompt_tokens,output_tokens\n0,64,8\n{last_s},64,8\n")
    scenario = write_scenario(tmp_path, workload={"trace": {"path": str(trace)}})
    outcome = invoke("run", scenario, "--out", tmp_path / "out", "--no-report")
    assert outcome.exit_code == exit_code, outcome.err
    assert ("workload: all requests must arrive within 90 days" in outcome.err) == (exit_code == 2)
