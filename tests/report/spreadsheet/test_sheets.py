"""What stands in each sheet, worked out from answers made by hand."""

import csv
import io
from typing import Any

import pytest

from simserve.metrics.result_folder import ResultFolder
from simserve.report.spreadsheet.cost_sources import cost_basis
from simserve.report.spreadsheet.exported import sheets_of
from simserve.report.spreadsheet.sheets import Cell, Sheet, cell_of, csv_files
from simserve.report.tell import tell
from simserve.report.text import document_text
from simserve.tables.folder import EXPORT
from tests.report.answers_by_hand import (
    capacity_answer,
    capacity_json,
    check_answer,
    comparison_answer,
    estimate,
    plan_answer,
    plan_json,
    point,
    ratio_answer,
    replicas_answer,
    replicas_json,
    run_answer,
    sweep_answer,
    timeseries,
)
from tests.report.spreadsheets import SHEETS


def sheet(name: str, *sources: ResultFolder) -> Sheet:
    return next(result for result in sheets_of(sources) if result.name == name)


def rows(result: Sheet) -> list[dict[str, Any]]:
    """Rows by the heads of their columns, the group's under `group`."""
    heads = ["group", *(column.head for column in result.columns)]
    return [
        dict(zip(heads, (group.title, *(cell_of(value).value for value in row)), strict=True))
        for group in result.groups
        for row in group.rows
    ]


def test_each_result_fills_its_sheets() -> None:
    def names(*sources: ResultFolder) -> list[str]:
        return [result.name for result in sheets_of(sources)]

    assert names(run_answer()) == ["Summary", "Percentiles", "Time series", "Cost", "Growth"]
    assert names(capacity_answer()) == ["Summary", "Capacity curve", "Cost", "Growth"]
    assert names(check_answer()) == ["Summary"]
    assert names(comparison_answer()) == ["Summary", "Comparison"]
    assert names(plan_answer()) == ["Summary", "Fleet options", "Simulated fleets", "Cost", "Growth"]
    assert names(sweep_answer()) == ["Summary", "Fleet options", "Cost", "Growth"]
    fleets = ["Fleet options", "Simulated fleets"]
    assert names(replicas_answer()) == ["Summary", "Capacity curve", *fleets, "Cost", "Growth"]
    everything = run_answer(), capacity_answer(), comparison_answer(), plan_answer()
    assert tuple(names(*everything)) == SHEETS


def test_every_row_has_a_value_for_every_column() -> None:
    everything = (
        run_answer(),
        capacity_answer(),
        replicas_answer(),
        check_answer(),
        comparison_answer(),
        plan_answer(),
        sweep_answer(),
    )
    for result in sheets_of(everything):
        assert all(len(row) == len(result.columns) for group in result.groups for row in group.rows), result.name


def test_the_summary_begins_with_the_answers() -> None:
    result = rows(sheet("Summary", run_answer(), capacity_answer(), plan_answer(), check_answer()))
    answers = {row["group"]: row["Value"] for row in result if row["Item"] == "Answer"}
    assert answers["Run chat"].startswith("Meets the SLO: The goal is 99%. 99.9% (95% CI 99.5–100%) of 1,200 ")
    assert answers["Capacity chat"].startswith("p99 goodput of chat: 18.0 req/s on 4 GPUs")
    assert answers["Plan chat"] == "Take h100-sxm TP 2."
    assert answers["Check chat"].startswith(
        "Regression: p99 goodput fell 6.2% (95% CI 5.1–7.3%), above the 2% tolerance"
    )
    checked = {row["Item"]: row["Value"] for row in result if row["group"] == "Check chat"}
    assert checked["p99 goodput of the baseline (requests/s)"] == 12.9
    assert checked["p99 goodput now (requests/s)"] == 12.1
    text = {row["Item"]: row["Value"] for row in result if row["group"] == "Run chat"}
    assert text["Pool serve"] == (
        "2 replicas of llama-3.1-8b on 2 × h100-sxm (vllm 0.19, chunked; costs of h100-sxm/vllm 0.24.0)"
    )
    assert (text["Goodput per GPU (requests/s)"], text["Seed"]) == (2.997, 7)
    assert text["What to trust"].startswith("=1+1 is what a load was called")
    assert [row["Item"] for row in result if row["group"] == "Sheets"] == [
        "Percentiles",
        "Time series",
        "Capacity curve",
        "Fleet options",
        "Simulated fleets",
        "Cost",
        "Growth",
    ]


