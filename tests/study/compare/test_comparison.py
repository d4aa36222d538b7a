"""Comparisons find what differs, and do not find what does not."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from simserve import Scenario, load_scenario, simulate
from simserve.errors import SimserveError
from simserve.metrics.answers.comparison import ComparisonAnswer, MeasureDifference
from simserve.study.compare.compare import ComparedSide, compare, read_side
from simserve.study.compare.comparison import compare_benchmarks
from tests.cli.scenarios import write_scenario

SLOWER: dict[str, Any] = {"name": "slower", "engine": {"name": "vllm", "exposed_step_s": 0.006}}


def tiny(folder: Path, n_requests: int = 40, **changes: Any) -> Scenario:
    """Short requests on one H100, without an SLO: only measures are compared."""
    loaded = load_scenario(
        write_scenario(folder, **{"slo": {}} | changes), overrides=[f"workload.n_requests={n_requests}"]
    )
    return loaded


def differences(result: ComparisonAnswer) -> dict[str, MeasureDifference]:
    return {measure.key: measure for measure in result.measures}


def ends(measure: MeasureDifference) -> tuple[float, float]:
    """Return the interval of a difference that has one."""
    assert measure.low is not None and measure.high is not None
    return measure.low, measure.high


def test_a_scenario_is_the_same_as_itself(tmp_path: Path) -> None:
    scenario = tiny(tmp_path)
    result = compare(ComparedSide("a", scenario), ComparedSide("b", scenario), n_replications=3)
    assert {each.outcome for each in result.measures} == {"same"}
    (warning,) = result.warnings  # 40 requests of a nominal 8 a second draw a load of their own
    load = result.loads[0]
    assert load is not None and result.loads[1] == load
    assert load.nominal_per_s == 8
    assert warning.startswith(f"the seeds drew {load.drawn_per_s:.3g} req/s of a nominal 8 ({load.off_frac:+.1%}): ")


def test_a_slower_host_is_worse_at_every_latency_and_unlike_loads_are_said(tmp_path: Path) -> None:
    much_slower = SLOWER | {"engine": {"name": "vllm", "exposed_step_s": 0.012}}
    a, b = tiny(tmp_path), tiny(tmp_path, 50, **much_slower)
    result = compare(ComparedSide("a", a), ComparedSide("b", b), n_replications=3)
    sentence = differences(result)
    assert {sentence[key].outcome for key in ("ttft_s.p50", "tpot_s.mean", "e2e_s.mean")} == {"worse"}
    assert result.warnings[0] == "the two differ in their workload, so not only the servers are compared"


def test_runs_of_the_same_requests_are_compared_request_by_request(tmp_path: Path) -> None:
    a, b = simulate(tiny(tmp_path, 800)), simulate(tiny(tmp_path, 800, **SLOWER))
    result = compare(ComparedSide("a", a), ComparedSide("b", b))
    assert "the same requests on both sides" in result.how
    tpot = differences(result)["tpot_s.mean"]
    requests = b.requests.tpot_s.mean() - a.requests.tpot_s.mean()
    assert tpot.difference == pytest.approx(requests)
    low, high = ends(tpot)
    assert low <= requests <= high
    assert tpot.outcome == "worse"
    other = simulate(tiny(tmp_path, 800, seed=11))
    unpaired = differences(compare(ComparedSide("a", a), ComparedSide("b", other)))["tpot_s.mean"]
    wider = ends(unpaired)
    assert high - low < wider[1] - wider[0]
    assert unpaired.outcome == "unclear"


def test_a_short_run_has_no_interval(tmp_path: Path) -> None:
    result = compare(ComparedSide("a", simulate(tiny(tmp_path))), ComparedSide("b", simulate(tiny(tmp_path, **SLOWER))))
    assert not result.has_intervals
    assert {each.outcome for each in result.measures} <= {"unclear", "same"}


def test_a_scenario_is_held_against_a_run_with_the_seed_of_that_run(tmp_path: Path) -> None:
    scenario = tiny(tmp_path, 800)
    run = simulate(scenario.model_copy(update={"seed": 8}))
    assert {each.outcome for each in compare(ComparedSide("a", run), ComparedSide("b", scenario)).measures} == {"same"}


def test_benchmarks_are_compared_by_the_keys_that_both_have() -> None:
    measured = {"mean_ttft_ms": 40.0, "p99_ttft_ms": 90.0, "request_throughput": 8.0, "completed": 100, "duration": 9}
    predicted = {"mean_ttft_ms": 44.0, "request_throughput": 8.0, "completed": 100, "std_ttft_ms": 3.0}
    sentence = differences(compare_benchmarks(("measured", "predicted"), measured, predicted))
    assert list(sentence) == ["mean_ttft_ms", "request_throughput"]
    assert sentence["mean_ttft_ms"].change_frac == pytest.approx(0.1)
    assert sentence["mean_ttft_ms"].a == pytest.approx(0.04)


def test_runs_that_are_the_same_with_every_seed_are_run_once_and_have_no_interval(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0.5,10,10\n1.5,10,10\n")
    trace = {"trace": {"path": "mine.csv", "format": "simserve"}}
    a, b = (
        ComparedSide(name, load_scenario(write_scenario(tmp_path, workload=trace, name=name, **more)))
        for name, more in (("a", {}), ("b", {"engine": SLOWER["engine"]}))
    )
    result = compare(a, b)
    assert result.how == "one run each"
    assert not result.has_intervals
    assert any("every seed gives the same run" in text for text in result.warnings)


def test_the_median_is_told_once() -> None:
    both = {"median_ttft_ms": 40.0, "p50_ttft_ms": 40.0, "median_tpot_ms": 9.0}
    assert list(differences(compare_benchmarks(("a", "b"), both, both))) == ["p50_ttft_ms", "median_tpot_ms"]


def test_what_no_answer_file_holds_is_left_out_or_unknown() -> None:
    a = {"mean_ttft_ms": 1e-290, "p99_ttft_ms": 10**400, "mean_tpot_ms": math.nan}
    result = compare_benchmarks(("a", "b"), a, {"mean_ttft_ms": 1e15, "p99_ttft_ms": 1.0, "mean_tpot_ms": 1.0})
    assert [(each.key, each.b, each.change_frac) for each in result.measures] == [
        ("mean_ttft_ms", 1e12, None),
        ("mean_tpot_ms", 1e-3, None),
    ]
    assert ComparisonAnswer.model_validate(result.facts(), strict=True).facts() == result.facts()


def test_a_measured_benchmark_is_held_against_a_prediction(tmp_path: Path) -> None:
    scenario = tiny(tmp_path)
    measured = tmp_path / "measured.json"
    measured.write_text(json.dumps(simulate(scenario).vllm_bench))
    result = compare(read_side(measured), ComparedSide("b", scenario))
    assert {each.change_frac for each in result.measures if each.a} == {0.0}


def test_other_json_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"a": 1}')
    with pytest.raises(SimserveError, match=r"other\.json: must be a scenario, a folder of results, or the JSON"):
        read_side(file)
