"""Fits of sparse attention: recover the times that made them, count what they leave out."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from simserve import catalog
from simserve.cost.forms.sparse import SparseDecodeModule, SparsePrefillModule
from simserve.lab.kernels.sparse import QUIET_LAUNCH_S, SparseRows, fit
from tests.lab.kernels.timings import h100_timings, needs_package

H100 = catalog.load_gpu("h100-sxm")
PREFILL = SparsePrefillModule(8e-5, 0.5, 24.0, 0.6, 0.3, 5e3, 0.5, 0.7, 1e5, 3.0, 0.0)
DECODE = SparseDecodeModule(5e-5, 0.7, 0.8, 0.3, 2.0, 4.0, 0.6, 0.7, 1e5, 0.4, 5.0)


def timings(op: str, form: SparsePrefillModule | SparseDecodeModule) -> pd.DataFrame:
    prefill = op == "sparse_prefill_module"
    models, heads = ("deepseek-v3.2", "glm-5"), (8.0, 16.0, 32.0, 64.0)
    batches, tokens = (1.0, 2.0, 4.0, 8.0, 16.0), (64.0, 512.0, 2048.0, 8192.0) if prefill else (1.0,)
    before = (0.0, 1000.0, 4096.0, 32_768.0) if prefill else (1.0, 512.0, 4096.0, 32_768.0, 131_072.0)
    shapes = list(product(models, heads, batches, tokens, before))
    rows = pd.DataFrame(shapes, columns=["model", "n_heads", "batch", "tokens", "keys"])
    rows = rows.assign(op=op, dtype="bf16", kv_dtype="bf16", kernel="ours", keys=rows["keys"] + rows["tokens"])
    return rows.assign(latency_s=SparseRows(rows).seconds(form, H100))


@pytest.mark.parametrize(("op", "form"), [("sparse_prefill_module", PREFILL), ("sparse_decode_module", DECODE)])
def test_a_fit_recovers_the_times_that_made_it(op: str, form: SparsePrefillModule | SparseDecodeModule) -> None:
    (result,) = fit(timings(op, form), H100)
    assert (result.op, result.dtype) == (op, "bf16/bf16")
    assert result.residuals.mape_frac < 0.01
    assert result.form.launch_s == pytest.approx(form.launch_s, rel=0.2)  # type: ignore[attr-defined]


def test_prompts_attend_the_best_keys_of_each_token() -> None:
    rows = pd.DataFrame(
        {"model": "glm-5", "n_heads": 8, "batch": 1, "tokens": [100, 4096, 64], "keys": [100, 4096, 2080]}
    ).assign(dtype="bf16", kv_dtype="bf16")
    by_hand = [
        sum(min(key, 2048) for key in range(n - m + 1, n + 1)) for m, n in ((100, 100), (4096, 4096), (64, 2080))
    ]
    assert SparseRows(rows).attended.tolist() == by_hand


def test_a_module_that_was_timed_with_its_host_gets_the_quiet_launch() -> None:
    rows = timings("sparse_prefill_module", PREFILL)
    hosted = rows.assign(latency_s=np.maximum(rows["latency_s"], 1e-3))
    (result,) = fit(hosted, H100)
    assert result.excluded["host time"] > 0
    assert result.form.launch_s == QUIET_LAUNCH_S["sparse_prefill_module"]["bf16"]  # type: ignore[attr-defined]
    (result,) = fit(timings("sparse_decode_module", replace(DECODE, launch_s=1.5e-4)), H100)
    assert result.form.launch_s == QUIET_LAUNCH_S["sparse_decode_module"]["bf16"]  # type: ignore[attr-defined]


def test_kernels_of_whole_attention_are_left_out_and_remembered() -> None:
    rows = timings("sparse_prefill_module", PREFILL)
    whole = rows.head(30).assign(kernel="dense_mha", latency_s=1e-3)
    (result,) = fit(pd.concat([rows, whole], ignore_index=True), H100)
    assert result.excluded["kernels of whole attention"] == 30
    assert result.form.dense == 1.0  # type: ignore[attr-defined]


def test_batches_without_a_cuda_graph_are_left_out() -> None:
    rows = timings("sparse_decode_module", DECODE)
    eager = rows.assign(latency_s=rows["latency_s"].where(rows["batch"] < 8, 2e-3))
    (result,) = fit(eager, H100)
    assert result.excluded["no CUDA graph"] == (rows["batch"] >= 8).sum()
    assert result.residuals.mape_frac < 0.01


@needs_package
def test_h100_modules_are_met_within_a_tenth() -> None:
    result = {(one.op, one.dtype): one.residuals.mape_frac for one in fit(h100_timings(), H100)}
    assert len(result) == 8
    assert max(result.values()) < 0.1
