"""`simserve autoscale --recorded`: policies are fed the signals of a real fleet, and wrong files are refused."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import simserve
from tests.autoscalers.pools import FLEET, needs_fleet
from tests.cli.invoke import Outcome, invoke
from tests.cli.test_autoscale import SCENARIO
from tests.test_recorded_fleet import HPA

SIGNALS = """at_s,replicas,desired,num_requests_running,kv_cache_usage_perc
0,1,1,30,0.2
15,1,2,90,0.6
30,2,2,50,0.3
60,2,,60,0.4
"""
RULE = "{kind: target, metric: num_requests_running, target: 50, max_replicas: 4}"


def autoscale(folder: Path, file: Path | None, *arguments: object) -> Outcome:
    (folder / "fleet.yaml").write_text(SCENARIO)
    recorded = () if file is None else ("--recorded", file)
    return invoke("autoscale", folder / "fleet.yaml", "--out", folder / "out", *recorded, *arguments)


def written(folder: Path, text: str = SIGNALS) -> Path:
    file = folder / "signals.csv"
    file.write_text(text)
    return file


def recorded(folder: Path) -> Any:
    return json.loads((folder / "out" / "autoscale.json").read_text())["recorded"]


@needs_fleet
@pytest.mark.parametrize(("silent", "right"), [(("--silent-s", 120), 47), (("--silent-s", 0), 42), ((), 43)])
def test_the_recorded_controller_agrees_at_all_instants(tmp_path: Path, silent: tuple[Any, ...], right: int) -> None:
    names = "time=timestamp,desired=desired_replicas,kv_cache_usage_perc=kv_cache_usage"
    policy = yaml.safe_dump(HPA, default_flow_style=True, width=10_000).strip()
    file = FLEET / "hpa_timeline.csv"
    outcome = autoscale(tmp_path, file, "--map", names, "--policy", policy, *silent)  # a start takes 14 s here
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.startswith(f"hpa agrees at {right} of 47 instants. The fleet's own answer is missing: ")
    answer = recorded(tmp_path)
    assert (len(answer["at_s"]), answer["file"]) == (47, "hpa_timeline.csv")
    [hpa] = answer["policies"]
    assert len(hpa["differs_at_s"]) == 47 - right
    assert hpa["agreed_frac"] == pytest.approx(right / 47)
    if right == 47:
        assert hpa["desired"] == answer["desired"]
        assert (hpa["n_changes"], hpa["first_change_s"]) == (10, 338)


def test_what_policies_want_is_compared_row_by_row(tmp_path: Path) -> None:
    outcome = autoscale(tmp_path, written(tmp_path), "--policy", f"{RULE},fixed:3,kpa", "--silent-s", 0)
    assert outcome.exit_code == 0, outcome.err
    assert "kpa also reads gateway_queue_size, num_requests_waiting, which signals.csv lacks." in outcome.err
    answer = recorded(tmp_path)
    rule, fixed, _ = answer["policies"]
    assert answer["replicas"] == [1, 1, 2, 2] and answer["desired"] == [1, 2, 2, None]
    assert answer["replica_s"] == 1 * 30 + 2 * 30
    assert rule["desired"] == [1, 2, 2, 3]  # 30, 90, 2 * 50 and 2 * 60, over 50
    assert (rule["n_changes"], rule["first_change_s"], rule["agreed_frac"]) == (2, 15, 1)
    assert (rule["replica_s"], rule["differs_at_s"]) == (1 * 15 + 2 * 45, [])
    assert fixed["desired"] == [3] * 4 and fixed["settings"] is None
    assert (fixed["agreed_frac"], fixed["differs_at_s"], fixed["first_change_s"]) == (0, [0, 15, 30], None)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Replicas that policies want" in page and "recorded signals stay as they were" in page


def test_parquet_and_columns_of_pods_and_stamps_are_read_too(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "when": pd.to_datetime(["2025-11-24 16:00:00", "2025-11-24 16:00:15"]),
            "replicas": [2, 2],
            "num_requests_running/a": [30.0, 60.0],
            "running of b": [None, 60.0],
        }
    )
    frame.to_parquet(tmp_path / "signals.parquet")
    names = "time=when,num_requests_running/b=running of b"
    outcome = autoscale(tmp_path, tmp_path / "signals.parquet", "--policy", RULE, "--map", names)
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.startswith("target wants 15 replica-seconds, 30 recorded. ")
    answer = recorded(tmp_path)
    assert (answer["at_s"], answer["desired"], answer["silent_s"]) == ([0, 15], None, None)
    assert answer["policies"][0]["desired"] == [1, 3]
    frame.to_csv(tmp_path / "signals.csv", index=False)
    assert autoscale(tmp_path, tmp_path / "signals.csv", "--policy", RULE, "--map", names).exit_code == 0
    assert recorded(tmp_path)["policies"] == answer["policies"]


def test_pods_are_silent_for_a_typical_start_of_the_pool(tmp_path: Path) -> None:
    assert autoscale(tmp_path, written(tmp_path), "--policy", "fixed").exit_code == 0
    assert recorded(tmp_path)["silent_s"] == pytest.approx(5 + 16.06e9 / 1.7e9, rel=0.01)


def test_python_gives_the_same(tmp_path: Path) -> None:
    rule = {"kind": "target", "metric": "num_requests_running", "target": 50, "max_replicas": 4}
    autoscale(tmp_path, file := written(tmp_path), "--policy", RULE)
    answer = simserve.autoscale(tmp_path / "fleet.yaml", policies=[rule], recorded=file)
    assert answer.recorded is not None and answer.recorded.facts() == recorded(tmp_path)
    assert "target agrees at 2 of 3 instants" in repr(answer)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("time,replicas\n", [], "signals.csv: a column of a metric is missing, got time, replicas; name yours by "
         "--map OURS=THEIRS; metrics are num_requests_running, num_requests_waiting, "),
        ("replicas,kv_cache_usage_perc\n1,0.2\n", [], "a column at_s or time is missing, got replicas, kv_cache"),
        ("at_s,kv_cache_usage_perc\n1,0.2\n", [], "a column replicas is missing, got at_s, kv_cache_usage_perc"),
        ("at_s,replicas,kv_cache_usage_perc\n", [], "must have at least one row, got none; is it the right file?"),
        (SIGNALS.replace("30,2,", "5,2,"), [], "line 4: times must ascend from row to row, of one run alone, got"),
        (SIGNALS.replace("0,1,1", "0,1.5,1", 1), [], "line 2: replicas must be whole numbers, got 1.5; correct"),
        (SIGNALS.replace("0.6", "much"), [], "line 3: kv_cache_usage_perc must be a number, got 'much'"),
        (SIGNALS, ["--map", "kv=kv_cache_usage_perc"], "--map: must be OURS=THEIRS,..., got kv=kv_cache_usage_perc; "
         "ours are at_s, time, replicas, desired, num_requests_running, "),
        (SIGNALS, ["--map", "time=wen"], "--map time=wen: no such column; "),
        (SIGNALS, ["--policy", "{kind: target, metric: gateway_queue_size, target: 2, max_replicas: 3}"],
         " reads gateway_queue_size, got columns of kv_cache_usage_perc, num_requests_running alone; name"),
        (SIGNALS, ["--silent-s", -1], "--silent-s: must be from 0 to 86400, got -1.0"),
        (SIGNALS, ["--signals"], "--signals: has policies of its own, got others; leave out --policy and --recorded"),
        (None, ["--map", "time=at"], "--map, --silent-s: are of recorded signals, got none; give --recorded FILE, too"),
        ("", [], "a column at_s or time is missing, got none"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused(tmp_path: Path, text: str | None, arguments: list[object], message: str) -> None:
    file = None if text is None else written(tmp_path, text)
    outcome = autoscale(tmp_path, file, "--policy", RULE, *arguments)
    assert outcome.exit_code == 2
    assert message in outcome.err
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_absent_is_named(tmp_path: Path) -> None:
    for name in ("none.csv", "none.parquet"):
        outcome = autoscale(tmp_path, tmp_path / name, "--policy", RULE)
        assert outcome.exit_code == 2 and f"{name}: no such file" in outcome.err
    assert "got a folder; name the file in it" in autoscale(tmp_path, tmp_path, "--policy", RULE).err