def test_the_numbers_of_an_answer_follow_it_and_its_chart_stands_on_the_first_sheet() -> None:
    first = sheet("Summary", run_answer(), capacity_answer(), plan_answer(), sweep_answer(), comparison_answer())
    after = {group.title: [str(row[0]) for row in group.rows[1:4]] for group in first.groups}
    assert after["Plan chat"][:2] == ["Cost a month (USD)", "GPUs"]
    assert after["Capacity chat"][0] == "Capacity (requests/s)"
    assert after["Sweep chat"][0] == "Cost of the cheapest that meets the SLO (USD/h)"
    assert [(home.name, chart.title.partition(":")[0]) for home, chart in first.borrowed] == [
        ("Percentiles", "Latency of chat"),
        ("Capacity curve", "Requests that meet every SLO"),
        ("Fleet options", "Cost a month"),
    ]
    assert not sheet("Summary", check_answer()).borrowed


def test_percentiles_are_milliseconds_with_the_goal_beside_them() -> None:
    result = {row["Latency"]: row for row in rows(sheet("Percentiles", run_answer()))}
    assert list(result) == ["TTFT", "TPOT", "ITL", "E2E", "Queue"]
    ttft = result["TTFT"]
    assert (ttft["p50"], ttft["p99"], ttft["p99.9"], ttft["max"]) == (100.0, 400.0, 500.0, 600.0)
    assert (ttft["SLO"], ttft["within SLO"]) == (500.0, 1.0)
    assert (ttft["p99 low, by costs"], ttft["p99 high, by costs"]) == (350.0, 450.0)
    assert (result["E2E"]["SLO"], result["E2E"]["p99 low, by costs"]) == (None, None)


def test_a_run_that_knows_how_far_chance_goes_says_so() -> None:
    latency = {"n": 10, "p99": 0.4, "intervals": {"p99": [0.35, None]}}
    ttft = rows(sheet("Percentiles", run_answer(ttft_s=latency)))[0]
    assert (ttft["p99"], ttft["p99 low, by chance"], ttft["p99 high, by chance"]) == (400.0, 350.0, None)


def test_classes_have_percentiles_of_their_own() -> None:
    chats = {"slo": {"ttft_s": 0.2}, "requests": {"arrived": 10}, "ttft_s": {"n": 10, "p99": 0.1}}
    result = rows(sheet("Percentiles", run_answer(classes={"chats": chats})))
    own = next(row for row in result if row["group"] == "chat: chats" and row["Latency"] == "TTFT")
    assert (own["n"], own["p99"], own["SLO"]) == (10, 100.0, 200.0)


def test_nothing_answered_is_empty_cells_and_no_chart() -> None:
    nothing: dict[str, Any] = {
        key: {"n": 0, "p50": None, "p99": None} for key in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")
    }
    result = sheet("Percentiles", run_answer(**nothing, prediction=None))
    assert {row["p99"] for row in rows(result)} == {None}
    assert result.charts == ()


def test_the_time_series_has_a_row_a_pool_and_interval_and_its_charts() -> None:
    result = sheet("Time series", run_answer())
    first = rows(result)[1]
    assert (first["Pool"], first["From"], first["To"], first["Queue"], first["Longest queue"]) == ("serve", 1, 2, 3, 2)
    assert len(result.charts) == 3
    assert "reduced" not in result.note


def test_a_long_series_is_reduced_and_says_so() -> None:
    long = ResultFolder("run", "chat", run_answer().answer, timeseries(1, 1500))
    result = sheet("Time series", long)
    assert len(rows(result)) == 500
    assert result.note.endswith("Evenly reduced: a row is 3 neighboring intervals; timeseries.parquet has all.")


def test_the_capacity_curve_has_a_row_a_load_and_charts_with_limits() -> None:
    result = sheet("Capacity curve", capacity_answer(curve=[point(17.0, 0.995), point(18.5, 0.98)]))
    table = rows(result)
    assert [row["Offered"] for row in table] == [12.0, 17.0, 18.5, 20.0]  # none twice
    assert [row["Offered per GPU"] for row in table] == [3.0, 4.25, 4.625, 5.0]
    assert table[0]["TTFT p99"] == 480.0 and table[0]["TTFT limit"] == 500.0 and table[0]["Goal"] == 0.99
    assert "E2E limit" not in table[0] and "Clients" not in table[0]  # nobody asked
    latency, attained = result.charts
    assert [series.column for series in latency.series] == ["TTFT p99", "TTFT limit", "TPOT p99", "TPOT limit"]
    assert latency.across == "Offered" and latency.is_log
    assert [series.is_limit for series in attained.series] == [False, True]


