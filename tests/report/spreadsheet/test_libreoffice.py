"""LibreOffice opens the workbook without a complaint, and computes what simserve wrote beside every formula."""

import shutil
import subprocess
from pathlib import Path

import pytest

from simserve.report.spreadsheet.exported import sheets_of
from simserve.report.spreadsheet.workbook import workbook
from tests.report.answers_by_hand import capacity_answer, replicas_answer, run_answer
from tests.report.spreadsheet.test_workbook import EVERYTHING
from tests.report.spreadsheets import OFFICE, address_of, computed, convert, formulas, values

pytestmark = pytest.mark.skipif(OFFICE is None, reason="no LibreOffice on this machine")


def test_it_computes_the_values_that_the_file_holds(tmp_path: Path) -> None:
    content = workbook(sheets_of(EVERYTHING))
    written, result = values(content), computed(content, tmp_path)
    assert len(formulas(content)) > 100
    assert written.keys() == result.keys()
    assert not [value for value in result.values() if isinstance(value, str) and value.startswith(("#", "Err:"))]
    for place, value in written.items():
        assert result[place] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-12)), place


def test_everything_follows_when_inputs_change(tmp_path: Path) -> None:
    """18 requests/s on two replicas of two GPUs: 9 a replica; all of it used, for 12 requests/s at 5 dollars."""
    content = workbook(sheets_of([run_answer(), capacity_answer()]))
    changed = {
        "capacity_per_unit": 9.0,
        "price_per_gpu_hour_h100_sxm": 5.0,
        "target_frac": 1.0,
        "growth_per_month": 0.5,
        "months_ahead": 2.0,
    }
    changed |= {"spare_units": 1.0, "good_frac": 0.5, "hours_per_month": 700.0, "mean_frac": 0.5}
    result = computed(content, tmp_path, {address_of(content, name): value for name, value in changed.items()})

    def at(name: str) -> float:
        return float(result[address_of(content, name)])

    assert (at("units_today"), at("gpus_today")) == (3, 6)  # 12 / 9 rounded up, and 1 spare
    assert at("usd_per_month_today") == 6 * 5 * 700
    assert at("requests_per_month_today") == 12 * 0.5 * 3600 * 700
    assert at("usd_per_million_good_output_tokens_today") == pytest.approx(21_000 / (15.12e6 * 100 * 0.5) * 1e6)
    assert (at("demand_then"), at("units_then")) == (27, 4)  # 27 / 9 is 3
    months = [result["Growth", f"F{row}"] for row in range(4, 17)]
    assert months[:5] == [
        21_000,
        21_000,
        28_000,
        42_000,
        56_000,
    ]  # 12, 18, 27, 40.5 and 60.75 requests/s: 2, 2, 3, 5, 7 + 1
    assert result["Growth", "I16"] == sum(months[1:])


def test_the_cost_follows_what_a_capacity_says_one_replica_holds(tmp_path: Path) -> None:
    """4 requests/s instead of 9: three replicas at 80% of it are not enough for 12, four are."""
    content = workbook(sheets_of([run_answer(), capacity_answer()]))
    result = computed(content, tmp_path, {address_of(content, "capacity_per_unit"): 4.0})
    assert result[address_of(content, "holds_per_s")] == 4
    assert result[address_of(content, "units_today")] == 4


def test_fleets_are_looked_up_among_the_simulated_and_paid_in_three_ways(tmp_path: Path) -> None:
    """Three replicas of two GPUs hold 12 requests/s: none fewer for 4, four for 13, and one is spare."""
    content = workbook(sheets_of([replicas_answer()]))
    changed = {"spare_units": 1.0, "reserved_discount": 0.25, "usd_per_gpu": 24_000.0, "years_owned": 4.0}
    changed |= {"watts_per_gpu": 1000.0, "pue": 1.5, "usd_per_kwh": 0.2, "hours_per_month": 730.0}

    def at(demand: float, *names: str) -> list[float]:
        inputs = changed | {"demand_per_s": demand}
        result = computed(content, tmp_path, {address_of(content, name): number for name, number in inputs.items()})
        assert not [value for value in result.values() if isinstance(value, str) and value.startswith(("#", "Err:"))]
        return [result[address_of(content, f"{name}_today")] for name in names]

    assert at(4.0, "units") == [4]
    units, gpus, whole, reserved, owned = at(13.0, "units", "gpus", "usd_per_month", "usd_reserved", "usd_owned")
    assert (units, gpus, whole, reserved) == (5, 10, 10 * 3 * 730, 10 * 3 * 730 * 0.75)
    assert owned == pytest.approx(10 * (24_000 / 48 + 1.5 * 730 * 0.2))


@pytest.mark.thorough
def test_an_input_that_is_cleared_leaves_empty_cells_and_no_error(tmp_path: Path) -> None:
    content = workbook(sheets_of([run_answer(), capacity_answer()]))
    cleared = ("holds_per_s", "demand_per_s", "output_tokens", "price_per_gpu_hour_h100_sxm", "good_frac")
    result = computed(content, tmp_path, {address_of(content, name): 0.0 for name in cleared})
    assert not [value for value in result.values() if isinstance(value, str) and value.startswith(("#", "Err:"))]
    assert address_of(content, "units_today") not in result


@pytest.mark.thorough
def test_it_is_printed_a_page_wide(tmp_path: Path) -> None:
    if shutil.which("pdfinfo") is None:
        pytest.skip("no pdfinfo on this machine")
    (tmp_path / "book.xlsx").write_bytes(workbook(sheets_of(EVERYTHING)))
    pages = convert(tmp_path / "book.xlsx", tmp_path / "out", "pdf")
    sentence = subprocess.run(["pdfinfo", str(pages)], capture_output=True, text=True, check=True).stdout
    n_pages = int(sentence.split("Pages:")[1].split()[0])
    assert len(sheets_of(EVERYTHING)) <= n_pages <= 2 * len(sheets_of(EVERYTHING))
