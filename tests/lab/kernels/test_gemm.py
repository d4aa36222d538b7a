"""The fit of matrix products finds the coefficients that timings were made with."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from simserve.cost.forms.gemm import Gemm
from simserve.lab.kernels import gemm
from tests.cost.specs import H100

TRUE = Gemm(
    launch_s=5e-6,
    flop_share=0.8,
    byte_share=0.8,
    sharpness=4.0,
    wave_share=0.3,
    input_bytes=2.0,
    store_passes=1.0,
    split_s=4e-6,
    chooses=1.0,
)
SIZES = (1024, 2048, 4096, 8192, 16384)


def timings(noise: float = 0.0, dtype: str = "bf16", true: Gemm = TRUE, between: Sequence[int] = ()) -> pd.DataFrame:
    """A table from known coefficients, with some noise: powers of two of rows, and those `between` them."""
    m, n, k = np.array(list(product([*[2**i for i in range(15)], *between], SIZES, SIZES))).T
    latency_s = true.seconds(H100, dtype, m, n, k)
    latency_s *= np.exp(noise * np.random.default_rng(1).standard_normal(len(m)))
    return pd.DataFrame({"op": "gemm", "dtype": dtype, "m": m, "n": n, "k": k, "latency_s": latency_s})


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_fit_predicts_what_it_has_not_seen(dtype: str) -> None:
    (result,) = gemm.fit(timings(0.02, dtype), H100)
    assert 0.01 < result.residuals.mape_frac < 0.025  # the noise, and nothing else
    assert isinstance(result.form, Gemm)
    assert result.form.launch_s == pytest.approx(TRUE.launch_s, rel=0.1)
    assert result.form.byte_share == pytest.approx(TRUE.byte_share, rel=0.05)


@pytest.mark.parametrize(("few_rows", "empty_share"), [(16.0, 0.5), (32.0, 0.3), (64.0, 0.2)])
def test_the_fit_finds_kernels_for_few_rows_and_what_empty_rows_cost_the_others(
    few_rows: float, empty_share: float
) -> None:
    true = replace(TRUE, chooses=0.0, split_s=0.0, few_rows=few_rows, empty_share=empty_share)
    (result,) = gemm.fit(timings(0.02, "fp8", true, (17, 33, 48, 65, 96, 129, 192, 257, 384)), H100)
    assert isinstance(result.form, Gemm)
    assert (result.form.chooses, result.form.few_rows) == (0.0, few_rows)
    assert result.form.empty_share == pytest.approx(empty_share, rel=0.15)
    assert result.residuals.mape_frac < 0.025


def test_rows_that_time_something_else_are_left_out_and_counted() -> None:
    table = timings()
    small = pd.DataFrame({"op": "gemm", "dtype": "bf16", "m": [1, 1], "n": [64, 4096], "k": [4096, 64]})
    table = pd.concat([table, small.assign(latency_s=1e-5)], ignore_index=True)
    table.loc[(table["m"] == 8192) & (table["n"] == 8192) & (table["k"] == 8192), "latency_s"] = 1e-6
    (result,) = gemm.fit(table, H100)
    assert result.excluded["n or k under a tile"] == 2
    assert result.excluded["faster than the roofs"] == 1
    assert result.excluded["host time in the row"] == 0
    assert result.excluded["weights from the L2 cache"] > 0  # six of 2 MB are in 50 MB
    assert result.n_rows + sum(result.excluded.values()) == len(table)


def test_rows_that_the_host_hides_are_left_out_of_its_kernel_alone() -> None:
    slow, quick = timings().assign(kernel="eager"), timings().assign(kernel="graph")
    slow["latency_s"] = np.maximum(slow["latency_s"], 9e-5)
    (result,) = gemm.fit(pd.concat([slow, quick], ignore_index=True), H100)
    roofs_s = np.maximum(
        2 * slow["m"] * slow["n"] * slow["k"] / H100.flop_per_s["bf16"],
        2 * (slow["n"] * slow["k"] + slow["m"] * (slow["n"] + slow["k"])) / H100.hbm_bytes_per_s,
    )
    assert 0 < result.excluded["host time in the row"] <= (roofs_s < 9e-5).sum()
    assert isinstance(result.form, Gemm)
    assert result.form.launch_s == gemm.QUIET_LAUNCH_S  # what the host hides is not read off its rows


def test_the_same_timings_give_the_same_fit() -> None:
    assert gemm.fit(timings(0.02), H100) == gemm.fit(timings(0.02), H100)