def test_a_capacity_of_clients_and_of_replicas_is_drawn_against_them() -> None:
    clients = [point(5.0, 1.0, scale=64.0, concurrency=64), point(6.0, 0.9, scale=128.0, concurrency=128)]
    answer = capacity_json()["answer"] | {"concurrency": estimate(100.0), "clients_per_gpu": 25.0}
    answer |= {"requests_per_s": 5.5, "output_tokens_per_s": 550.0, "enough_turns": True}
    result = sheet("Capacity curve", capacity_answer(asked="concurrency", points=clients, answer=answer))
    assert [row["Clients"] for row in rows(result)] == [64, 128]
    assert result.charts[0].across == "Clients"
    assert sheet("Capacity curve", replicas_answer()).charts[0].across == "Replicas"


def test_splits_of_prefill_and_decode_are_rows_of_what_they_hold() -> None:
    result = sheet("Capacity curve", ratio_answer({"1:3": 8.0, "2:2": 16.0, "together": 12.0}))
    heads = [column.head for column in result.columns]
    text = [dict(zip(heads, row, strict=True)) for row in result.groups[0].rows]
    assert [(row["Split"], row["Holds"], row["Holds per GPU"]) for row in text] == [
        ("1:3", 8.0, 2.0),
        ("2:2", 16.0, 4.0),
        ("together", 12.0, 3.0),
    ]
    assert result.charts == ()


def test_a_comparison_has_its_units_and_its_verdicts() -> None:
    first, second = rows(sheet("Comparison", comparison_answer()))
    assert (first["group"], first["Measure"], first["Unit"]) == ("=new against old", "p99 TTFT", "ms")
    assert (first["A"], first["B"], first["B − A"], first["B is"]) == (400.0, 200.0, -200.0, "better")
    assert (second["Unit"], second["B − A, low"], second["Change"]) == ("/s", None, 0.0)


def test_options_of_a_plan_cost_what_the_plan_says() -> None:
    best, other, refused = rows(sheet("Fleet options", plan_answer()))
    assert (best["group"], best["Option"], best["GPUs"], best["Cost a month"]) == (
        "Plan chat",
        "h100-sxm TP 2",
        10,
        21_900,
    )
    tokens = 12.0 * 730 * 3600 * 100
    assert best["Per million output tokens"] == pytest.approx(21_900 / tokens * 1e6)
    assert best["Per million good tokens"] == pytest.approx(21_900 / (0.99 * tokens) * 1e6)
    assert other["Cost a month"] == 40 * 730
    assert (refused["Option"], refused["Cost a month"], refused["Reason"]) == ("=a card", None, "-1 heads")


def test_points_of_a_sweep_have_their_goodput_and_the_reason_of_those_that_failed() -> None:
    result = sheet("Fleet options", sweep_answer())
    first, second, failed = rows(result)
    assert first["Option"] == "0: gpu h100-sxm, replicas 2"
    assert (first["Cost a month"], first["Goodput"], first["On the front"]) == (6 * 730, 10.0, "yes")
    assert first["Per million good requests"] == pytest.approx(6 / 36_000 * 1e6)
    assert (second["Meets the goal"], second["On the front"]) == ("no", "no")
    assert (failed["State"], failed["Reason"], failed["Cost a month"]) == ("failed", "no such card", None)
    assert result.charts[0].kind == "points"


def input_of(label: str, *sources: ResultFolder) -> tuple[Cell, str]:
    """The cell of an input, and where it comes from."""
    row = next(row for row in sheet("Cost", *sources).groups[0].rows if row[0] == label)
    return cell_of(row[1]), str(cell_of(row[4]).value)


