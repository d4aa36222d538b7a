"""`simserve calibrate`: a table of one's own becomes a calibration file, and a bad one leaves nothing behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simserve.cost.calibration import read_calibration
from simserve.cost.forms.attention import DecodeAttention, PrefillAttention
from simserve.cost.forms.gemm import Gemm
from tests.cli.invoke import Outcome, invoke
from tests.cost.specs import H100
from tests.lab.kernels.timings import DECODE, GEMM, HEADS, PREFILL, timings

TIMINGS = timings()


def calibrate(folder: Path, table: pd.DataFrame) -> Outcome:
    """Fit a table into `folder`/out."""
    table.to_csv(folder / "mine.csv", index=False)
    return calibrate_file(folder, folder / "mine.csv")


def calibrate_file(folder: Path, file: Path, *more: object) -> Outcome:
    """Fit a table of a card that is written as people do."""
    return invoke("calibrate", "H100-SXM", "--engine", "vllm", "--from", file, "--out", folder / "out", *more)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """The file that the sound table gives, and what was printed."""
    folder = tmp_path_factory.mktemp("fitted")
    outcome = calibrate(folder, TIMINGS)
    return folder / "out" / "h100-sxm" / "vllm.json", outcome


def test_a_table_of_ones_own_becomes_a_calibration(fitted: tuple[Path, Outcome]) -> None:
    path, outcome = fitted
    assert outcome.exit_code == 0, outcome.err
    assert f"wrote {path}" in outcome.err
    assert "warning" not in outcome.err
    assert [line.split()[:2] for line in outcome.out.splitlines()[1:]] == [
        ["gemm", "bf16"],
        ["prefill_attention", "bf16"],
        ["decode_attention", "bf16"],
    ]
    made = json.loads(path.read_text())["made"]
    assert [(source["file"], source["n_rows"]) for source in made["from"]] == [("mine.csv", len(TIMINGS))]


def test_the_fit_gives_back_the_times_that_it_was_made_from(fitted: tuple[Path, Outcome]) -> None:
    forms = read_calibration(fitted[0]).forms
    gemm, prefill, decode = (forms[op, "bf16"] for op in ("gemm", "prefill_attention", "decode_attention"))
    assert isinstance(gemm, Gemm)
    assert isinstance(prefill, PrefillAttention)
    assert isinstance(decode, DecodeAttention)
    for m in (1, 48, 700, 5000):  # none of them in the table
        shape = (H100, "bf16", m, 6144, 4096)
        assert gemm.seconds(*shape) == pytest.approx(GEMM.seconds(*shape), rel=0.04)
    for heads in HEADS:
        tokens, pairs = 6000.0, 6000.0 * 6001 / 2
        found_s, true_s = (form.at(H100, *heads, "bf16").seconds(tokens, pairs, tokens) for form in (prefill, PREFILL))
        assert found_s == pytest.approx(true_s, rel=0.05)
        result, true = (np.array(form.line(H100, *heads, "bf16", 100)) for form in (decode, DECODE))
        assert result @ [1, 3e5] == pytest.approx(true @ [1, 3e5], rel=0.05)


def test_a_second_run_writes_the_same_bytes(fitted: tuple[Path, Outcome], tmp_path: Path) -> None:
    path = fitted[0]
    aged = json.loads(path.read_text())
    aged["made"]["date"] = "2020-02-02"
    ours = tmp_path / "out" / "h100-sxm" / "vllm.json"
    ours.parent.mkdir(parents=True)
    ours.write_text(json.dumps(aged, indent=2) + "\n")
    outcome = calibrate(tmp_path, TIMINGS)
    assert f"unchanged: {ours}" in outcome.err
    assert ours.read_text() == json.dumps(aged, indent=2) + "\n"
    assert path.read_text() == ours.read_text().replace("2020-02-02", json.loads(path.read_text())["made"]["date"])


def test_parquet_is_read_as_csv_is(fitted: tuple[Path, Outcome], tmp_path: Path) -> None:
    TIMINGS.to_parquet(tmp_path / "mine.parquet")
    assert calibrate_file(tmp_path, tmp_path / "mine.parquet", "--engine-version", "9.9").exit_code == 0
    result = json.loads((tmp_path / "out" / "h100-sxm" / "vllm.json").read_text())
    assert result["kernels"] == json.loads(fitted[0].read_text())["kernels"]
    assert result["engine_version"] == "9.9"


def test_rows_that_no_gpu_can_reach_are_left_out_and_told(fitted: tuple[Path, Outcome], tmp_path: Path) -> None:
    far = TIMINGS["op"].eq("gemm") & TIMINGS["m"].eq(4096)
    outcome = calibrate(tmp_path, TIMINGS.assign(latency_s=TIMINGS["latency_s"].where(~far, 1e-9)))
    assert outcome.exit_code == 0, outcome.err
    assert "warning: gemm bf16: 12 rows left out: faster than the roofs" in outcome.err
    data = json.loads((tmp_path / "out" / "h100-sxm" / "vllm.json").read_text())
    assert data["kernels"][0]["excluded"]["faster than the roofs"] == 12
    assert data["kernels"][0]["n_rows"] == json.loads(fitted[0].read_text())["kernels"][0]["n_rows"] - 12


def test_one_operation_in_other_units_is_told(tmp_path: Path) -> None:
    prompts = TIMINGS["op"].eq("prefill_attention")
    outcome = calibrate(tmp_path, TIMINGS.assign(latency_s=TIMINGS["latency_s"].where(~prompts, 1e6)))
    assert "warning: prefill_attention bf16: mean error " in outcome.err
    assert "check that latency_s is in seconds" in outcome.err
    assert "gemm bf16: off by" not in outcome.err


def with_cell(column: str, value: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """A change of the sixth row, which is a gemm."""

    def change(table: pd.DataFrame) -> pd.DataFrame:
        cells = table[column].astype(object)
        cells[5] = value
        return table.assign(**{column: cells})

    return change


def scaled(factor: float) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda table: table.assign(latency_s=table["latency_s"] * factor)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.drop(columns="latency_s"), ["mine.csv: columns latency_s are missing, got op, ", "; add them"]),
        (lambda t: t.drop(columns="k"), ["mine.csv: op gemm needs k in every row; fill them in"]),
        (with_cell("m", None), ["mine.csv: op gemm needs m in every row; fill them in"]),
        (with_cell("op", "gem"), ["mine.csv: no such op, got 'gem'; there are gemm, prefill_attention"]),
        (with_cell("op", None), ["mine.csv: no such op, got 'nan'; there are gemm"]),
        (
            with_cell("latency_s", -1e-5),
            ["mine.csv: row 6: latency_s must be a positive number of seconds, got -1e-05; correct or remove it (1 of"],
        ),
        (with_cell("latency_s", 0), ["row 6: latency_s must be a positive number of seconds, got 0"]),
        (with_cell("latency_s", "fast"), ["row 6: latency_s must be a positive number of seconds, got fast"]),
        (with_cell("latency_s", None), ["row 6: latency_s must be a positive number of seconds, got nan"]),
        (with_cell("latency_s", "inf"), ["row 6: latency_s must be a positive number of seconds, got inf"]),
        (with_cell("n", "wide"), ["row 6: n must be a positive number, got wide; correct"]),
        (with_cell("m", 0), ["row 6: m must be a positive number, got 0"]),
        (
            lambda t: t.groupby("op").head(20),
            ["(gemm: 20 rows, prefill_attention: 20 rows, decode_attention: 20 rows); add measurements of other"],
        ),
        (lambda t: t.head(0), ["too few usable rows to fit (gemm: 0 rows"]),
        (lambda t: t[t["op"] != "decode_attention"], ["too few usable rows to fit (decode_attention: 0 rows)"]),
        (
            with_cell("dtype", "bfloat16"),
            ["row 6: dtype must be one of bf16, fp16, fp8, fp8_block, int8, int4, mxfp4, mxfp4_mxfp8, nvfp4, got"],
        ),
        (scaled(1e6), ["too few usable rows to fit (gemm: 180 rows)", "latency_s is in seconds"]),
        (scaled(1e-3), ["too few usable rows to fit (gemm: 180 rows, prefill", "latency_s is in seconds"]),
    ],
)
def test_a_table_that_cannot_be_fitted_is_2_and_writes_nothing(
    change: Callable[[pd.DataFrame], pd.DataFrame], text: list[str], tmp_path: Path
) -> None:
    outcome = calibrate(tmp_path, change(TIMINGS))
    assert outcome.exit_code == 2, outcome.err
    assert outcome.out == ""
    for words in text:
        assert words in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("none.csv", None, "none.csv: no such file; give a CSV or parquet table of kernel timings"),
        ("empty.csv", b"", "empty.csv: must be a table of timings"),
        ("bytes.csv", bytes(range(256)), "bytes.csv: must be a table of timings"),
        ("text.parquet", b"op,latency_s", "text.parquet: cannot be read as parquet"),
    ],
)
def test_a_file_that_is_no_table_is_2(file: str, content: bytes | None, text: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / file).write_bytes(content)
    outcome = calibrate_file(tmp_path, tmp_path / file)
    assert outcome.exit_code == 2, outcome.err
    assert text in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("gpu", "engine", "text"),
    [
        ("h100-sx", "vllm", "no such GPU in the catalog, got 'h100-sx'; did you mean h100-sxm?"),
        ("h100-sxm", "vlm", "no such engine in the catalog, got 'vlm'; did you mean vllm?"),
    ],
)
def test_an_unknown_gpu_or_engine_is_2_with_a_guess(gpu: str, engine: str, text: str, tmp_path: Path) -> None:
    TIMINGS.to_csv(tmp_path / "mine.csv", index=False)
    outcome = invoke("calibrate", gpu, "--engine", engine, "--from", tmp_path / "mine.csv", "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    assert text in outcome.err
    assert not (tmp_path / "out").exists()


def test_rows_that_nothing_is_fitted_to_are_told(tmp_path: Path) -> None:
    few = TIMINGS[TIMINGS["op"] == "gemm"].head(7).assign(dtype="int4")
    outcome = calibrate(tmp_path, pd.concat([TIMINGS, few], ignore_index=True))
    assert outcome.exit_code == 0, outcome.err
    assert "warning: gemm int4: 7 rows left out: too few, or a dtype that uses another's fit" in outcome.err


def test_a_file_in_the_place_of_the_folder_is_2(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    outcome = calibrate(tmp_path, TIMINGS)
    assert outcome.exit_code == 2, outcome.err
    assert "out/h100-sxm: must be a folder, got " in outcome.err
    assert (tmp_path / "out").read_text() == "mine"


HEAD = "engine,engine_version,gpu,model,weight_dtype,tp,isl,osl,concurrency,ttft_ms_mean,tpot_ms_mean\n"
SOUND = "vllm,0.12.0,h100_sxm,llama-3.1-8b,bf16,1,256,16,4,50,7\n"


@pytest.mark.parametrize(
    ("run", "more", "text"),
    [
        ("vllm,0.12.0,l40s,llama-3.1-8b,bf16,1,256,16,4,50,7\n", [], "no run of vllm on h100-sxm"),
        ("vllm,0.12.0,h100_sxm,llama-3.1-8b,bf16,1,256,16,4,50,7\n", ["--campaign", "mine"], "no such campaign 'mine'"),
        (
            "vllm,0.12.0,h100_sxm,llama-3.1-8b,bf16,1,100000,4,16,50,7\n",
            ["--campaign", "plain"],
            "the KV cache limits all of these runs; give some with fewer requests in flight",
        ),
    ],
)
def test_runs_that_say_nothing_of_the_host_are_2(
    run: str, more: list[str], text: str, fitted: tuple[Path, Outcome], tmp_path: Path
) -> None:
    path = tmp_path / "out" / "h100-sxm" / "vllm.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(fitted[0].read_bytes())
    (tmp_path / "runs.csv").write_text(HEAD + run)
    outcome = invoke("calibrate", "h100-sxm", "--host", tmp_path / "runs.csv", "--out", tmp_path / "out", *more)
    assert outcome.exit_code == 2, outcome.err
    assert text in " ".join(outcome.err.split())
    assert path.read_bytes() == fitted[0].read_bytes()


def test_host_constants_need_the_kernels_before_the_minutes_of_a_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simserve.lab import host_fit

    monkeypatch.setattr(
        host_fit, "fit_host", lambda *_, **__: pytest.fail("fitted before it was known where to put it")
    )
    (tmp_path / "runs.csv").write_text(HEAD + SOUND)
    outcome = invoke("calibrate", "h100-sxm", "--host", tmp_path / "runs.csv", "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    assert "vllm.json: no such calibration; run simserve calibrate first, for its kernels" in outcome.err


def test_host_constants_go_into_the_calibration_of_the_runs_engine(
    fitted: tuple[Path, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simserve.lab import host_fit

    def result(rows: Any, *_: Any, **__: Any) -> host_fit.HostFit:
        return host_fit.HostFit({"step_host_s": 1.25e-3}, len(rows), 0.01, 0.02)

    monkeypatch.setattr(host_fit, "fit_host", result)
    path = tmp_path / "out" / "h100-sxm" / "vllm.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(fitted[0].read_bytes())
    (tmp_path / "runs.csv").write_text(HEAD + SOUND)
    outcome = invoke("calibrate", "h100-sxm", "--host", tmp_path / "runs.csv", "--out", tmp_path / "out")
    assert outcome.exit_code == 0, outcome.err
    assert read_calibration(path).host == {"step_host_s": 1.25e-3}
    assert "fitted to 1 serving runs of vllm 0.12.0 on h100-sxm (runs.csv, " in path.read_text()
    assert read_calibration(path).forms == read_calibration(fitted[0]).forms
