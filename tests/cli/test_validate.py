"""`simserve validate`: predictions beside measurements, and tables that cannot be replayed are refused by row."""

import json
from pathlib import Path

import pytest

from tests.cli.invoke import Outcome, invoke
from tests.report.figures import figures

HEAD = "engine,engine_version,gpu,model,weight_dtype,tp,isl,osl,concurrency,ttft_ms_mean,tpot_ms_mean\n"
RUN = "vllm,0.12.0,h100_sxm,meta-llama/Llama-3.1-8B-Instruct,bf16,1,256,16,4,40.5,7.25\n"
TWICE = "vllm,0.12.0,h100_sxm,meta-llama/Llama-3.1-8B-Instruct,bf16,2,256,16,4,30,5\n"


def validate(folder: Path, text: str, *more: object) -> Outcome:
    (folder / "runs.csv").write_text(text)
    return invoke("validate", folder / "runs.csv", "--requests-per-client", 2, *more)


def test_what_a_campaign_assumes_of_cold_starts_is_told(tmp_path: Path) -> None:
    cold = "trtllm,,h200_sxm,openai/gpt-oss-120b,mxfp4,8,1024,8,2,117.1,4.4\n"
    warm = cold.replace("trtllm", "vllm")
    outcome = validate(tmp_path, HEAD + cold + warm, "--campaign", "inferencemax")
    assert outcome.exit_code == 0, outcome.err
    assert "cold starts add to mean TTFT: 300 ms (trtllm gpt-oss-120b)\n" in outcome.out  # 0.6 s over two requests
    told = json.loads(validate(tmp_path, HEAD + cold, "--campaign", "inferencemax", "--json").out)
    assert told["campaign"]["cold_start_s"]["trtllm gpt-oss-120b"] == 0.6
    assert told["points"][0]["predicted_ttft_s"] > 0.3
    assert "cold starts" not in validate(tmp_path, HEAD + warm, "--campaign", "inferencemax").out


def test_runs_are_told_as_measured_and_as_predicted(tmp_path: Path) -> None:
    outcome = validate(tmp_path, HEAD + RUN + TWICE, "--json")
    assert outcome.exit_code == 0, outcome.err
    result = json.loads(outcome.out)
    assert result["campaign"]["requests_per_client"] == 2
    assert [(point["tp"], point["ttft_s"], point["tpot_s"]) for point in result["points"]] == [
        (1, 0.0405, 0.00725),
        (2, 0.03, 0.005),
    ]
    one, two = result["points"]
    assert 0.004 < two["predicted_tpot_s"] < one["predicted_tpot_s"] < 0.02
    assert not one["is_limited_by_memory"]
    wording = validate(tmp_path, HEAD + RUN + TWICE)
    error = abs(one["predicted_tpot_s"] / one["tpot_s"] - 1)
    (line,) = (line for line in wording.out.splitlines() if line.split()[:4] == ["vllm", "TP", "1", "TPOT"])
    assert f"{error:.1%}" in line.split()
    assert "2 requests per client" in wording.out
    assert "vllm llama-3.1-8b TP 2 256/16 x 4" in wording.out


def test_one_engine_can_be_chosen(tmp_path: Path) -> None:
    result = validate(tmp_path, HEAD + RUN + RUN.replace("vllm", "sglang"), "--engine", "sglang", "--json")
    assert [point["engine"] for point in json.loads(result.out)["points"]] == ["sglang"]


