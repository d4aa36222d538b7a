"""Settings of InferenceX: what a row says of servers and client, and errors by side."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from simserve.errors import CalibrationError
from simserve.lab.inferencex import Setting, Side, run_of_setting, speculation_of, tokens_per_step
from simserve.lab.runs import MeasuredRun, Prediction, by, errors, predict
from simserve.lab.settings_table import is_export, is_table_of_settings, no_versions, read_settings
from simserve.scenario import Scenario
from tests.cli.invoke import invoke

ROW: dict[str, Any] = {
    "hardware": "b200",
    "framework": "dynamo-sglang",
    "image": "lmsysorg/sglang:v0.5.8.post1-cu130",
    "model": "dsr1",
    "precision": "fp8",
    "spec": "none",
    "disagg": True,
    "prefill_workers": 1,
    "prefill_tp": 8,
    "prefill_ep": 8,
    "prefill_dp_attention": False,
    "n_gpus_prefill": 8,
    "decode_workers": 2,
    "decode_tp": 8,
    "decode_ep": 8,
    "decode_dp_attention": True,
    "n_gpus_decode": 16,
    "isl": 100,
    "osl": 10,
    "concurrency": 4,
    "mean_ttft_s": 0.2,
    "median_ttft_s": 0.1,
    "mean_tpot_s": 0.01,
    "mean_itl_s": 0.01,
    "mean_e2el_s": 0.3,
}


def table(folder: Path, *rows: dict[str, Any]) -> Path:
    """Write rows like ROW, with changes."""
    path = folder / "settings.csv"
    lines = [",".join(map(str, ROW))] + [",".join(map(str, (ROW | row).values())) for row in rows]
    path.write_text("\n".join(lines))
    return path


def scenario_of_setting(setting: Setting, requests_per_client: int) -> Scenario:
    return run_of_setting(setting, requests_per_client).scenario()


def test_a_row_is_pools_with_roles_workers_and_ranks(tmp_path: Path) -> None:
    path = table(tmp_path, {})
    assert is_table_of_settings(path)
    (setting,), left_out = read_settings(path)
    scenario = scenario_of_setting(setting, 10)
    prefill, decode = scenario.cluster.pools
    assert (prefill.role, prefill.replicas, prefill.parallel.tensor, prefill.parallel.expert) == ("prefill", 1, 8, 8)
    assert (decode.role, decode.replicas, decode.parallel.tensor, decode.parallel.data) == ("decode", 2, 1, 8)
    assert decode.parallel.expert == 8
    assert (scenario.engine.version, scenario.weight_dtype, scenario.kv_dtype) == ("0.5.8", "fp8_block", "fp8")
    assert scenario.workload.n_requests == 40
    assert scenario.workload.lengths is not None
    assert scenario.workload.lengths["prompt_tokens"] == [80, 100]
    assert not left_out


def test_ranks_divide_each_expert_where_a_row_says_so(tmp_path: Path) -> None:
    (setting,), _ = read_settings(table(tmp_path, {"decode_ep": 1}))
    decode = scenario_of_setting(setting, 10).cluster.pools[1]
    assert (decode.parallel.data, decode.parallel.expert) == (8, 1)


def test_an_aggregated_row_is_one_pool_and_hopper_keeps_16_bits_under_sglang(tmp_path: Path) -> None:
    (setting,), _ = read_settings(table(tmp_path, {"disagg": False, "hardware": "h200", "decode_workers": "0"}))
    (pool,) = scenario_of_setting(setting, 10).cluster.pools
    assert (pool.role, pool.replicas, setting.kv_dtype) == ("both", 1, "bf16")


def test_vllm_is_started_as_inferencex_starts_it(tmp_path: Path) -> None:
    changes = {"disagg": False, "framework": "vllm", "image": "vllm/vllm-openai:v0.13.0", "model": "gptoss"}
    (setting,), _ = read_settings(table(tmp_path, changes))
    scenario = scenario_of_setting(setting, 10)
    (setup,) = scenario.setups
    assert (setup.engine.version, setup.plans_ahead) == ("0.14", True)
    assert (setup.scheduler.budget_tokens, setup.scheduler.max_running) == (8192, 4)


EXPORT: dict[str, Any] = {
    "Model": "DeepSeek-R1-0528",
    "ISL": 1024,
    "OSL": 64,
    "Hardware": "h200",
    "Hardware Key": "h200_sglang",
    "Framework": "sglang",
    "Precision": "fp8",
    "TP": 8,
    "Concurrency": 4,
    "Mean TTFT (ms)": 0.2,
    "Median TTFT (ms)": 0.1,
    "Mean TPOT (ms)": 0.01,
    "Mean Interactivity (tok/s/user)": 100.0,
    "Mean ITL (ms)": 0.01,
    "Mean E2E Latency (ms)": 0.83,
    "Disaggregated": "false",
    "Spec Decoding": "none",
    "EP": 1,
    "DP Attention": "false",
}


def exported(folder: Path, *rows: dict[str, Any]) -> Path:
    """Write rows like EXPORT, with changes."""
    path = folder / "export.csv"
    lines = [",".join(map(str, EXPORT))] + [",".join(map(str, (EXPORT | row).values())) for row in rows]
    path.write_text("\n".join(lines))
    return path


def test_an_export_of_the_page_is_settings_without_versions(tmp_path: Path) -> None:
    path = exported(tmp_path, {})
    assert is_table_of_settings(path)
    (setting,), left_out = read_settings(path)
    assert (setting.gpu, setting.engine, setting.version, setting.model) == ("h200-sxm", "sglang", "", "deepseek-v3")
    assert setting.sides == (Side("both", 1, {"tensor": 8, "expert": 1}),)
    assert setting.measured_s == {"ttft": 0.2, "median_ttft": 0.1, "tpot": 0.01, "e2e": 0.83}
    assert not left_out


def test_times_of_an_export_are_in_the_unit_that_its_tokens_a_second_tell(tmp_path: Path) -> None:
    """Those of June 2026 are seconds under heads in ms."""
    in_ms = {name: 1e3 * value for name, value in EXPORT.items() if name.endswith("(ms)")}
    seconds, milliseconds = (read_settings(exported(tmp_path, row))[0][0].measured_s for row in ({}, in_ms))
    assert milliseconds == pytest.approx(seconds)


def test_rows_of_an_export_that_cannot_be_replayed_are_left_out_by_reason(tmp_path: Path) -> None:
    others = [{"Disaggregated": "true"}, {"Framework": "new-engine"}, {"Model": "other-1b"}, {"Hardware": "tpu"}]
    settings, left_out = read_settings(exported(tmp_path, {}, *others))
    assert len(settings) == 1
    assert left_out == {
        "exports do not say how many workers share the GPUs of prefill and of decode": 1,
        "the engine new-engine is not simulated": 1,
        "the model other-1b is not simulated": 1,
        "the GPU tpu is not simulated": 1,
    }


def test_a_decision_about_settings_names_no_command_that_refuses_them(tmp_path: Path) -> None:
    rows = [{"Concurrency": n, "Mean TPOT (ms)": 0.05} for n in (1, 2, 3, 4, 5)]
    outcome = invoke("validate", exported(tmp_path, *rows), "--requests-per-client", "2")
    assert outcome.exit_code == 0, outcome.err
    assert outcome.out.startswith("Not to be trusted: TPOT ") and "simserve calibrate" not in outcome.out
    assert "the catalog's default versions, as an export names none" in outcome.out


@pytest.mark.parametrize(
    ("changes", "budget"),
    [
        ({"image": "nvidia/tensorrt-llm/release:1.2.0rc2", "model": "gptoss"}, 20000),
        ({"image": "nvidia/tensorrt-llm/release:1.1.0rc2.post2"}, 100 + 4 + 64),
        ({"image": "None"}, 100 + 4 + 64),
        ({"image": "nvidia/tensorrt-llm/release:1.3.0rc14"}, 8192),
    ],
)
def test_tensorrt_llm_has_the_tokens_a_step_of_inferencexs_scripts(
    changes: dict[str, Any], budget: int, tmp_path: Path
) -> None:
    (setting,), _ = read_settings(table(tmp_path, {"disagg": False, "framework": "trt", **changes}))
    assert {setup.scheduler.budget_tokens for setup in scenario_of_setting(setting, 10).setups} == {budget}


@pytest.mark.parametrize(
    ("model", "dp_attention", "balance", "slots", "budget"),
    [
        ("gptoss", True, (50, 10), 2048, 20000),
        ("dsr1", True, (60, 0), 5, 2 * 5 + 100 + 64),
        ("dsr1", False, None, 40, 4 * 40 + 100 + 64),
    ],
)
def test_ranks_under_tensorrt_llm_wait_for_balance_with_the_slots_of_inferencexs_scripts(
    model: str, dp_attention: bool, balance: tuple[int, int] | None, slots: int, budget: int, tmp_path: Path
) -> None:
    image = "nvidia/tensorrt-llm/release:1.2.0rc2"
    row = {"disagg": False, "framework": "trt", "image": image, "model": model, "decode_dp_attention": dp_attention}
    spec = "mtp" if model == "dsr1" else "none"
    (setting,), _ = read_settings(table(tmp_path, {**row, "spec": spec, "hardware": "h200", "concurrency": 40}))
    (setup,) = scenario_of_setting(setting, 10).setups
    held = setup.parallel.balance
    waits = held and (held.timeout_iters, held.batching_wait_iters)
    assert (waits, setup.scheduler.max_running, setup.scheduler.budget_tokens) == (balance, slots, budget)


@pytest.mark.parametrize(
    ("gpu", "version", "kv_dtype"),
    [
        ("mi300x", "0.5.5.post3-rocm700", "bf16"),
        ("mi300x", "0.5.7", "fp8"),
        ("mi325x", "0.5.12", "fp8"),
        ("mi355x", "0.5.6", "fp8"),
    ],
)
def test_cards_of_cdna_3_keep_16_bits_until_their_servers_were_started_otherwise(
    gpu: str, version: str, kv_dtype: str, tmp_path: Path
) -> None:
    row = {"disagg": False, "hardware": gpu, "framework": "sglang", "image": f"lmsysorg/sglang:v{version}"}
    (setting,), _ = read_settings(table(tmp_path, row))
    assert setting.kv_dtype == kv_dtype


def test_gpus_that_workers_do_not_give_are_left_out_and_counted(tmp_path: Path) -> None:
    settings, left_out = read_settings(table(tmp_path, {}, {"n_gpus_decode": 8}))
    assert len(settings) == 1
    assert left_out == {"columns disagree about the number of GPUs": 1}
    with pytest.raises(CalibrationError, match=r"got 1 left out: columns disagree .* of GPUs; give others"):
        read_settings(table(tmp_path, {"n_gpus_decode": 8}))
    with pytest.raises(CalibrationError, match="got none; give others"):
        read_settings(table(tmp_path))


@pytest.mark.parametrize(
    ("by_rank", "parallel"), [(True, {"data": 8, "expert": 8}), (False, {"tensor": 8, "expert": 8})]
)
def test_a_worker_whose_tp_and_ep_are_not_given_is_as_wide_as_its_gpus(
    tmp_path: Path, by_rank: bool, parallel: dict[str, int]
) -> None:
    row = {"hardware": "gb200", "decode_tp": 1, "decode_ep": 1, "decode_workers": 2, "decode_dp_attention": by_rank}
    (setting,), left_out = read_settings(table(tmp_path, row))
    assert not left_out
    assert setting.sides[1] == Side("decode", 2, parallel)


def test_workers_of_a_tray_hold_fp8_weights_without_ranks_by_the_share_of_their_recipe(tmp_path: Path) -> None:
    not_given = {f"{role}_{what}": 1 for role in ("prefill", "decode") for what in ("tp", "ep")}
    row = not_given | {"hardware": "gb200", "n_gpus_prefill": 4, "decode_workers": 4, "prefill_dp_attention": True}
    (setting,), _ = read_settings(table(tmp_path, row))
    for setup in scenario_of_setting(setting, 1).setups:  # 671 GB on four cards of 199
        assert (setup.parallel.tensor, setup.parallel.data, setup.parallel.expert) == (4, 1, 1)
        assert 0.82 * setup.gpu.hbm_bytes < setup.ledger.weights_bytes < setup.ledger.usable_bytes


@pytest.mark.parametrize(
    ("n_gpus", "by_rank", "prefill", "decode"),
    [
        (36, False, (1, {"tensor": 4, "expert": 4}), (4, {"tensor": 8, "expert": 8})),
        (20, False, (1, {"tensor": 4, "expert": 4}), (2, {"tensor": 8, "expert": 8})),
        (36, True, (1, {"data": 4, "expert": 4}), (1, {"data": 32, "expert": 32})),
    ],
)
def test_a_tp_that_counts_the_gpus_of_all_workers_is_divided_as_recipes_do(
    n_gpus: int, by_rank: bool, prefill: tuple[int, Any], decode: tuple[int, Any], tmp_path: Path
) -> None:
    none = {f"{role}_{what}": n for role in ("prefill", "decode") for what, n in (("workers", 0), ("tp", n_gpus))}
    row = none | {"hardware": "gb200", "framework": "dynamo-trt", "precision": "fp4", "decode_dp_attention": by_rank}
    (setting,), left_out = read_settings(table(tmp_path, row, row | {"decode_tp": 4}))
    assert setting.sides == (Side("prefill", *prefill), Side("decode", *decode))
    assert left_out == {"columns do not say how many workers share the GPUs of prefill and of decode": 1}


@pytest.mark.parametrize(
    ("concurrency", "slots"), [(2150, 128), (16 * 100, 2048), (12_100, 512), (12_401, 768), (3, 2048)]
)
def test_ranks_under_tensorrt_llm_have_the_slots_that_uneven_clients_tell(
    concurrency: int, slots: int, tmp_path: Path
) -> None:
    (setting,), _ = read_settings(
        table(tmp_path, {"framework": "trt", "prefill_dp_attention": True, "concurrency": concurrency})
    )
    prefill, decode = scenario_of_setting(setting, 1).setups
    assert (prefill.scheduler.max_running, decode.scheduler.max_running) == (2048, slots)
    assert (prefill.scheduler.budget_tokens, decode.scheduler.budget_tokens) == (16384, 8192)


@pytest.mark.parametrize(("ranks", "exchange"), [(8, None), (16, "all_to_all")])
def test_many_ranks_of_a_rack_send_tokens_straight_to_experts(ranks: int, exchange: str | None, tmp_path: Path) -> None:
    wide = {"hardware": "gb200", "decode_workers": 1, "decode_tp": ranks, "decode_ep": ranks, "n_gpus_decode": ranks}
    (setting,), _ = read_settings(table(tmp_path, wide))
    cost = scenario_of_setting(setting, 1).setups[1].step_cost()
    assert (cost.exchange and cost.exchange.kernels) == exchange


@pytest.mark.parametrize("tag", ["nightly", "main", "latest", "nightly-dev-20260319-3f2a1b9", "2026.05.19-3f2a1b9"])
def test_an_image_without_a_version_leaves_the_setting_to_the_default_and_is_counted(tag: str, tmp_path: Path) -> None:
    path = table(tmp_path, {"image": f"lmsysorg/sglang:{tag}"}, {})
    settings, left_out = read_settings(path)
    assert [setting.version for setting in settings] == ["", "0.5.8"] and not left_out
    assert no_versions(path, settings) == "; the catalog's default versions, as the images of 1 of 2 name none"
    assert not no_versions(path, settings[1:])
    assert scenario_of_setting(settings[0], 1).engine.version == "0.5.12"


def test_gpt_oss_on_gb200_has_an_fp8_cache_and_long_steps_of_prompts(tmp_path: Path) -> None:
    row = {"hardware": "gb200", "framework": "trt", "model": "gptoss", "precision": "fp4"}
    (setting,), _ = read_settings(table(tmp_path, row))
    prefill, decode = scenario_of_setting(setting, 1).setups
    assert (setting.kv_dtype, prefill.scheduler.budget_tokens, decode.scheduler.budget_tokens) == ("fp8", 20000, 8192)


def test_weights_in_4_bits_by_integers_are_no_nvfp4(tmp_path: Path) -> None:
    settings, _ = read_settings(table(tmp_path, {"precision": "int4"}, {"precision": "fp4"}))
    assert [setting.weight_dtype for setting in settings] == ["int4", "nvfp4"]


@pytest.mark.parametrize(
    ("change", "what"),
    [({"model": "other"}, "model other"), ({"hardware": "z9"}, "GPU z9"), ({"framework": "mlc"}, "engine mlc")],
)
def test_a_row_that_cannot_be_simulated_leaves_the_others(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    settings, left_out = read_settings(table(tmp_path, {}, change, change))
    assert len(settings) == 1
    assert left_out == {f"the {what} is not simulated": 2}


def test_the_version_of_dynamos_runtime_is_not_the_engines(tmp_path: Path) -> None:
    image = "nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1.post2"
    (setting,), _ = read_settings(table(tmp_path, {"framework": "dynamo-trt", "image": image}))
    assert (setting.engine, setting.version) == ("trtllm", "")


@pytest.mark.parametrize(("version", "host"), [("0.11.2", "0.14"), ("0.18.0", "0.18.0")])
def test_servers_of_vllm_plan_ahead_whatever_their_version(tmp_path: Path, version: str, host: str) -> None:
    row = {"framework": "vllm", "image": f"vllm/vllm-openai:v{version}", "model": "gptoss", "precision": "fp4"}
    (setting,), _ = read_settings(table(tmp_path, row | {"disagg": False, "decode_workers": 0, "decode_tp": 8}))
    engine = scenario_of_setting(setting, 10).setups[0].engine
    assert (setting.version, engine.version, engine.async_scheduling) == (version, host, True)
    assert (engine.moe_backend, setting.kv_dtype) == ("flashinfer_trtllm_afp8", "fp8")  # on a B200


def test_tokens_that_clients_see_at_once_are_those_of_a_step(tmp_path: Path) -> None:
    rows = ({"spec": "mtp", "mean_itl_s": itl_s} for itl_s in (0.022, 0.01))  # 2.2 tokens a message, or one
    (seen, alone), _ = read_settings(table(tmp_path, *rows))
    assert seen.tokens_per_step == pytest.approx(2.2)
    assert alone.tokens_per_step == 1.85
    speculation = speculation_of(2.2)
    rate = speculation["acceptance"]
    assert speculation["tokens"] == 3
    assert 1 + rate + rate**2 + rate**3 == pytest.approx(2.2)
    assert speculation_of(1.85) == {"kind": "mtp", "tokens": 1, "acceptance": pytest.approx(0.85)}


@pytest.mark.parametrize(("engine", "interval"), [("sglang", 30), ("sglang", 10), ("trtllm", 20), ("trtllm", 100)])
@pytest.mark.parametrize("mean", [1.8, 2.4])
def test_messages_of_several_steps_tell_the_tokens_of_one(engine: str, interval: int, mean: float) -> None:
    """Answers of 922 tokens on average, 820 to 1024; the last message holds what is left."""
    n_tokens = np.arange(820, 1025)
    n_messages = np.ceil(n_tokens / mean / interval)
    seen = float((n_tokens / n_messages).mean())
    assert tokens_per_step(engine, seen, 1024) == pytest.approx(mean, rel=0.02)


def test_ranks_on_h100_are_started_as_their_recipes_say(tmp_path: Path) -> None:
    sixteen = {f"{role}_{what}": 16 for role in ("prefill", "decode") for what in ("tp", "ep")}
    h100 = sixteen | {"hardware": "h100", "n_gpus_prefill": 16, "n_gpus_decode": 32, "spec": "mtp", "mean_itl_s": 0.022}
    (setting, other), _ = read_settings(table(tmp_path, h100, h100 | {"hardware": "h20"}))
    recipe, unknown = (scenario_of_setting(each, 1).cluster.pools[1] for each in (setting, other))
    assert recipe.speculation is not None and recipe.speculation.tokens == 2
    assert unknown.speculation is not None and unknown.speculation.tokens == 3
    assert [each.parallel.exchange for each in (recipe, unknown)] == ["gather", None]


def test_errors_are_of_the_settings_that_run_and_refusals_say_why(tmp_path: Path) -> None:
    small = {"hardware": "l40s"}  # 8 x 48 GB do not hold the model
    settings, _ = read_settings(table(tmp_path, {}, small))
    good, refused = (predict(run_of_setting(setting, 2)) for setting in settings)
    assert good.predicted_s is not None
    assert 0 < good.predicted_s["median_ttft"] <= good.predicted_s["e2e"]
    assert refused.predicted_s is None
    assert "does not fit the memory" in refused.reason
    half = Prediction(good.run, {name: s / 2 for name, s in settings[0].measured_s.items()})
    groups = by([half, refused], lambda run: f"{run.gpu} {run.kind}")
    assert list(groups) == ["b200-sxm disaggregated"]
    assert errors(groups["b200-sxm disaggregated"], "tpot").bias_frac == pytest.approx(-0.5)


def test_a_short_replay_counts_what_is_between_its_ends_as_often_as_it_was_measured() -> None:
    """Of ten requests per client, eight are neither the first nor the last; of three, one."""
    requests = {
        "e2e_s": np.array([10.0, 10.0, 1.0, 1.0, 4.0, 4.0]),
        "ttft_s": np.array([0.5, 0.5, 0.1, 0.1, 0.1, 0.1]),
        "tpot_s": np.full(6, 0.1),
        "transfer_s": np.full(6, 0.4),
        "output_tokens": np.full(6, 6),
    }
    results = cast(Any, SimpleNamespace(columns={"requests": requests}))
    run = MeasuredRun("", "sglang", "", "b200-sxm", "deepseek-v3", "fp8", "", {}, concurrency=2, requests_per_client=3)
    alone = run.means(results)
    assert (alone["e2e"], alone["ttft"]) == pytest.approx(((10 + 8 + 4) / 10, (0.5 + 0.8 + 0.1) / 10))
    handed_over = replace(run, kind="disaggregated").means(results)  # the decode server sends the first token
    assert handed_over["e2e"] == alone["e2e"] and handed_over["ttft"] == pytest.approx(alone["ttft"] + 0.4)
    assert handed_over["tpot"] == pytest.approx((alone["e2e"] - handed_over["ttft"]) / 5)
    long = replace(run, requests_per_client=10).means(results)
    assert long["e2e"] == pytest.approx(5.0)


def test_a_row_that_is_no_setting_is_named(tmp_path: Path) -> None:
    rule = r"settings\.csv:3: must be a setting of InferenceX \(invalid literal .* 'many'\); correct the row"
    with pytest.raises(CalibrationError, match=rule):
        read_settings(table(tmp_path, {}, {"isl": "many"}))


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    path = table(tmp_path, {})
    path.write_text(path.read_text().replace("mean_e2el_s", "e2el"))
    with pytest.raises(CalibrationError, match="must be settings of InferenceX, got no column 'mean_e2el_s'; add it"):
        read_settings(path)


def test_a_table_that_the_page_of_inferencex_exports_is_told_from_settings(tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    path.write_text("Model,ISL,OSL,Hardware,Hardware Key,Framework\n")
    assert is_export(path) and is_table_of_settings(path)
    assert not is_export(table(tmp_path, {}))
    assert not is_export(table(tmp_path, {}))
