"""`simserve plan` says which fleet to take, writes it as a scenario that holds, and refuses what is no question."""

import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from simserve import load_scenario
from simserve.metrics.answers.plan_option import PlanOption
from simserve.metrics.answers.struct import fields_of
from simserve.metrics.result_folder import read_result_folders
from simserve.report.spreadsheet.cost import grown
from simserve.report.spreadsheet.cost_sources import cost_basis
from simserve.study.run_seeds import each_run
from simserve.tables.read_back import read_table
from tests.cli.invoke import Outcome, invoke
from tests.cli.scenarios import write_scenario

FAST = ["workload.arrivals.rate_per_s=400", "workload.n_requests=1500", "slo={ttft_s: 0.05, tpot_s: 0.012}"]
"""More than one H100 serves."""


def plan(folder: Path, *arguments: object, changes: dict[str, Any] | None = None) -> Outcome:
    scenario = write_scenario(folder, **(changes or {}))
    return invoke("plan", scenario, "--out", folder / "out", *arguments)


def test_it_says_what_to_take_and_why_and_writes_that_down(tmp_path: Path) -> None:
    setting = [word for override in FAST for word in ("--set", override)]
    requested = ("--gpu", "h100-sxm,l40s", "--tensor", "1,3", "--spare", "1", "--growth", "0.2", "--months", "3")
    outcome = plan(tmp_path, *requested, *setting)
    assert outcome.exit_code == 0
    result = json.loads((tmp_path / "out" / "plan.json").read_text())
    best = result["options"][0]
    assert outcome.out.startswith(result["sentence"])
    assert result["sentence"].startswith(f"Take {best['gpus']} × h100-sxm ({best['gpus']} replicas of TP 1) for $")
    assert "Growing by 20.0% a month" in outcome.out
    for row in result["options"]:
        assert f"{row['option']}: {row['reason']}" in outcome.out
    assert [row["option"] for row in result["options"] if row["state"] == "refused"] == ["h100-sxm TP 3", "l40s TP 3"]
    columns, _ = read_table(tmp_path / "out" / "plan.parquet", fields_of(PlanOption))
    assert columns["gpus"].tolist() == [row["gpus"] or -1 for row in result["options"]]
    assert columns["usd_per_month"][0] == best["usd_per_month"] == best["gpus"] * 4.0 * 730
    files = {"plan.json", "plan.parquet", "plan.xlsx", "scenario.yaml", "report.html"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files
    assert_holds_with_one_down(tmp_path / "out" / "scenario.yaml", best["needed_replicas"])


def assert_holds_with_one_down(scenario: Path, n_needed: int) -> None:
    """The fleet that was written meets the goal as it is, and with a replica down, and not with two."""
    (bought,) = load_scenario(scenario).cluster.pools
    assert bought.replicas == n_needed + 1 > 2
    ran = invoke("run", scenario, "--out", scenario.parent.parent / "ran", "--no-report", "--json")
    assert json.loads(ran.out)["slo_attainment"]["frac"] >= 0.99
    overrides = [[f"cluster.pools.0.replicas={n}"] for n in (n_needed, n_needed - 1)]
    down = each_run(
        attrgetter("figures"), [load_scenario(scenario, overrides=each) for each in overrides], range(3, 11)
    )
    shares = [sum(run.attained.at("frac") for run in runs) / len(runs) for runs in down]
    assert shares[0] >= 0.99 > shares[1]


def test_json_is_what_the_folder_has_and_nothing_else(tmp_path: Path) -> None:
    outcome = plan(tmp_path, "--tensor", "1", "--json", "--split")
    assert outcome.exit_code == 0
    assert json.loads(outcome.out) == json.loads((tmp_path / "out" / "plan.json").read_text())
    rows = {row["option"]: row for row in json.loads(outcome.out)["options"]}
    assert set(rows) == {"h100-sxm TP 1", "h100-sxm TP 1, disaggregated"}
    disaggregated = rows["h100-sxm TP 1, disaggregated"]
    assert (disaggregated["prefill_replicas"], disaggregated["decode_replicas"], disaggregated["gpus"]) == (1, 1, 2)
    assert all(line.startswith("simserve: warning: ") for line in outcome.err.splitlines())


def test_a_price_that_is_given_decides(tmp_path: Path) -> None:
    requested = ("--gpu", "h100-sxm,h200-sxm", "--tensor", "1", "--json")
    assert json.loads(plan(tmp_path, *requested).out)["options"][0]["gpu"] == "h100-sxm"
    cheaper = json.loads(plan(tmp_path, *requested, "--price", "h200-sxm=1.5").out)
    assert (cheaper["options"][0]["gpu"], cheaper["options"][0]["usd_per_month"]) == ("h200-sxm", 1.5 * 730)
    assert cheaper["assumed"]["given_prices"] == ["h200-sxm"]


def test_where_nothing_holds_the_answer_is_no_with_the_slo_that_fails_and_by_how_much(tmp_path: Path) -> None:
    outcome = plan(tmp_path, "--tensor", "1", "--set", "slo={ttft_s: 0.001}")
    assert outcome.exit_code == 1
    assert outcome.out.startswith(
        "No option surely meets the SLO: 99% of requests must have TTFT ≤ 1 ms. Closest is h100-sxm TP 1: "
    )
    assert "cannot meet TTFT ≤ 1 ms at any number of replicas: on an idle replica 0% of requests do" in outcome.out
    assert (tmp_path / "out" / "report.html").exists()
    assert not (tmp_path / "out" / "scenario.yaml").exists()


def test_a_load_that_more_gpus_than_allowed_would_serve_is_told_so(tmp_path: Path) -> None:
    setting = [word for override in FAST for word in ("--set", override)]
    outcome = plan(tmp_path, "--tensor", "1", "--max-gpus", "1", *setting)
    assert outcome.exit_code == 1
    assert "it needs more than 1 GPUs: with them " in outcome.out


def test_a_diurnal_load_says_what_following_the_hours_would_save(tmp_path: Path) -> None:
    arrivals = {"kind": "diurnal", "rates_per_s": [1, 4, 2], "period_s": 10_800}
    lengths = {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8}
    workload = {"arrivals": arrivals, "lengths": lengths, "duration_s": 10_800}
    outcome = plan(tmp_path, "--tensor", "1", changes={"workload": workload})
    assert outcome.exit_code == 0
    assert "The fleet is sized for the peak. The mean demand is 58.3% of it" in outcome.out
    assert "at the nominal peak of " in outcome.out
    written = load_scenario(tmp_path / "out" / "scenario.yaml").workload.arrivals
    assert written is not None
    assert written["kind"] == "diurnal"  # the load that was asked about, not its peak


def test_the_month_of_a_scenario_with_an_autoscaler_is_that_of_its_simulated_fleet(tmp_path: Path) -> None:
    """Two replicas half of the time, one else: 1.5 GPUs on average, but for the run's end."""
    arrivals = {"kind": "diurnal", "rates_per_s": [1, 4], "period_s": 1800}
    lengths = {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8}
    workload = {"arrivals": arrivals, "lengths": lengths, "duration_s": 1800}
    steps = [{"at_s": 450, "replicas": 2}, {"at_s": 1350, "replicas": 1}]
    startup = {"provision_s": 0, "process_s": 0, "compile_s": 0, "ready_probe_s": 0}
    pool = {"name": "serve", "replicas": 1, "autoscaler": {"kind": "schedule", "steps": steps}, "startup": startup}
    cluster = {"router": "least_outstanding", "pools": [pool]}
    outcome = plan(tmp_path, "--tensor", "1", changes={"workload": workload, "cluster": cluster})
    assert outcome.exit_code == 0, outcome.err
    result = json.loads((tmp_path / "out" / "plan.json").read_text())
    scaled, n_gpus = result["scaled"], result["options"][0]["gpus"]
    assert (n_gpus, scaled["mean_gpus"]) == (1, pytest.approx(1.5, abs=0.02))
    assert scaled["usd_per_month"] == pytest.approx(scaled["mean_gpus"] * 4 * 730)
    assert "Simulated over the whole load, its autoscaler takes 1.5" in outcome.out
    assert "at best" not in outcome.out
    assert load_scenario(tmp_path / "out" / "scenario.yaml").cluster.pools[0].autoscaler is not None
    (source,) = read_result_folders([tmp_path / "out"])
    basis = cost_basis([source])
    assert basis is not None and basis.scaled_frac.value == pytest.approx(scaled["mean_gpus"])
    assert "0 GPUs on average, simulated." in basis.scaled_frac.origin
    assert grown(basis, 0).usd_per_month == pytest.approx(scaled["usd_per_month"])
    assert grown(basis, 0).usd_reserved == pytest.approx(4 * 730 * 0.6)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--gpu", "h100"), "--gpu: there are several in the catalog, got 'h100'; say which: h100-pcie, h100-sxm"),
        (("--tensor", "3"), "--tensor: must divide the model's 32 attention heads, got 3; try 1, 2, 4 or 8"),
        (("--tensor", "two"), "--tensor: must be whole numbers from 1 on, got two; for example"),
        (("--tensor", "0"), "--tensor: must be whole numbers from 1 on, got 0"),
        (("--tensor", ","), "--tensor: must name a degree, got nothing"),
        (("--price", "2.5"), "--price: must be GPU=DOLLARS an hour, got 2.5; for example --price h100-sxm=2.5"),
        (("--price", "l40s=1"), "--price: must name a GPU that is compared, got l40s; "),
        (("--price", "h100-sxm=-1"), "--price h100-sxm: must be dollars an hour above 0, got -1"),
        (("--set", "slo={}"), "tiny: needs an SLO, got none"),
        (("--growth", "-0.1"), "Invalid value for '--growth': "),
        (("--growth", "nan"), "--growth"),
        (("--months", "0"), "Invalid value for '--months': "),
        (("--spare", "-1"), "--spare: must be a number, auto, or auto:4 for four at most, got -1; leave it out for"),
        (("--spare", "auto:21"), "--spare: must be from 0 to 20, got 21"),
        (("--spare", "auto", "--split"), "--spare: auto is of a single pool, got --split; leave that out, or give a"),
        (("--max-gpus", "0"), "Invalid value for '--max-gpus': "),
        (("--goal", "1.5"), "--goal: must be a share from 0.01 to 0.9999, or a percentile"),
    ],
)
def test_what_is_no_question_is_refused(tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    outcome = plan(tmp_path, *arguments)
    assert outcome.exit_code == 2
    assert text in outcome.err
    assert not (tmp_path / "out").exists()


def test_a_closed_loop_has_no_rate_to_plan_for(tmp_path: Path) -> None:
    lengths = {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8}
    loop = {"client": {"kind": "closed_loop", "concurrency": 4}, "lengths": lengths, "n_requests": 40}
    outcome = plan(tmp_path, changes={"workload": loop})
    assert outcome.exit_code == 2
    assert "tiny: workload.client: a plan needs a demand with a rate" in outcome.err


def test_a_load_of_nobody_is_refused(tmp_path: Path) -> None:
    outcome = plan(
        tmp_path,
        "--set",
        "workload={arrivals: {kind: poisson, rate_per_s: 0.000001}, duration_s: 1, "
        "lengths: {kind: fixed, prompt_tokens: 64, output_tokens: 8}}",
    )
    assert outcome.exit_code == 2
    assert "a request must arrive within workload.duration_s, 1 s, got none" in outcome.err


def test_somebody_elses_folder_is_left_alone_before_anything_is_run(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    outcome = plan(tmp_path)
    assert outcome.exit_code == 2
    assert "must be empty or hold only an earlier result, got thesis.tex" in outcome.err


def test_interrupted_it_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simserve.study.plan.outcome.each_run", stop)
    outcome = plan(tmp_path)
    assert outcome.exit_code == 130
    assert not (tmp_path / "out").exists()
