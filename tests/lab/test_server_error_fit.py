"""The fit of errors between servers: parts that are known are found, and groups are judged without themselves."""

import json
from hashlib import sha256
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from simserve.cost.calibration import calibration_path, read_calibration
from simserve.errors import CalibrationError
from simserve.lab import public
from simserve.lab.league import DataSet
from simserve.lab.public import predict_public, read_public, spread_out
from simserve.lab.runs import Prediction
from simserve.lab.server_error_fit import Observed, fit_spread, fitted_servers, is_held, observed, parts
from simserve.scenario.server_errors import METRICS, REASONS, WITHIN_SD, server_errors
from simserve.study.cost_draws import normal_scores
from tests.cli.invoke import invoke
from tests.lab.kernels.timings import needs_package
from tests.lab.test_public import DATA, row, serving

SHIPPED = Path(__file__).resolve().parents[2] / "calibration" / "server_errors.json"

WITHIN = WITHIN_SD["tpot_s"]


def runs_of(name: str, facts: set[str], *log_ratios: float, costs_sd: float = 0.0) -> list[Observed]:
    return [Observed((name,), frozenset(facts), each, costs_sd) for each in log_ratios]


def test_one_part_is_what_variance_is_left() -> None:
    """The mean square, less that of costs and of servers like the fitted ones; each group counts once."""
    runs = runs_of("a", {"server"}, 0.3, costs_sd=0.1) + runs_of("b", {"server"}, *[-0.5] * 9, costs_sd=0.1)
    left = (0.3**2 + 0.5**2) / 2 - 0.1**2 - WITHIN**2
    assert parts(runs, "tpot_s")["server"] == pytest.approx(sqrt(left), rel=2e-3)


def test_nothing_is_added_where_costs_explain_the_errors() -> None:
    runs = [each for name in "abcdef" for each in runs_of(name, {"server"}, 0.05, -0.05, costs_sd=0.1)]
    assert set(parts(runs, "tpot_s").values()) == {0.0}


def test_parts_that_made_the_errors_are_found() -> None:
    """The standard error of a part of 600 groups is some 4%, of one beside a larger one more."""
    generator, truth = np.random.default_rng(5), {"server": 0.1, "experts": 0.2, "nodes": 0.5}
    runs = []
    for i in range(1800):
        facts = {"server"} | ({"experts"} if i % 3 else set()) | ({"nodes"} if i % 3 == 2 else set())
        variance = sum(truth[fact] ** 2 for fact in facts) + 0.03**2 + WITHIN**2
        runs += runs_of(str(i), facts, generator.normal(0, sqrt(variance)), costs_sd=0.03)
    found = parts(runs, "tpot_s")
    for fact in REASONS:
        assert found[fact] == pytest.approx(truth.get(fact, 0.0), rel=0.15, abs=1e-3)


def test_a_part_is_not_nothing_because_others_explain_its_few_groups() -> None:
    """Groups with two facts are as far off as those with one: one more group, with `roles` alone, is as far off."""
    runs = [each for name in "abcdef" for each in runs_of(name, {"server", "generation"}, 0.3, -0.3)]
    runs += [each for name in "uvw" for each in runs_of(name, {"server", "generation", "roles"}, 0.3, -0.3)]
    found = parts(runs, "tpot_s")
    assert 0.1 < found["roles"] < 0.3
    assert found["server"] + found["generation"] > 0.25


def test_a_group_is_judged_by_the_others() -> None:
    """The group that is far off widens the intervals of all but its own."""
    others = [each for name in "abcdef" for each in runs_of(name, {"server"}, 0.04, -0.04)]
    runs = others + runs_of("far", {"server"}, 0.5, 0.5)
    fit = fit_spread(runs, "tpot_s")
    assert fit.sd == parts(runs, "tpot_s")
    assert not is_held(runs[-1], "tpot_s", parts(others, "tpot_s"))
    assert (fit.n_runs, fit.n_groups) == (14, 7)
    assert (fit.held_frac, fit.held_of_groups_frac) == (0.857, 0.857)  # 12 of 14, 6 of 7
    assert fit.held_before_frac == 0.857  # of ends that are 1.895 x 0.96 x 0.025 away


def test_ends_are_those_of_the_replays() -> None:
    """Student's t with 7 degrees of freedom, over eight draws as they are spread."""
    half = 1.895 * sqrt(0.03**2 + np.std(normal_scores(8), ddof=1) ** 2 * (WITHIN**2 + 0.1**2))
    (inside,), (outside,) = (runs_of("a", {"server"}, factor * half, costs_sd=0.03) for factor in (0.999, -1.001))
    assert is_held(inside, "tpot_s", {"server": 0.1, "nodes": 9.0})
    assert not is_held(outside, "tpot_s", {"server": 0.1, "nodes": 9.0})


def test_few_groups_are_refused() -> None:
    with pytest.raises(CalibrationError, match="at least 5 groups of servers with tpot_s are needed, got 2"):
        fit_spread(runs_of("a", {"server"}, 0.1) + runs_of("b", {"server"}, 0.1), "tpot_s")


