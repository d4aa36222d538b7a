"""Classes and tenants in the results: each against its own targets, and what nobody heeds is said."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.metrics.goodput import attainment, met_by_goal
from simserve.metrics.result_folder import load_results
from simserve.metrics.results import Results
from simserve.report.groups import group_tables
from simserve.report.headline import headline
from simserve.report.page import render
from simserve.report.run_view import RunView
from simserve.scenario import Scenario
from simserve.simulation import simulate
from tests.metrics.test_goodput import everything, requests

FIXED = {"kind": "fixed", "prompt_tokens": 300, "output_tokens": 20}
DATA: dict[str, Any] = {
    "schema": "simserve/1",
    "name": "classes",
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "cluster": {"pools": [{"scheduler": {"kind": "chunked", "policy": "priority"}}]},
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 10},
        "lengths": FIXED,
        "duration_s": 60,
        "tenants": {"a": 0.5, "<b>": 0.5},
        "batch": {"n_requests": 100, "lengths": FIXED, "priority": 5},
    },
    "slo": {"default": {"ttft_s": 1}, "classes": {"batch": {"e2e_s": 0.2}}},
}


@cache
def results() -> Results:
    return simulate(Scenario.from_dict(DATA))


def test_each_request_is_held_against_the_targets_of_its_own_class() -> None:
    columns = requests(["finished"] * 4 + ["rejected"], ttft_s=[0.1, 0.9, 0.9, 0.9, 0.1], e2e_s=[9.0, 9, 9, 99, 1])
    columns["slo_class"] = np.array(["", "", "bulk", "bulk", "bulk"])
    met = met_by_goal(columns, {"ttft_s": 0.5}, {"bulk": {"e2e_s": 10}})
    # A goal that a request has not is met when it finished: bulk has none for its first token.
    assert met["ttft_s"].tolist() == [True, False, True, True, False]
    assert met["e2e_s"].tolist() == [True, True, True, False, False]
    result = attainment(columns, everything(5), met)
    assert result is not None
    assert result.frac == 2 / 5


def test_a_class_without_targets_has_met_its_slo_when_it_finished() -> None:
    columns = requests(["finished", "unfinished"], ttft_s=[9.0, 9.0])
    columns["slo_class"] = np.array(["other", "other"])
    assert met_by_goal(columns, {}, {"chat": {"ttft_s": 1}})["ttft_s"].tolist() == [True, False]


def test_the_summary_tells_each_class_in_the_terms_of_the_whole() -> None:
    table, summary = results().requests, results().summary
    classes = summary["classes"]
    assert list(classes) == ["batch", "default"]  # who has no class is told as default
    assert classes["batch"]["requests"]["arrived"] == 100
    assert classes["batch"]["slo"] == {"e2e_s": 0.2}
    assert classes["default"]["slo"] == {"ttft_s": 1}
    of_batch = table[table.slo_class == "batch"]
    assert classes["batch"]["ttft_s"]["p99"] == pytest.approx(np.percentile(of_batch.ttft_s, 99))
    assert classes["batch"]["slo_attainment"]["frac"] == pytest.approx((of_batch.e2e_s <= 0.2).mean())
    assert classes["batch"]["priorities"] == [5]
    n_met = sum(result["slo_attainment"]["n_met"] for result in classes.values())
    assert summary["slo_attainment"]["n_met"] == n_met == table.slo_met.sum()
    goodput = sum(result["goodput"]["per_s"] for result in classes.values())
    assert summary["goodput"]["per_s"] == pytest.approx(goodput)
    served_per_s = sum(result["served_per_s"] for result in classes.values())
    assert summary["served_per_s"] == pytest.approx(served_per_s)


def test_tenants_are_told_apart_and_come_to_the_whole() -> None:
    tenants = results().summary["tenants"]
    assert list(tenants) == ["", "<b>", "a"]  # the job names none
    assert sum(result["requests"]["arrived"] for result in tenants.values()) == len(results().requests)


def test_the_verdict_names_the_class_that_fares_worst() -> None:
    text = headline(results().figures)
    assert text.startswith("Misses the SLO: of 2 classes, batch has the least margin: ")
    assert "of 100 requests meet E2E ≤ 200 ms" in text
    assert "E2E fails most" in text


def test_one_small_class_that_misses_is_a_miss_however_good_the_whole_looks() -> None:
    data = DATA | {"workload": DATA["workload"] | {"batch": DATA["workload"]["batch"] | {"n_requests": 2}}}
    result = simulate(
        Scenario.from_dict(data | {"slo": {"default": {"ttft_s": 1}, "classes": {"batch": {"e2e_s": 0.01}}}})
    )
    assert result.summary["slo_attainment"]["frac"] > 0.99
    assert "batch has the least margin: " in headline(result.figures)
    assert result.summary["decision"]["slo_class"] == "batch"


def test_the_page_and_the_terminal_have_a_row_a_class_with_names_made_harmless() -> None:
    page = render(results())
    assert '<section id="classes">' in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert [[each.heads[0], *(row.name for row in each.rows)] for each in group_tables(RunView(results().figures))] == [
        ["Class", "batch", "default"],
        ["Tenant", "(none)", "<b>", "a"],
    ]


def test_the_tables_carry_the_marks_and_a_result_is_read_back_with_its_classes(tmp_path: Path) -> None:
    results().write(tmp_path / "out")
    back = load_results(tmp_path / "out")
    assert back.facts.slo_classes == {"batch": {"e2e_s": 0.2}}
    assert set(back.requests.tenant) == {None, "a", "<b>"}
    assert set(back.requests.slo_class) == {None, "batch"}
    assert back.summary["classes"] == results().summary["classes"]


def test_without_classes_and_tenants_there_are_none() -> None:
    workload = {key: value for key, value in DATA["workload"].items() if key not in ("tenants", "batch")}
    result = simulate(Scenario.from_dict(DATA | {"workload": workload, "slo": {"ttft_s": 1}}))
    assert (result.summary["classes"], result.summary["tenants"], result.summary["slo_classes"]) == (None, None, {})
    assert group_tables(RunView(result.figures)) == []
    assert "a scheduler orders by priority and all requests have the same one" in result.summary["notes"]


def test_what_nobody_heeds_is_said(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    rows = "".join(f"{i},50,5,{i % 2},{'a' if i % 2 else ''}\n" for i in range(4))
    file.write_text("arrival_s,prompt_tokens,output_tokens,priority,slo_class\n" + rows, encoding="utf-8")
    data = DATA | {"cluster": {}, "workload": {"trace": {"path": str(file)}}, "slo": {"classes": {"b": {"e2e_s": 1}}}}
    notes = simulate(Scenario.from_dict(data)).summary["notes"]
    assert "no request is of class b, which has targets in slo.classes" in notes
    assert "class a has no targets of its own in slo.classes: every finished request meets its SLO" in notes
    assert "requests have priorities and no scheduler uses them: set chunked with policy: priority" in notes
    vtc = {"cluster": {"pools": [{"scheduler": {"policy": "vtc"}}]}}
    notes = simulate(Scenario.from_dict(data | vtc)).summary["notes"]
    assert "policy vtc shares among tenants, and no request has one: give workload.tenants" in notes
    named = {"tenants": {"small": 0.5, "large": 0.5}}
    weighed = {"pools": [{"scheduler": {"policy": "vtc", "vtc": {"tenant_weights": {"large": 2, "lrge": 2}}}}]}
    requested = {"workload": data["workload"] | named, "cluster": weighed}
    notes = simulate(Scenario.from_dict(data | requested)).summary["notes"]
    assert "no request is of tenant lrge, which vtc.tenant_weights names" in notes
    assert not any("tenant large" in note for note in notes)


def test_a_class_that_came_before_the_window_is_told() -> None:
    result = simulate(Scenario.from_dict(DATA | {"measure": {"warmup_s": 10}}))
    assert result.summary["classes"]["batch"]["requests"]["arrived"] == 0
    assert any(
        "no request of class batch arrived in the measured window" in text for text in result.summary["warnings"]
    )
    assert "default" not in headline(result.figures)[:40]
