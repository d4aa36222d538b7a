"""Fit of layers with a state, gated delta nets: prompts and decoding requests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from simserve.catalog.specs import GpuSpec
from simserve.cost.forms.state import CHUNK, STATES
from simserve.lab.kernels import KernelFit, Residuals, fit_form, held_out
from simserve.lab.kernels.table import rows_of

TRTLLM = "TRTLLM"
"""The framework with states in 16 bits: with 32, its updates would be faster than memory."""

SHAPE = ["batch_size", "seq_len", "d_model", "d_conv", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim"]
LEAST_PROMPT = 16
"""Fewest tokens of a prompt; shorter ones take less than a quarter of a chunk."""

L2_SHARE = 1 / 3
"""Share of the measured time from which moving states matters; repeated measurements find small ones in the L2."""

UNSOUND = 0.25
"""Held-out error of timings that no form explains: those of small L2s, and of SGLang on H200, where long prompts take
three times as long as on H100. The default calibration stands in."""

FEWEST_ROWS = 20


def whole_layers(phase: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the sums of convolution and update, which the package timed one by one."""
    ours = rows[rows.phase == phase]
    sums = ours.groupby(SHAPE, as_index=False).agg(latency=("latency", "sum"), n=("latency", "size"))
    n_bytes = 2 if (rows.framework == TRTLLM).any() else 4
    return sums[sums.n == 2].assign(kernel_source="sum", value_bytes=n_bytes)


def state_values(rows: pd.DataFrame) -> "pd.Series[Any]":
    """Return the values of a request's state."""
    return rows.num_v_heads * rows.head_k_dim * rows.head_v_dim


def state_bytes(rows: pd.DataFrame) -> "pd.Series[Any]":
    """Return the bytes of a request's state, and of the last inputs of its convolution."""
    convolved = 2 * rows.num_k_heads * rows.head_k_dim + rows.num_v_heads * rows.head_v_dim
    return state_values(rows) * rows.value_bytes + 2 * (rows.d_conv - 1) * convolved


OPERATIONS: Mapping[str, tuple[Callable[[pd.DataFrame], Sequence["pd.Series[Any]"]], list[str]]] = {
    "gdn_prefill": (lambda rows: (rows.state_values, rows.batch * rows.tokens, rows.tokens), ["state_values", "batch"]),
    "gdn_decode": (lambda rows: (rows.state_bytes, rows.batch), ["state_bytes", "batch"]),
}
"""(what the form's time depends on, columns held out together) of each."""


def fit(table: pd.DataFrame, gpu: GpuSpec) -> list[KernelFit]:
    """Fit both operations where they were timed."""
    return [fit for op in OPERATIONS if (fit := _fit_one(op, rows_of(table, op), gpu))]


def _fit_one(op: str, rows: pd.DataFrame, gpu: GpuSpec) -> KernelFit | None:
    work, keys = OPERATIONS[op]
    if op == "gdn_prefill":
        kept, reason = rows[rows.tokens >= LEAST_PROMPT], f"prompts far below {CHUNK} tokens"
    else:
        n_bytes = 2 * rows.batch * rows.state_bytes
        is_short = n_bytes / gpu.hbm_bytes_per_s < L2_SHARE * rows.latency_s
        kept, reason = rows[(n_bytes > 2 * gpu.l2_bytes) | is_short], "states stay in the L2"
    held = held_out(kept, keys)
    if (~held).sum() < FEWEST_ROWS or not held.any():
        return None
    measured = kept.latency_s.to_numpy()
    form_type: Any = STATES[op]
    form = fit_form(form_type, lambda form: form.seconds(gpu, *work(kept[~held])), measured[~held])
    residuals = Residuals.of(form.seconds(gpu, *work(kept[held])), measured[held])
    if residuals.mape_frac > UNSOUND:
        return None
    return KernelFit(op, "bf16", form, int((~held).sum()), {reason: len(rows) - len(kept)}, residuals)