def test_what_one_replica_holds_is_one_number_that_the_cost_sheet_refers_to() -> None:
    """The capacity says 18 requests/s on two replicas; the run of the same scenario would say 12."""
    sources = run_answer(), capacity_answer(scenario={"name": "chat", "digest": "0123abcd"})
    (row,) = [row for row in sheet("Summary", *sources).groups[1].rows if str(row[0]).startswith("One replica holds")]
    source = cell_of(row[1])
    assert (row[0], source.value, source.name) == ("One replica holds (requests/s)", 9.0, "capacity_per_unit")
    holds, text = input_of("One replica holds", *sources)
    assert (holds.value, holds.formula, holds.name) == (9.0, "=capacity_per_unit", "holds_per_s")
    assert text == "Capacity of chat: 18.0 requests/s on 4 GPUs."
    (needed,) = [row for row in rows(sheet("Cost", *sources)) if row["Item"] == "Replicas needed"]
    assert needed["Where it comes from"].startswith("Linear estimate:")
    assert "pooling gains left out" in needed["Where it comes from"]


def test_fleets_that_were_simulated_come_before_a_capacity_divided_by_its_replicas() -> None:
    """Three replicas hold 12 requests/s: the capacity of the same scenario and unit would say two."""
    for sources in ((capacity_answer(), replicas_answer()), (replicas_answer(), capacity_answer())):
        holds, _ = input_of("One replica holds", *sources)
        assert (holds.value, holds.formula, holds.limits) == (4.0, "=SUMPRODUCT(MAX(met_loads/met_replicas))", None)
    other = capacity_answer(), replicas_answer(scenario={"name": "chat", "digest": "89ef4567", "seed": 7})
    assert input_of("One replica holds", *other)[0].value == 9.0
    assert "Simulated fleets" not in [each.name for each in sheets_of(other)]


def test_simulated_fleets_are_those_that_ran_with_the_ones_that_meet_first() -> None:
    growth = {"outgrown_month": 1, "rows": [{"month": 1, "offered_per_s": 30.0, "replicas": 6, "gpus": 12}]}
    option = plan_json()["options"][0] | {"fewer_attained_frac": 0.97, "r": 0.9, "probability": 0.96, "decision": "met"}
    table = rows(sheet("Simulated fleets", plan_answer(options=[option], growth=growth)))
    assert [(row["Replicas"], row["Load"], row["Attained"]) for row in table] == [
        (4, 24.0, 0.992),
        (5, 30.0, None),
        (3, 24.0, 0.97),
    ]
    assert [row["group"] for row in table] == ["Meets the goal"] * 2 + ["Does not surely meet it"]
    assert (table[0]["r"], table[0]["P (goal met)"], table[0]["Decision"]) == (0.9, 0.96, "met")
    assert [row["Replicas"] for row in rows(sheet("Simulated fleets", replicas_answer()))] == [3, 4, 2]


@pytest.mark.parametrize(
    "study", [capacity_answer(), replicas_answer(), check_answer(), comparison_answer(), plan_answer(), sweep_answer()]
)
def test_answers_are_in_the_words_of_the_terminal(study: ResultFolder) -> None:
    terminal = " ".join(document_text(tell(study.answer)).split())
    answers = [str(row["Value"]) for row in rows(sheet("Summary", study)) if row["Item"] == "Answer"]
    assert answers
    assert all(" ".join(text.split()) in terminal for text in answers)


def test_a_price_that_a_division_left_is_the_same_price() -> None:
    """A typed 2.40 for three GPUs is 0.8 a GPU, but for the last place."""
    assert 2.4 / 3 != 0.8
    options = [option | {"usd_per_gpu_hour": 0.8} for option in plan_json()["options"][:1]]
    fleet = replicas_json()["answer"]["fleet"] | {"n_gpus": 3, "usd_per_hour": 2.4}
    changed = replicas_answer(answer=replicas_json()["answer"] | {"fleet": fleet})
    sources = plan_answer(options=options), changed
    result = sheet("Fleet options", *sources)
    place = next(place for place, column in enumerate(result.columns) if column.head == "Price")
    prices = [cell_of(group.rows[0][place]).formula for group in result.groups]
    assert prices == ["=price_per_gpu_hour_h100_sxm"] * 2


def test_a_price_follows_the_cost_sheet_unless_that_has_another() -> None:
    def price(*sources: ResultFolder) -> Cell:
        result = sheet("Fleet options", *sources)
        place = next(place for place, column in enumerate(result.columns) if column.head == "Price")
        return cell_of(result.groups[0].rows[0][place])

    same = price(replicas_answer(), run_answer())
    assert (same.value, same.formula) == (3.0, "=price_per_gpu_hour_h100_sxm")
    expensive = plan_json()["options"][0] | {"usd_per_gpu_hour": 9.0}
    own = price(replicas_answer(), plan_answer(options=[expensive]))
    assert (own.value, own.formula, own.limits) == (3.0, None, (0, 1e4))


