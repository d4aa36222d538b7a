"""Fits of latent attention: recover what made the data, count what they leave out, always give the same."""

from dataclasses import asdict
from itertools import product

import numpy as np
import pandas as pd
import pytest

from simserve import catalog
from simserve.cost.forms.mla import MlaDecode, MlaDecodeModule, MlaPrefill, MlaPrefillModule
from simserve.lab.kernels.mla import LATENT_PREFILL, fit
from tests.lab.kernels.timings import h100_timings, needs_package

H100 = catalog.load_gpu("h100-sxm")
HEADS = [2.0**i for i in range(8)]
BATCHES = [2.0**i for i in range(10)]
PREFILL = MlaPrefill(2e-5, 0.6, 0.5, 64.0, 3.0)
PREFILL_MODULE = MlaPrefillModule(8e-5, 0.8, 0.6, 64.0, 2.0, 0.6, 0.7, 3e4)
DECODE = MlaDecode(1e-5, 0.7, 0.85, 0.5, 0.4, 4.0)
DECODE_MODULE = MlaDecodeModule(8e-5, 0.7, 0.85, 0.3, 0.4, 4.0, 0.6, 0.7, 1e5)


def timings(op: str, dtype: str = "bf16", kv_dtype: str = "bf16") -> pd.DataFrame:
    contexts = [64.0, 512.0, 4096.0, 32768.0]
    heads, batch, tokens = (np.array(column) for column in zip(*product(HEADS, BATCHES, contexts), strict=True))
    rows = batch * tokens
    prompt = (rows, rows * (tokens + 1) / 2, rows)
    if op == "mla_prefill":
        seconds = PREFILL.seconds(H100, heads, *prompt)
    elif op == "mla_prefill_module":
        seconds = PREFILL_MODULE.module_s(H100, dtype, heads, *prompt)
    elif op == "mla_decode":
        intercept, slope = DECODE.line(H100, heads, kv_dtype, batch)
        seconds = intercept + slope * rows
    else:
        intercept, slope = DECODE_MODULE.module_line(H100, dtype, heads, kv_dtype, batch)
        seconds = intercept + slope * rows
    return pd.DataFrame(
        {
            "op": op,
            "dtype": dtype,
            "kv_dtype": kv_dtype,
            "batch": batch,
            "tokens": tokens,
            "n_heads": heads,
            "kernel": "ours",
            "latency_s": seconds,
        }
    )


@pytest.mark.parametrize("op", ["mla_prefill", "mla_decode", "mla_prefill_module", "mla_decode_module"])
def test_a_fit_recovers_the_times_that_made_it(op: str) -> None:
    (result,) = fit(timings(op), H100)
    assert (result.op, result.dtype) == (op, "bf16/bf16" if op.endswith("module") else "bf16")
    assert result.residuals.n_rows > 0
    assert result.residuals.mape_frac < 0.01


def test_a_prefill_over_latent_vectors_counts_for_its_speed_not_its_work() -> None:
    heads_s, latent_s = timings("mla_prefill"), timings("mla_prefill").assign(kernel=LATENT_PREFILL)
    wider = 1088 / 320  # multiplications per pair and head: keys of 576 and values of 512, or of 192 and 128
    prompts = latent_s["batch"] * latent_s["tokens"]
    pairs = prompts * (latent_s["tokens"] + 1) / 2
    latent_s["latency_s"] = PREFILL.seconds(H100, latent_s["n_heads"] * wider, prompts, pairs, prompts)
    (by_heads,), (by_vectors,) = fit(heads_s, H100), fit(latent_s, H100)
    at = (16.0, 8192.0, 8192.0 * 8193 / 2, 8192.0)
    assert isinstance(by_heads.form, MlaPrefill)
    assert isinstance(by_vectors.form, MlaPrefill)
    assert by_vectors.form.seconds(H100, *at) == pytest.approx(by_heads.form.seconds(H100, *at), rel=0.01)


def test_a_fit_recovers_the_coefficients_of_decode() -> None:
    (result,) = fit(timings("mla_decode"), H100)
    assert asdict(result.form) == pytest.approx(asdict(DECODE), rel=0.05)


def test_the_same_rows_give_the_same_fit() -> None:
    assert fit(timings("mla_decode_module"), H100) == fit(timings("mla_decode_module"), H100)


def test_a_module_that_was_timed_launch_by_launch_gets_the_launch_that_servers_hide() -> None:
    """vLLM's modules take 57 to 95 us at least on H100, H200, B300, GB200 and GB300, TensorRT-LLM's there 25 to 64."""
    rows = timings("mla_decode_module")
    (hosted,), (quiet,) = fit(rows, H100), fit(rows.assign(latency_s=rows["latency_s"] - 4.5e-5), H100)
    assert isinstance(hosted.form, MlaDecodeModule)
    assert isinstance(quiet.form, MlaDecodeModule)
    assert hosted.form.launch_s == 3e-5
    assert quiet.form.launch_s == pytest.approx(3.5e-5, rel=0.1)
    assert hosted.form.matmul_byte_share == pytest.approx(DECODE_MODULE.matmul_byte_share, rel=0.05)


def test_weights_and_caches_of_other_dtypes_have_their_own_fits() -> None:
    parts = [timings("mla_decode_module", dtype, kv) for dtype in ("bf16", "fp8_block") for kv in ("bf16", "fp8")]
    result = fit(pd.concat(parts, ignore_index=True), H100)
    assert [one.dtype for one in result] == ["bf16/bf16", "bf16/fp8", "fp8_block/bf16", "fp8_block/fp8"]


def test_what_is_left_out_is_counted_by_reason() -> None:
    good = timings("mla_prefill")
    odd = [
        good.head(3).assign(tokens=1.0),
        good.head(2).assign(kernel="other", tokens=512.0),
        good.tail(1).assign(latency_s=1e-5),
    ]
    (result,) = fit(pd.concat([good, *odd], ignore_index=True), H100)
    assert result.excluded == {
        "prompt as short as a decode step": 3,
        "another kernel": 2,
        "faster than the data sheet": 1,
    }


def test_too_few_rows_or_an_unknown_cache_are_not_fitted() -> None:
    assert fit(timings("mla_decode").head(10), H100) == []
    assert fit(timings("mla_decode").assign(kv_dtype="w8a8"), H100) == []


@needs_package
def test_h100_modules_are_met_within_a_tenth() -> None:
    result = {(one.op, one.dtype): one.residuals.mape_frac for one in fit(h100_timings(), H100)}
    assert len(result) == 8
    assert max(result.values()) < 0.1
