"""Serving runs of real servers: read, replayed as their campaign ran them, and held against what was measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from simserve.cost.calibration import calibration_path
from simserve.errors import CalibrationError, CatalogError
from simserve.lab.campaigns import CAMPAIGNS, Campaign, ServingRow, run_of
from simserve.lab.host_fit import DOOR, STEP, fit_host, left_out
from simserve.lab.inferencex import run_of_setting
from simserve.lab.run_tables import catalog_model, read_rows
from simserve.lab.runs import MeasuredRun, Prediction, by, errors, replay, worst
from simserve.lab.settings_table import is_table_of_settings, read_settings
from simserve.scenario import Scenario
from tests.cli.invoke import invoke

AIC = CAMPAIGNS["aiconfigurator"]
HEAD = "engine,engine_version,gpu,model,weight_dtype,tp,isl,osl,concurrency,ttft_ms_mean,tpot_ms_mean\n"
ROWS = Path(__file__).resolve().parents[3] / "shared" / "data" / "serving" / "h100_serving.csv"


def row(**changes: Any) -> ServingRow:
    given: dict[str, Any] = {
        "engine": "vllm",
        "engine_version": "0.12.0",
        "gpu": "h100-sxm",
        "model": "llama-3.1-8b",
        "weight_dtype": "bf16",
        "tp": 1,
        "isl": 256,
        "osl": 16,
        "concurrency": 4,
        "ttft_s": 0.05,
        "tpot_s": 0.008,
    }
    return ServingRow(**(given | changes))


def runs_of(*rows: ServingRow, campaign: Campaign = AIC) -> list[MeasuredRun]:
    return [run_of(row, campaign) for row in rows]


def scenario_of(row: ServingRow, campaign: Campaign) -> Scenario:
    return run_of(row, campaign).scenario()


def predicted(row: ServingRow, ttft_s: float, kv_tokens: int = 10**6) -> Prediction:
    return Prediction(run_of(row, AIC), {"ttft": ttft_s, "tpot": row.tpot_s}, kv_tokens=kv_tokens)


def test_a_table_of_runs_is_read_with_the_names_of_the_catalog(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(HEAD + "vllm,0.12.0,h100_sxm,meta-llama/Llama-3.1-8B-Instruct,bf16,2,1024,128,8,50.5,7.25\n")
    assert read_rows(path) == [row(tp=2, isl=1024, osl=128, concurrency=8, ttft_s=0.0505, tpot_s=0.00725)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must contain serving runs, got none"),
        ("engine,gpu\nvllm,h100\n", "columns engine_version, model, weight_dtype"),
        (HEAD + "vllm,new,h100_sxm,Qwen/Qwen3-32B,bf16,1,1,1,1,1,1\n", "rows.csv:2: a version of vllm must begin"),
        (HEAD + "vllm,1.0,h100_sxm,Qwen/Qwen3-32B,bf16,x,1,1,1,1,1\n", "rows.csv:2: must be numbers"),
        (HEAD + "vllm,1.0,h100_sxm,Qwen/Qwen3-32B,bf16,1,1,0,1,1,1\n", "rows.csv:2: osl must be positive"),
        (
            HEAD + "vllm,1.0,h100_sxm,Qwen/Qwen3-33B,bf16,1,1,1,1,1,1\n",
            "rows.csv:2: the catalog knows no checkpoint of that name",
        ),
    ],
)
def test_a_table_that_is_none_is_refused_with_its_line(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(CalibrationError) as error:
        read_rows(path)
    assert sentence in str(error.value)


def test_a_run_is_replayed_under_its_version_and_with_its_experts_spread(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    head = HEAD.replace("tp,", "tp,ep,")
    path.write_text(
        head
        + "vllm,0.18.0,h100_sxm,Qwen/Qwen3-30B-A3B,bf16,2,2,1024,128,8,50.5,7.25\n"
        + "vllm,,h100_sxm,Qwen/Qwen3-30B-A3B,bf16,2,,1024,128,8,50.5,7.25\n"
    )
    rows = read_rows(path)
    assert [each.label for each in runs_of(*rows)] == [
        "vllm qwen3-30b-a3b TP 2 EP 2 1024/128 x 8",
        "vllm qwen3-30b-a3b TP 2 1024/128 x 8",
    ]
    newer, default = (scenario_of(each, AIC).setups[0] for each in rows)
    assert (newer.engine.version, newer.engine.async_scheduling, newer.parallel.expert) == ("0.18.0", True, 2)
    assert (default.engine.version, default.parallel.expert) == ("0.19", 1)
    short = replace(rows[0], isl=64, osl=8)
    ahead, waiting = replay(runs_of(short, replace(short, engine_version="0.12.0")))
    assert ahead.mean_s("tpot") < 0.9 * waiting.mean_s("tpot")


def test_experts_on_more_gpus_than_there_are_are_refused() -> None:
    with pytest.raises(CalibrationError, match=r"TP 4 EP 8.*expert"):
        replay(runs_of(row(model="qwen3-30b-a3b", tp=4, ep=8)))


def test_checkpoints_of_one_shape_are_one_model() -> None:
    assert catalog_model("Qwen/Qwen3-32B-FP8") == "qwen3-32b"
    assert catalog_model("meta-llama/Llama-3.1-8B-Instruct") == "llama-3.1-8b"
    assert catalog_model("llama-3.1-8b") == "llama-3.1-8b"
    with pytest.raises(CatalogError, match="the catalog knows no checkpoint of that name"):
        catalog_model("Qwen/QwQ-32B")
    assert catalog_model("Qwen/Qwen2.5-32B") == "Qwen/Qwen2.5-32B"  # of another context than qwen2.5-32b


def test_a_campaign_says_how_many_requests_how_long_and_with_which_knobs() -> None:
    scenario = scenario_of(row(), AIC)
    assert scenario.workload.n_requests == 40
    assert scenario.workload.client == {"kind": "closed_loop", "concurrency": 4}
    scheduler = scenario.cluster.pools[0].scheduler
    assert scheduler is not None
    assert scheduler["max_num_batched_tokens"] == 256 + 4 + 1500
    spread = scenario_of(row(isl=1000), CAMPAIGNS["inferencemax"])
    assert spread.workload.lengths is not None
    assert spread.workload.lengths["prompt_tokens"] == [800, 1000]
    assert spread.kv_dtype == "fp8"


def test_inferencemax_lets_sglang_look_for_arrivals_less_often_on_blackwell() -> None:
    def interval(**changes: Any) -> int | None:
        run = run_of(row(engine="sglang", engine_version="", tp=8, **changes), CAMPAIGNS["inferencemax"])
        interval: int | None = run.pools[0]["scheduler"].get("scheduler_recv_interval")
        return interval

    glm: dict[str, Any] = {"gpu": "b200-sxm", "model": "glm-5"}
    assert [interval(gpu="b200-sxm", concurrency=n) for n in (8, 16)] == [10, 30]
    assert [interval(**glm, weight_dtype=each, concurrency=64) for each in ("nvfp4", "fp8_block")] == [10, 1]
    assert interval(gpu="h200-sxm", concurrency=64) is None


@pytest.mark.parametrize(
    ("engine", "kv_dtype", "budget", "memory_frac"),
    [("vllm", "fp8", 8192, 0.9), ("trtllm", "fp8", 8192 + 4 + 64, 0.75), ("sglang", "bf16", 32768, 0.82)],
)
def test_inferencemax_starts_each_engine_its_own_way(
    engine: str, kv_dtype: str, budget: int, memory_frac: float
) -> None:
    scenario = scenario_of(row(engine=engine, engine_version="", isl=8192), CAMPAIGNS["inferencemax"])
    (pool,) = scenario.cluster.pools
    assert pool.scheduler is not None
    assert (scenario.kv_dtype, pool.gpu_memory_utilization) == (kv_dtype, memory_frac)
    assert budget in pool.scheduler.values()
    own_cache = scenario_of(row(engine=engine, engine_version="", kv_dtype="bf16"), CAMPAIGNS["inferencemax"])
    assert own_cache.kv_dtype == "bf16"


@pytest.mark.parametrize(
    ("engine", "budget", "slots"),
    [
        ("vllm", "max_num_batched_tokens", "max_num_seqs"),
        ("trtllm", "max_num_tokens", "max_batch_size"),
        ("sglang", "chunked_prefill_size", "max_running_requests"),
    ],
)
def test_the_knobs_of_a_row_go_under_the_names_of_its_engines_policy(engine: str, budget: str, slots: str) -> None:
    knobs = {"max_num_batched_tokens": 512, "max_num_seqs": 24}
    own = scenario_of(row(engine=engine, engine_version="", knobs=knobs), AIC).cluster.pools[0].scheduler
    assert own is not None
    assert (own[budget], own[slots]) == (512, 24)


def test_errors_are_signed_shares_of_what_was_measured() -> None:
    points = [predicted(row(tp=tp), 0.05 * ratio) for tp, ratio in ((1, 1.1), (1, 0.7), (2, 1.0))]
    match = errors(points, "ttft")
    assert match.n == 3
    assert match.mape_frac == pytest.approx(0.4 / 3)
    assert match.bias_frac == pytest.approx(-0.2 / 3)
    assert match.median_frac == pytest.approx(0.1)
    assert match.interval is not None
    assert match.interval[0] <= match.mape_frac <= match.interval[1]
    assert errors(points[:2], "ttft").interval is None  # one group says nothing of others
    assert worst(points, "ttft", 1) == [points[1]]
    assert list(by(points, lambda run: str(run.tensor))) == ["1", "2"]


def test_a_run_that_does_not_fit_the_cache_is_known_as_such() -> None:
    assert predicted(row(), 1.0, 4 * (256 + 16) - 1).is_limited_by_memory
    assert not predicted(row(), 1.0, 4 * (256 + 16)).is_limited_by_memory


@pytest.mark.thorough
def test_constants_are_found_again_from_the_runs_they_made() -> None:
    true = {"step_host_s": 4e-3, "request_host_s": 8e-5, "gap_s": 3e-6, "busy_compute_frac": 0.8}
    shapes = [(256, 24, 2), (256, 24, 24), (2048, 12, 8), (2048, 12, 16)]
    short = replace(AIC, requests_per_client=3)
    runs = runs_of(*(row(isl=isl, osl=osl, concurrency=c) for isl, osl, c in shapes), campaign=short)
    made = replay(runs, {**_front_end_queue(), **true})
    match = fit_host([replace(each.run, measured_s=each.predicted_s or {}) for each in made])
    assert match.n_rows == 4
    assert match.tpot_mape_frac < 0.01
    assert match.ttft_mape_frac < 0.05
    assert match.constants.keys() == (STEP.keys() | DOOR.keys()) - {"busy_fp8_frac"}  # of runs in bf16


def _front_end_queue() -> dict[str, float]:
    return {name: start for name, (start, _, _) in DOOR.items()}


def test_host_constants_are_not_fitted_to_servers_that_hide_the_host() -> None:
    with pytest.raises(CalibrationError, match=r"to runs of vllm 0\.12, got 0\.18\.0; leave these runs out"):
        fit_host(runs_of(row(), row(engine_version="0.18.0")))


def test_a_group_is_predicted_by_constants_fitted_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from simserve.lab import host_fit as module

    fitted_to: list[set[int]] = []

    class Fitted:
        constants: ClassVar[dict[str, float]] = {}

    def remember(runs: list[MeasuredRun]) -> Fitted:
        fitted_to.append({run.tensor for run in runs})
        return Fitted()

    monkeypatch.setattr(module, "fit_host", remember)
    result = left_out(runs_of(row(tp=1), row(tp=2), row(tp=4)))
    assert fitted_to == [{2, 4}, {1, 4}, {1, 2}]
    assert [each.run.tensor for each in result] == [1, 2, 4]


@pytest.mark.skipif(not ROWS.is_file(), reason="the serving runs are not here")
def test_the_public_runs_of_vllm_meet_the_bars() -> None:
    rows = [each for each in read_rows(ROWS) if each.engine == "vllm"]
    points = [point for point in replay(runs_of(*rows)) if not point.is_limited_by_memory]
    assert len(points) == 42
    assert errors(points, "tpot").mape_frac < 0.04
    assert errors(points, "ttft").mape_frac < 0.15


def test_servers_of_gpt_oss_are_started_their_own_way_by_card() -> None:
    gpt_oss = row(model="gpt-oss-120b", weight_dtype="mxfp4", engine_version="0.18.0", gpu="h200-sxm", isl=1024)
    setup = scenario_of(gpt_oss, CAMPAIGNS["inferencemax"]).setups[0]
    assert (setup.engine.moe_backend, setup.kv_dtype) == ("marlin", "bf16")
    newer = scenario_of(replace(gpt_oss, gpu="b200-sxm"), CAMPAIGNS["inferencemax"]).setups[0]
    assert (newer.engine.moe_backend, newer.kv_dtype) == ("flashinfer_trtllm_afp8", "fp8")
    other = scenario_of(replace(gpt_oss, engine="trtllm", engine_version=""), CAMPAIGNS["inferencemax"])
    (pool,) = other.cluster.pools
    assert pool.scheduler is not None
    assert (pool.scheduler["max_num_tokens"], pool.gpu_memory_utilization) == (20000, 0.85)


def test_a_cold_start_delays_the_first_request_of_each_client() -> None:
    cold = replace(AIC, cold_start_s={"vllm": 3.0})
    plain, delayed = replay([run_of(row(), AIC), run_of(row(), cold)])
    assert delayed.mean_s("ttft") == pytest.approx(plain.mean_s("ttft") + 0.3)  # a tenth of all requests
    assert delayed.mean_s("tpot") == plain.mean_s("tpot")
    warm = replace(AIC, cold_start_s={"vllm": 3.0, "vllm llama-3.1-8b": 0.0})
    assert replay([run_of(row(), warm)])[0].mean_s("ttft") == plain.mean_s("ttft")


@pytest.mark.thorough
@pytest.mark.skipif(not ROWS.exists(), reason=f"needs {ROWS.name}, which is not shipped")
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_refit_of_the_host_gives_the_shipped_file_to_the_last_bit(engine: str, tmp_path: Path) -> None:
    shipped, copy = calibration_path(f"h100-sxm/{engine}"), tmp_path / "h100-sxm" / f"{engine}.json"
    copy.parent.mkdir()
    copy.write_bytes(shipped.read_bytes())
    assert invoke("calibrate", "h100-sxm", "--engine", engine, "--host", ROWS, "--out", tmp_path).exit_code == 0
    assert copy.read_bytes() == shipped.read_bytes()


@pytest.mark.skipif(not ROWS.exists(), reason=f"needs {ROWS.name}, which is not shipped")
@pytest.mark.parametrize("name", ["h100_serving.csv", "hopper_serving_2.csv", "inferencex.csv"])
def test_what_sglang_served_is_not_refused(name: str) -> None:
    path = ROWS.with_name(name)
    if is_table_of_settings(path):
        settings = [each for each in read_settings(path)[0] if each.engine == "sglang"]
        scenarios = [run_of_setting(each, 3).scenario() for each in settings]
    else:
        rows = [each for each in read_rows(path) if each.engine == "sglang"]
        scenarios = [
            scenario_of(each, CAMPAIGNS[campaign]) for each in rows for campaign in ("aiconfigurator", "plain")
        ]
    assert scenarios  # none raised ScenarioError
    assert all(pool.ledger.missing_bytes == 0 for scenario in scenarios for pool in scenario.setups)