def test_costs_are_told_with_where_each_input_comes_from() -> None:
    result = rows(sheet("Cost", run_answer(), capacity_answer()))
    inputs = {row["Item"]: row for row in result if row["group"] == "Inputs"}
    assert inputs["One replica holds"]["Value"] == 9.0
    assert inputs["One replica holds"]["Where it comes from"] == "Capacity of chat: 18.0 requests/s on 4 GPUs."
    assert inputs["Prompt tokens"]["Where it comes from"] == "Run chat: mean of what was answered."
    outputs = {row["Item"]: row for row in result if row["group"] == "Outputs"}
    assert outputs["Replicas needed"]["Value"] == 2  # 12 / (9 * 0.8) is 1.67
    assert outputs["Cost a month"]["Value"] == 4 * 3 * 730
    assert all(row["Where it comes from"] for row in result if row["group"] != "Outputs")


def test_growth_is_month_by_month() -> None:
    table = rows(sheet("Growth", capacity_answer()))
    assert [row["Month"] for row in table] == list(range(13))
    assert table[12]["Demand"] == pytest.approx(12 * 1.05**12)
    assert [row["Units"] for row in table[3:6]] == [2, 3, 3]  # 13.9, 14.6 and 15.3 requests/s at 7.2 a replica
    assert table[12]["Cost so far"] == sum(row["Cost a month"] for row in table[1:])


def test_growth_has_what_a_plan_found_by_simulation_beside_it() -> None:
    result = [{"month": month, "offered_per_s": 24.0, "replicas": 5, "gpus": 10 + month} for month in range(13)]
    grown = sheet("Growth", plan_answer(growth={"outgrown_month": 1, "rows": result}))
    assert [row["GPUs by simulation"] for row in rows(grown)] == list(range(10, 23))
    assert grown.note.endswith("it follows no input.")
    assert "GPUs by simulation" not in rows(sheet("Growth", plan_answer(growth=None)))[0]


def test_csv_has_units_in_its_heads_and_numbers_in_full() -> None:
    files = csv_files(sheets_of([run_answer(offered_per_s=1 / 3), comparison_answer()]))
    assert list(files) == [
        "summary.csv",
        "percentiles.csv",
        "time_series.csv",
        "comparison.csv",
        "cost.csv",
        "growth.csv",
    ]
    table = list(csv.reader(io.StringIO(files["percentiles.csv"])))
    assert table[0][:4] == ["Run", "Latency", "n", "mean (ms)"]
    assert all(len(row) == len(table[0]) for row in table)
    assert "0.3333333333333333," in files["cost.csv"]


def test_csv_leaves_nothing_for_a_spreadsheet_to_compute() -> None:
    """Text that begins like a formula stands behind an apostrophe; numbers below zero do not."""
    files = csv_files(sheets_of([comparison_answer(), plan_answer(sentence="@SUM(A1)")]))
    assert "'=new against old,p99 TTFT,ms,400.0,200.0,-200.0" in files["comparison.csv"]
    assert "Plan chat,Answer,'@SUM(A1)" in files["summary.csv"]
    assert "'=a card" in files["fleet_options.csv"] and "'-1 heads" in files["fleet_options.csv"]


def test_every_csv_file_may_lie_in_the_folder() -> None:
    assert {f"{name.lower().replace(' ', '_')}.csv" for name in SHEETS} == EXPORT.files


def test_costs_rest_on_the_load_to_count_on_which_needs_no_headroom_beside() -> None:
    answer = capacity_json()["answer"]
    load = answer["offered_per_s"] | {"total": [15.0, 21.0], "count_on": 16.0, "at_confidence": 0.95}
    surely, simulated = (
        cost_basis([capacity_answer(answer=answer | {"offered_per_s": each})])
        for each in (load, answer["offered_per_s"])
    )
    assert surely is not None and simulated is not None
    assert (surely.holds_per_s.value, simulated.holds_per_s.value) == (8.0, 9.0)  # of two replicas
    assert surely.demand_per_s.value == simulated.demand_per_s.value == 12.0
    assert surely.target_frac.value == 1.0 > (simulated.target_frac.value or 0.0)
    labels = [each["Item"] for each in rows(sheet("Summary", capacity_answer(answer=answer | {"offered_per_s": load})))]
    assert sum("Capacity, to count on" in label or "low with cost error" in label for label in labels) == 2