def test_only_latencies_that_no_fit_used_are_errors_of_others(tmp_path: Path) -> None:
    """The TTFT of TensorRT-LLM is in no fit; what is in no known file was not fitted at all."""
    serving(tmp_path, row(), row(engine="trtllm,1.0.0rc3"))
    serving(tmp_path, row(), name="mine.csv")
    runs = predict_public(read_public(tmp_path, 1, left_out=True)[0])
    assert [(each.engine, each.metrics) for each in fitted_servers(runs)] == [
        ("trtllm", ("tpot_s",)),
        ("vllm", ("tpot_s", "ttft_s")),
    ]
    groups = {metric: [each.group[0] for each in observed(runs, metric)] for metric in METRICS}
    assert groups == {"tpot_s": ["vllm"], "ttft_s": ["trtllm", "vllm"], "e2e_s": []}
    (mine,) = observed(runs, "tpot_s")
    run = runs[-1]
    assert run.predicted_s is not None
    assert mine.log_ratio == pytest.approx(np.log(7.25e-3 / run.predicted_s["tpot"]))
    assert (mine.facts, mine.costs_sd) == (frozenset({"server"}), run.spread.costs_sd["tpot"])
    assert 0.005 < mine.costs_sd < 0.3


def test_a_card_that_was_fitted_is_predicted_as_before_the_fit(tmp_path: Path) -> None:
    def tpot_s(left_out: bool) -> tuple[float, Prediction]:
        rows = "sglang,0.5.9,mi300x,deepseek-ai/DeepSeek-V3,fp8,8,1024,1024,1,400,20"
        serving(tmp_path, rows, name="mine.csv")
        (run,) = predict_public(read_public(tmp_path, 1, left_out=left_out)[0])
        assert run.predicted_s is not None
        return run.predicted_s["tpot"], run

    before, after = tpot_s(left_out=True), tpot_s(left_out=False)
    assert before[0] < 0.8 * after[0]  # its launches take longer than those of the card it resembles
    assert [run.setups[0].calibration_name for _, run in (before, after)] == [
        "h100-sxm/sglang 0.5.14",
        "mi300x/sglang 0.5.14",
    ]
    assert "untimed" in observed([before[1]], "tpot_s")[0].facts


def test_a_card_with_the_kernels_of_a_fitted_one_is_in_no_fit_and_predicted_as_it_is(tmp_path: Path) -> None:
    """MI325X has MI300X's, and was refused: kernels of an H100 are not the nearest."""
    rows = "sglang,0.5.9,mi325x,deepseek-ai/DeepSeek-V3,fp8,8,1024,1024,1,400,20"
    serving(tmp_path, rows, name="mine.csv")
    before, after = (predict_public(read_public(tmp_path, 1, left_out=each)[0])[0] for each in (True, False))
    assert before.predicted_s == after.predicted_s is not None
    assert before.setups[0].calibration_name == "mi300x/sglang 0.5.14"


def test_the_shipped_file_says_how_often_it_held() -> None:
    data = json.loads(SHIPPED.read_text(encoding="utf-8"))
    assert server_errors().ttft_engines == {"vllm", "sglang"}
    for metric in METRICS:
        fit = data["metrics"][metric]
        assert 0.8 <= fit["held_of_groups_frac"] <= 0.97
        assert fit["held_before_frac"] < fit["held_frac"]


def test_the_shipped_file_is_of_todays_calibrations() -> None:
    used = json.loads(SHIPPED.read_text(encoding="utf-8"))["made"]["calibrations"]
    assert used == {name: read_calibration(calibration_path(name)).sha256 for name in used}, (
        "a calibration has changed: run simserve lab server-errors again (CONTRIBUTING.md)"
    )


@pytest.mark.thorough
@needs_package
@pytest.mark.skipif(DATA is None, reason="public runs are not here")
def test_a_refit_gives_the_shipped_file_to_the_last_bit(tmp_path: Path) -> None:
    made = json.loads(SHIPPED.read_text(encoding="utf-8"))["made"]
    most = str(made["most_runs_of_a_set"])
    assert invoke("lab", "server-errors", DATA, "--most", most, "--out", tmp_path).exit_code == 0
    assert (tmp_path / SHIPPED.name).read_bytes() == SHIPPED.read_bytes()


@needs_package
@pytest.mark.skipif(DATA is None, reason="public runs are not here")
def test_the_shipped_file_is_of_these_data() -> None:
    assert DATA is not None
    files = {each["file"]: each["sha256"] for each in json.loads(SHIPPED.read_text(encoding="utf-8"))["made"]["files"]}
    here = {path.name: path for folder in ("serving", "logs") for path in (DATA / folder).iterdir()}
    here[public.FILE] = public.silicon_path()
    assert files == {name: sha256(here[name].read_bytes()).hexdigest() for name in files}
    cases, _ = read_public(DATA, left_out=True, with_package=True)
    names = {case.data_set for case in spread_out(cases, 1)}
    assert DataSet(public.FILE, "vllm", "b200-sxm", "llama-3.1-70b fp8") in names
    assert {name.gpu for name in names if name.file == public.FILE} == {"b200-sxm", "b300-sxm", "gb200"}
    assert {DataSet("h100_serving.csv", "vllm", "h100-sxm", "qwen3-32b bf16")} <= names
