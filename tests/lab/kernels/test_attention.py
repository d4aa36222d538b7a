"""The fit of attention finds the coefficients that timings were made with."""

from dataclasses import asdict
from functools import cache
from itertools import product

import numpy as np
import pandas as pd
import pytest

from simserve.cost.forms.attention import DecodeAttention, PrefillAttention
from simserve.lab.kernels import attention
from tests.cost.specs import H100
from tests.lab.kernels.timings import h100_timings, needs_package

PREFILL = PrefillAttention(1.1e-5, 0.7, 30.0, 0.2, 150.0, 2e5, 0.5, 0.5, 1.5, 16.0)
IN_8_BITS = PrefillAttention(1.1e-5, 0.7, 30.0, 0.2, 150.0, 2e5, 0.5, 0.5, 1.5, 8.0)
DECODE = DecodeAttention(9e-6, 2e-8, 0.85, 10.0, 0.2, 0.15, 4.0, 2e-8)
HEADS = [(h, kv, d) for h, kv, d in product((4, 8, 16, 32, 64), (1, 2, 8), (64, 128, 256)) if 1 <= h / kv <= 16]
SHAPES = list(product(HEADS, (1, 4, 16, 64, 256, 1024), (256, 1024, 8192, 32768)))


@cache
def rows(op: str, kv_dtype: str = "bf16", dtype: str = "bf16", noise: float = 0.02) -> pd.DataFrame:
    """A table of one operation from known coefficients, with some noise."""
    heads, batch, tokens = zip(*SHAPES, strict=True)
    n_heads, n_kv_heads, head_dim = (np.array(column, dtype=float) for column in zip(*heads, strict=True))
    table = pd.DataFrame(
        {
            "op": op,
            "dtype": dtype,
            "kv_dtype": kv_dtype,
            "batch": np.array(batch, dtype=float),
            "tokens": np.array(tokens, dtype=float),
            "n_heads": n_heads,
            "n_kv_heads": n_kv_heads,
            "head_dim": head_dim,
            "window": 0,
            "kernel": "fa",
        }
    )
    n = (table["batch"] * table["tokens"]).to_numpy()
    if op == "prefill_attention":
        form = PREFILL if dtype == "bf16" else IN_8_BITS
        cost = form.at(H100, n_heads, n_kv_heads, head_dim, kv_dtype)
        seconds = cost.seconds(n, n * (table["tokens"].to_numpy() + 1) / 2, n)
    else:
        intercept, slope = DECODE.line(H100, n_heads, n_kv_heads, head_dim, kv_dtype, table["batch"].to_numpy())
        seconds = intercept + slope * n
    return table.assign(latency_s=seconds * np.exp(noise * np.random.default_rng(1).standard_normal(len(table))))


def both() -> pd.DataFrame:
    return pd.concat([rows("prefill_attention"), rows("decode_attention")], ignore_index=True)


def test_the_fit_finds_the_coefficients_that_made_the_timings() -> None:
    prefill, decode = attention.fit(both(), H100)
    assert (prefill.op, prefill.dtype) == ("prefill_attention", "bf16")
    assert (decode.op, decode.dtype) == ("decode_attention", "bf16")
    assert asdict(prefill.form) == pytest.approx(asdict(PREFILL), rel=0.15)
    assert asdict(decode.form) == pytest.approx(asdict(DECODE), rel=0.15)
    for each in (prefill, decode):
        assert 0.01 < each.residuals.mape_frac < 0.02  # the noise, whose mean size is 0.016, and nothing else
        assert abs(each.residuals.bias_frac) < 0.01
    assert prefill.n_rows == len(SHAPES)


def test_caches_have_fits_of_their_own_and_prefill_in_8_bits_too() -> None:
    prefills = [rows("prefill_attention", *dtypes) for dtypes in (("bf16",), ("fp8",), ("fp8", "fp8"))]
    result = attention.fit(pd.concat(prefills, ignore_index=True), H100)
    assert [one.dtype for one in result] == ["bf16", "fp8", "fp8/fp8"]
    assert [asdict(one.form)["compute_bits"] for one in result] == [16, 16, 8]
    assert asdict(result[2].form)["compute_frac"] == pytest.approx(0.7, rel=0.1)
    (only,) = attention.fit(prefills[2], H100)
    assert only.dtype == "fp8"
    assert type(only.form) is PrefillAttention


def test_rows_of_decode_that_do_not_count_are_left_out_by_reason() -> None:
    small = rows("decode_attention").query("batch == 4 and tokens == 8192 and head_dim == 128 and n_kv_heads == 1")
    table = rows("decode_attention").copy()
    long = table.index[table["batch"] * table["tokens"] >= 2**22]
    table.loc[long[:10], "window"] = 1024
    table.loc[long[10:15], "head_dim"] = 192
    table.loc[long[15:35], "kernel"] = "another"
    table.loc[long[35:42], "dtype"] = "fp8"
    table.loc[long[42:45], "tokens"] = 64
    table.loc[long[45:49], "n_heads"] = 17 * table.loc[long[45:49], "n_kv_heads"]
    table.loc[long[49:51], "latency_s"] = 1e-5
    (result,) = attention.fit(table, H100)
    in_l2 = result.excluded["cache stays in the L2"]
    assert dict(result.excluded) == {
        "windowed": 10,
        "other head width": 5,
        "other kernel": 20,
        "context shorter than two tiles": 3,
        "many query heads a KV head": 4,
        "cache stays in the L2": in_l2,
        "faster than the roof": 2,
    }
    assert in_l2 >= len(small)  # 17 MB, a third of the L2, and half of the time that they take
    assert result.n_rows == len(table) - 7 - sum(result.excluded.values())


def test_rows_of_prefill_that_do_not_count_are_left_out_by_reason() -> None:
    table = rows("prefill_attention").copy()
    table.loc[table.index[:10], "window"] = 1024
    table.loc[table.index[10:13], "tokens"] = 127
    table.loc[table.index[-2:], "latency_s"] = 1e-5
    (result,) = attention.fit(table, H100)
    assert dict(result.excluded) == {
        "windowed": 10,
        "other head width": 0,
        "other kernel": 0,
        "prompt shorter than a tile": 3,
        "faster than the roof": 2,
    }


def test_heads_that_were_not_measured_leave_no_trace() -> None:
    narrow = rows("prefill_attention").query("head_dim <= 128")
    (result,) = attention.fit(narrow, H100)
    assert asdict(result.form)["wide"] == 0


def test_the_same_timings_give_the_same_fit() -> None:
    assert attention.fit(both(), H100) == attention.fit(both(), H100)


def test_few_rows_are_not_fitted() -> None:
    assert attention.fit(both().head(40), H100) == []


@needs_package
def test_h100_kernels_are_met_within_a_tenth() -> None:
    result = attention.fit(h100_timings(), H100)
    errors = {(one.op, one.dtype): one.residuals.mape_frac for one in result}
    assert len(errors) == 4
    assert max(errors.values()) < 0.1
    assert errors["prefill_attention", "bf16"] < 0.08
    assert errors["decode_attention", "bf16"] < 0.05
