"""Timings of kernels: a small table from known coefficients, and what the installed package has of real ones."""

from functools import cache
from importlib.util import find_spec
from itertools import product

import numpy as np
import pandas as pd
import pytest

from simserve.cost.forms.attention import DecodeAttention, PrefillAttention
from simserve.cost.forms.gemm import Gemm
from simserve.lab.kernels.package import read_package
from tests.cost.specs import H100

GEMM = Gemm(5e-6, 0.8, 0.8, 4.0, 0.3, 2.0, 1.0, 4e-6, 1.0)
PREFILL = PrefillAttention(1.1e-5, 0.7, 30.0, 0.2, 150.0, 2e5, 0.5, 0.5, 1.5, 16.0)
DECODE = DecodeAttention(9e-6, 2e-8, 0.85, 10.0, 0.2, 0.15, 4.0, 2e-8)

LAYERS = list(product([2**i for i in range(15)], (1024, 4096, 8192, 16384), (4096, 8192, 16384)))
HEADS = [(8, 1, 128), (16, 2, 128), (32, 8, 128), (32, 32, 64), (64, 8, 128), (16, 4, 64), (8, 8, 256)]
LOADS = list(product(HEADS, (1, 16, 64, 256), (512, 2048, 8192, 32768)))
NOISE = 0.01

needs_package = pytest.mark.skipif(
    find_spec("aiconfigurator_core") is None, reason="needs the extra 'calibrate' (aiconfigurator-core)"
)


@cache
def h100_timings() -> pd.DataFrame:
    """Those of vLLM's kernels in the package, read once for all tests; not to be changed."""
    return read_package("h100-sxm", "vllm")[0]


def timings() -> pd.DataFrame:
    """Everything that a step needs, in bf16 on an H100, with some noise that is always the same."""
    table = pd.concat([_gemm(), _attention("prefill_attention"), _attention("decode_attention")], ignore_index=True)
    noise = np.exp(NOISE * np.random.default_rng(1).standard_normal(len(table)))
    return table.assign(latency_s=table["latency_s"] * noise)


def _gemm() -> pd.DataFrame:
    m, n, k = np.array(LAYERS).T
    latency_s = GEMM.seconds(H100, "bf16", m, n, k)
    return pd.DataFrame({"op": "gemm", "dtype": "bf16", "m": m, "n": n, "k": k, "latency_s": latency_s})


def _attention(op: str) -> pd.DataFrame:
    heads, batch, tokens = zip(*LOADS, strict=True)
    shape = dict(zip(("n_heads", "n_kv_heads", "head_dim"), np.array(heads, dtype=float).T, strict=True))
    n, each = np.array(batch, dtype=float), np.array(tokens, dtype=float)
    if op == "prefill_attention":
        latency_s = PREFILL.at(H100, **shape, kv_dtype="bf16").seconds(n * each, n * each * (each + 1) / 2, n * each)
    else:
        intercept_s, slope_s = DECODE.line(H100, **shape, kv_dtype="bf16", n=n)
        latency_s = intercept_s + slope_s * n * each
    measured = {"dtype": "bf16", "kv_dtype": "bf16", "batch": n, "tokens": each, **shape, "window": 0}
    return pd.DataFrame({"op": op, **measured, "latency_s": latency_s})
