"""The fit of attention finds the coefficients that timings were made with."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from simserve.calibrate import attention
from simserve.cost.forms.attention import DecodeAttention, PrefillAttention
from tests.cost.specs import H100

PREFILL = PrefillAttention(1.1e-5, 0.7, 30.0, 150.0, 0.4, 0.6, 3.0)
DECODE = DecodeAttention(8e-6, 0.85, 60.0, 2e-8, 3e-6)
HEADS = [(h, kv, d) for h, kv, d in product((4, 8, 16, 32, 64), (1, 2, 8), (64, 128, 256)) if h >= kv]


def timings(noise: float = 0.0) -> pd.DataFrame:
    """Tables of both operations from known coefficients, with some noise."""
    rows = []
    for (h, kv, d), batch, tokens in product(HEADS, (1, 4, 16, 64, 256), (128, 1024, 8192)):
        shape = {"dtype": "bf16", "kv_dtype": "bf16", "batch": batch, "tokens": tokens, "window": 0, "kernel": "fa"}
        shape |= {"n_heads": h, "n_kv_heads": kv, "head_dim": d}
        n = batch * tokens
        prefill_s = PREFILL.at(H100, h, kv, d, "bf16").seconds(n, n * (tokens + 1) / 2, n)
        intercept_s, slope_s = DECODE.line(H100, h, kv, d, "bf16", batch)
        rows.append({"op": "prefill_attention", **shape, "latency_s": prefill_s})
        rows.append({"op": "decode_attention", **shape, "latency_s": intercept_s + slope_s * n})
    table = pd.DataFrame(rows)
    table["latency_s"] *= np.exp(noise * np.random.default_rng(1).standard_normal(len(table)))
    return table


def test_the_fit_finds_the_coefficients_that_made_the_timings() -> None:
    prefill, decode = attention.fit(timings(noise=0.02), H100)
    for found, true in ((prefill.form, PREFILL), (decode.form, DECODE)):
        assert list(vars(found).values()) == pytest.approx(list(vars(true).values()), rel=0.15)
    for each in (prefill, decode):
        assert 0.01 < each.residuals.mape_frac < 0.025  # the noise, and nothing else
        assert abs(each.residuals.bias_frac) < 0.01
        assert each.n_rows == len(timings()) / 2


def test_rows_that_are_not_the_main_kernel_are_left_out_and_counted() -> None:
    table = timings()
    decode = table["op"] == "decode_attention"
    first = table.index[decode][-100:]
    table.loc[first[:10], "window"] = 1024
    table.loc[first[10:30], "kernel"] = "another"
    table.loc[first[[69, 84]], "latency_s"] = 1e-12
    table.loc[first[40:47], "dtype"] = "fp8"
    _, found = attention.fit(table, H100)
    assert dict(found.excluded) == {
        "computed in other dtypes": 7,
        "windowed": 10,
        "other head width": 0,
        "other kernel": 20,
        "faster than the roofs": 2,
    }


def test_the_same_timings_give_the_same_fit() -> None:
    assert attention.fit(timings(0.02), H100) == attention.fit(timings(0.02), H100)
