"""`simserve trace`: look at, convert, draw and fit traces."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.invoke import invoke

POISSON = "{kind: poisson, rate_per_s: 8}"
FIXED = "{kind: fixed, prompt_tokens: 64, output_tokens: 8}"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"


def draw(out: Path, *options: object) -> Path:
    outcome = invoke("trace", "generate", out, "--arrivals", POISSON, "--lengths", FIXED, *options)
    assert outcome.exit_code == 0, outcome.err
    return out


def test_a_trace_is_drawn_as_a_scenario_writes_its_load(tmp_path: Path) -> None:
    lines = draw(tmp_path / "drawn.csv", "--n-requests", 50).read_text().splitlines()
    assert lines[0] == "arrival_s,prompt_tokens,output_tokens"
    assert len(lines) == 51
    assert all(line.endswith(",64,8") for line in lines[1:])


def test_the_same_seed_draws_the_same_trace_and_another_seed_another(tmp_path: Path) -> None:
    seeds = {"first": 1, "again": 1, "other": 2}
    drawn = {name: draw(tmp_path / f"{name}.csv", "--n-requests", 50, "--seed", seed) for name, seed in seeds.items()}
    texts = {name: file.read_text() for name, file in drawn.items()}
    assert texts["first"] == texts["again"] != texts["other"]


def test_a_trace_can_be_drawn_for_a_time(tmp_path: Path) -> None:
    lines = draw(tmp_path / "drawn.csv", "--duration-s", 20).read_text().splitlines()
    assert all(float(line.split(",")[0]) < 20 for line in lines[1:])


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--n-requests", "5", "--duration-s", "5"],
        ["--n-requests", "0"],
        ["--duration-s", "0"],
        ["--duration-s", "nan"],
        ["--duration-s", "inf"],
        ["--duration-s", "1e-9"],
        ["--n-requests", "5", "--arrivals", "{kind: poison}"],
        ["--n-requests", "5", "--arrivals", "{kind: poisson, rate_per_s: -8}"],
        ["--n-requests", "5", "--arrivals", "{kind: poisson"],
        ["--n-requests", "5", "--arrivals", "[1, 2]"],
        ["--n-requests", "5", "--lengths", "{kind: fixed, prompt_tokens: 0, output_tokens: 8}"],
        ["--n-requests", "5", "--lengths", "7"],
    ],
    ids=" ".join,
)
def test_a_bad_draw_is_2_and_writes_nothing(tmp_path: Path, options: list[str]) -> None:
    out = tmp_path / "drawn.csv"
    given = {"--arrivals": POISSON, "--lengths": FIXED}
    missing = [word for option, spec in given.items() if option not in options for word in (option, spec)]
    outcome = invoke("trace", "generate", out, *options, *missing)
    assert outcome.exit_code == 2
    assert outcome.out == ""
    assert outcome.err
    assert not out.exists()


def test_converting_keeps_every_number(tmp_path: Path) -> None:
    first = draw(tmp_path / "a.csv", "--n-requests", 50)
    assert invoke("trace", "convert", first, tmp_path / "b.parquet").exit_code == 0
    assert pq.read_table(tmp_path / "b.parquet").num_rows == 50
    assert invoke("trace", "convert", tmp_path / "b.parquet", tmp_path / "c.csv").exit_code == 0
    again = [line.split(",")[1:] for line in (tmp_path / "c.csv").read_text().splitlines()]
    assert again == [line.split(",")[1:] for line in first.read_text().splitlines()]


def test_a_trace_is_written_as_csv_or_parquet_only(tmp_path: Path) -> None:
    outcome = invoke("trace", "convert", draw(tmp_path / "a.csv", "--n-requests", 5), tmp_path / "b.xlsx")
    assert outcome.exit_code == 2
    assert ".csv or .parquet" in outcome.err
    assert not (tmp_path / "b.xlsx").exists()


def test_info_tells_rate_burstiness_and_lengths(tmp_path: Path) -> None:
    outcome = invoke("trace", "info", draw(tmp_path / "a.csv", "--n-requests", 500))
    assert outcome.exit_code == 0
    assert re.search(r"^n_requests +500$", outcome.out, re.MULTILINE)
    assert re.search(r"^gap_cv +[01]\.\d+$", outcome.out, re.MULTILINE)
    assert re.search(r"^prompt_tokens +mean 64 .*p50 64 .*max 64$", outcome.out, re.MULTILINE)
    assert outcome.err == ""


def test_info_as_json_is_machine_readable(tmp_path: Path) -> None:
    outcome = invoke("trace", "info", draw(tmp_path / "a.csv", "--n-requests", 500), "--json")
    assert json.loads(outcome.out)["n_requests"] == 500


def test_info_warns_of_stamps_that_are_coarser_than_the_gaps(tmp_path: Path) -> None:
    rows = [f"{3 * (row // 10)},10,10" for row in range(100)]
    file = tmp_path / "coarse.csv"
    file.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    outcome = invoke("trace", "info", file)
    assert "warning: " in outcome.err
    assert "steps of 3 s" in outcome.err
    assert "spread: uniform" in outcome.err


def test_info_warns_of_rows_that_were_sorted(tmp_path: Path) -> None:
    file = tmp_path / "unsorted.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n2,1,1\n1,1,1\n")
    outcome = invoke("trace", "info", file)
    assert outcome.exit_code == 0
    assert "sorted" in outcome.err


@pytest.mark.parametrize(
    "content", [None, "", "arrival_s,prompt_tokens,output_tokens\n", "arrival_s,prompt_tokens,output_tokens\n1,x,2\n"]
)
def test_what_is_not_a_trace_is_2_and_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "bad.csv"
    if content is not None:
        file.write_text(content)
    outcome = invoke("trace", "info", file)
    assert outcome.exit_code == 2
    assert outcome.err.startswith(f"simserve: error: {file}")


def test_a_profile_that_was_fitted_can_be_drawn_from(tmp_path: Path) -> None:
    profile = tmp_path / "mine.json"
    fitted = invoke("trace", "fit", draw(tmp_path / "a.csv", "--n-requests", 300), profile, "--source", "a test")
    assert (fitted.exit_code, fitted.out) == (0, f"{profile}\n")
    assert json.loads(profile.read_text())["source"] == "a test"
    lines = draw(tmp_path / "b.csv", "--n-requests", 20, "--lengths", f"{{kind: profile, name: {profile}}}")
    assert all(line.endswith(",64,8") for line in lines.read_text().splitlines()[1:])


def test_a_trace_too_short_for_a_profile_is_2(tmp_path: Path) -> None:
    short = draw(tmp_path / "a.csv", "--n-requests", 20)
    outcome = invoke("trace", "fit", short, tmp_path / "mine.json")
    assert outcome.exit_code == 2
    assert outcome.err.startswith(f"simserve: error: {short}: a profile needs at least")
    assert not (tmp_path / "mine.json").exists()


def test_the_azure_trace_is_told_as_it_is() -> None:
    file = DATA / "azure_llm_2023_conv.csv"
    if not file.exists():
        pytest.skip(f"no {file.name} beside the checkout")
    assert json.loads(invoke("trace", "info", file, "--json").out)["n_requests"] == 19_366