def test_a_page_is_drawn_on_request(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    outcome = validate(tmp_path, HEAD + RUN, "--page", page)
    assert outcome.exit_code == 0, outcome.err
    assert f"wrote {page}" in outcome.err
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "measured 40.5" in str(figures(text)).replace("\\xa0", " ")


SETTINGS = (
    "hardware,framework,image,model,precision,spec,disagg,prefill_workers,prefill_tp,prefill_ep,prefill_dp_attention,"
    "decode_workers,decode_tp,decode_ep,decode_dp_attention,n_gpus_prefill,n_gpus_decode,isl,osl,concurrency,"
    "mean_ttft_s,median_ttft_s,mean_tpot_s,mean_itl_s,mean_e2el_s\n"
    "b200,dynamo-sglang,a/sglang:v0.5.8,dsr1,fp8,none,True,1,8,8,False,1,8,8,False,8,8,100,10,2,0.1,0.1,0.01,0.01,0.2\n"
    "l40s,sglang,a/sglang:v0.5.8,dsr1,fp8,none,False,0,8,8,False,1,8,8,False,0,8,100,10,2,0.1,0.1,0.01,0.01,0.2\n"
    "b200,dynamo-sglang,a/sglang:v0.5.8,dsr1,fp8,none,True,1,8,8,False,1,8,8,False,8,4,100,10,2,0.1,0.1,0.01,0.01,0.2\n"
)


def test_a_table_of_settings_is_compared_by_side_and_what_is_refused_is_said(tmp_path: Path) -> None:
    outcome = validate(tmp_path, SETTINGS, "--json")
    assert outcome.exit_code == 0, outcome.err
    result = json.loads(outcome.out)
    point, refused = result["points"]
    assert result["n_left_out"] == 1
    assert refused["predicted_s"] is None
    wording = validate(tmp_path, SETTINGS)
    (line,) = (line for line in wording.out.splitlines() if "decode: TPOT" in line)
    assert line.strip().startswith("b200-sxm sglang deepseek-v3 fp8 disaggregated")
    assert f"{point['predicted_s']['tpot'] / 0.01 - 1:+.1%}" in line
    assert "refused: l40s sglang" in wording.err
    assert "1 setting left out" in wording.err


@pytest.mark.parametrize("more", [("--leave-out",), ("--campaign", "plain"), ("--shortest-frac", 0.5)])
def test_options_that_settings_have_already_are_refused(tmp_path: Path, more: tuple[object, ...]) -> None:
    outcome = validate(tmp_path, SETTINGS, *more)
    assert outcome.exit_code == 2
    assert "is not for a table of InferenceX's settings" in outcome.err


def run(**changes: str) -> str:
    """A table of one run with other cells."""
    cells = dict(zip(HEAD.strip().split(","), RUN.strip().split(","), strict=True)) | changes
    return f"{','.join(cells)}\n{','.join(cells.values())}\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "runs.csv: must contain serving runs, got none"),
        (HEAD, "runs.csv: must contain serving runs, got none"),
        ("engine,gpu\nvllm,h100-sxm\n", "runs.csv: columns engine_version, model, weight_dtype"),
        (run(engine="vlm"), "runs.csv:2: no such engine in the catalog, got 'vlm'; did you mean vllm?"),
        (run(gpu="h100_sx"), "runs.csv:2: no such GPU in the catalog, got 'h100_sx'; did you mean h100-sxm?"),
        (run(model="llama-3.1-9b"), "runs.csv:2: no such model in the catalog, or the path of a conf"),
        (run(weight_dtype="bf17"), "vllm llama-3.1-8b TP 1 256/16 x 4: scenario: weight_dtype: must be one of bf16"),
        (run(tp="3"), "vllm llama-3.1-8b TP 3 256/16 x 4: scenario: cluster.pools.0.parallel.tensor: must divide"),
        (run(kv_dtype="bf17"), "kv_dtype: must be one of"),
        (run(max_num_seqs="-3"), "max_num_seqs: must be more than 0, got -3"),
        (run(isl="long"), "runs.csv:2: must be numbers"),
        (run(concurrency="0"), "runs.csv:2: concurrency must be positive; correct the row"),
        (run(ttft_ms_mean="-1"), "runs.csv:2: ttft must be positive"),
        (run(ttft_ms_mean="nan"), "runs.csv:2: ttft must be positive"),
        (run(tpot_ms_mean="inf"), "runs.csv:2: tpot must be positive"),
        (run(osl="1"), "runs.csv:2: osl must be at least 2"),
        (HEAD + RUN + "vllm,0.12.0,h100_sxm\n", "runs.csv:3: must have model, weight_dtype, tp"),
    ],
)
def test_a_table_that_cannot_be_replayed_is_2_and_draws_nothing(text: str, sentence: str, tmp_path: Path) -> None:
    outcome = validate(tmp_path, text, "--page", tmp_path / "page.html")
    assert outcome.exit_code == 2, outcome.err
    assert outcome.out == ""
    assert sentence in outcome.err
    assert not (tmp_path / "page.html").exists()


def test_a_file_that_is_not_there_or_no_text_is_2(tmp_path: Path) -> None:
    outcome = invoke("validate", tmp_path / "none.csv")
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert "none.csv: no such file; give a CSV of serving runs" in outcome.err
    (tmp_path / "bytes.csv").write_bytes(bytes(range(256)))
    outcome = invoke("validate", tmp_path / "bytes.csv")
    assert outcome.exit_code == 2
    assert "bytes.csv: must be a CSV of serving runs" in outcome.err


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--campaign", "mine"], "no such campaign 'mine'; there are aiconfigurator, inferencemax, plain"),
        (["--engine", "trtllm"], "no run of 'trtllm' in"),
        (["--page", "none/page.html"], "none/page.html: must be writable, got No such file or directory"),
    ],
)
def test_an_option_that_fits_nothing_is_2(more: list[str], sentence: str, tmp_path: Path) -> None:
    outcome = validate(tmp_path, HEAD + RUN, *more)
    assert outcome.exit_code == 2
    assert outcome.out == ""
    assert sentence in " ".join(outcome.err.split())


def test_a_table_must_be_given() -> None:
    outcome = invoke("validate")
    assert (outcome.exit_code, "give a CSV of serving runs" in outcome.err) == (2, True)
