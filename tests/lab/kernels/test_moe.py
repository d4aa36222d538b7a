"""Fits of expert layers: recover what made the data, count what they leave out, always give the same."""

import numpy as np
import pandas as pd
import pytest

from simserve import catalog
from simserve.cost.forms.moe import MoeLayer
from simserve.lab.kernels.moe import fit
from tests.lab.kernels.timings import h100_timings, needs_package

H100 = catalog.load_gpu("h100-sxm")
TRUE = MoeLayer(2e-5, 1e-7, 2e-7, 0.6, 0.85, 16.0, 3e-7, 0.9, 0.5, 1.5)
MODELS = [(2048, 768, 8, 128), (4096, 1536, 8, 128), (3072, 1024, 8, 256), (4096, 14336, 2, 8), (5120, 8192, 1, 16)]
TOKENS = 2.0 ** np.arange(0, 15)


def series(model: tuple[int, int, int, int], tensor: int, expert: int, routing: str, dtype: str) -> pd.DataFrame:
    hidden, inter, top_k, n_experts = model
    shape = {"hidden": hidden, "inter": inter, "top_k": top_k, "n_experts": n_experts, "tensor": tensor}
    seconds = TRUE.seconds(H100, dtype, TOKENS, **shape, expert=expert, routing=routing)
    return pd.DataFrame(
        {
            "op": "moe",
            "dtype": dtype,
            "tokens": TOKENS,
            **shape,
            "expert": expert,
            "routing": routing,
            "kernel": "ours",
            "latency_s": seconds,
        }
    )


def timings(dtype: str = "bf16") -> pd.DataFrame:
    parts = [
        series(model, tensor, expert, routing, dtype)
        for model in MODELS
        for tensor, expert in [(1, 1), (4, 1), (1, 2), (1, 4)]
        for routing in ("balanced", "power_law_1.2")
    ]
    return pd.concat(parts, ignore_index=True)


def test_a_fit_recovers_the_times_that_made_it() -> None:
    (result,) = fit(timings(), H100)
    assert (result.op, result.dtype) == ("moe", "bf16")
    assert result.residuals.n_rows > 0
    assert result.residuals.mape_frac < 0.01
    assert isinstance(result.form, MoeLayer)
    assert result.form.byte_share == pytest.approx(TRUE.byte_share, rel=0.05)
    assert result.form.flop_share == pytest.approx(TRUE.flop_share, rel=0.1)


def test_the_same_rows_give_the_same_fit() -> None:
    assert fit(timings(), H100) == fit(timings(), H100)


def test_every_dtype_has_its_fit() -> None:
    both = pd.concat([timings("bf16"), timings("fp8_block")], ignore_index=True)
    assert [result.dtype for result in fit(both, H100)] == ["bf16", "fp8_block"]


def test_another_kernel_for_shared_experts_has_a_fit_of_its_own() -> None:
    rows = timings()
    rows.loc[rows["expert"] > 1, "kernel"] = "other"
    assert [result.dtype for result in fit(rows, H100)] == ["bf16", "bf16+ep"]


def test_of_two_kernels_of_the_same_layers_the_faster_counts_as_servers_are_set_to_use_it() -> None:
    """TensorRT-LLM's experts in nvfp4 on a B200 were timed with CUTLASS for 17 models, with TRTLLM for 15."""
    slow = timings().assign(kernel="slow", latency_s=lambda rows: 2 * rows["latency_s"])
    fast = timings().query(f"hidden != {MODELS[0][0]}")
    (result,) = fit(pd.concat([slow, fast], ignore_index=True), H100)
    assert result.excluded["another kernel"] == len(slow)
    assert result.form == fit(fast, H100)[0].form


def test_what_is_left_out_is_counted_by_reason() -> None:
    n = len(TOKENS)
    model = MODELS[1]
    odd = [
        series(model, 2, 1, "balanced", "bf16").assign(kernel="rare"),
        series(model, 2, 1, "balanced", "bf16").assign(routing="by hand"),
        series((2688, 1856, 6, 128), 1, 1, "balanced", "bf16"),
        series(model, 1, 16, "balanced", "bf16"),
        series(model, 2, 1, "balanced", "bf16").assign(latency_s=lambda rows: rows["latency_s"] / 2),
    ]
    (result,) = fit(pd.concat([timings(), *odd], ignore_index=True), H100)
    excluded = dict(result.excluded)
    in_cache = excluded.pop("weights stay in the L2")
    assert excluded == {
        "another kernel": n,
        "routing unknown": n,
        "two matrices an expert": n,
        "more GPUs than a node has": n,
        "series reads faster than memory": n - (in_cache - fit(timings(), H100)[0].excluded["weights stay in the L2"]),
    }


def test_too_few_rows_are_not_fitted() -> None:
    assert fit(timings().head(20), H100) == []


@needs_package
def test_h100_layers_meet_their_bar() -> None:
    rows = h100_timings().query("op == 'moe' and dtype in ('bf16', 'fp8_block', 'mxfp4')")
    result = {one.dtype: one.residuals.mape_frac for one in fit(rows, H100)}
    assert result.keys() == {"bf16", "fp8_block", "fp8_block+ep", "mxfp4"}
    assert max(result.values()) <= 0.15
