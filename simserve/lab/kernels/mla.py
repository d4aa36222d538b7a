"""Fit of multi-head latent attention: prefill and decode, alone and as modules, by dtype of weights and cache."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.catalog.specs import GpuSpec
from simserve.cost.forms.mla import CACHED, KEY_WIDTH, LATENT, PAIR_WIDTH, MlaDecodeModule, MlaPrefill, MlaPrefillModule
from simserve.lab.kernels import KernelFit, Residuals, fit_form, held_out
from simserve.lab.kernels.table import FITTED, rows_of
from simserve.tables.columns import Floats

LEAST_PROMPT = 16
"""Fewest tokens of a prompt; shorter ones take the kernels of decode."""

QUIET_LAUNCH_S: Mapping[str, Mapping[str, float]] = {
    "mla_prefill_module": {"bf16": 3.6e-5, "fp8_block": 4.5e-5, "nvfp4": 4.5e-5},
    "mla_decode_module": {"bf16": 3e-5, "fp8_block": 4e-5, "nvfp4": 4e-5},
}
"""Launches of a module with its host hidden, by the dtype of its weights: in prefill 31 to 43, 40 to 49, 38 to 65 us,
in decode 21 to 33, 35 to 41 and 35 to 50 (vLLM on B200, TensorRT-LLM on every card)."""

HOSTED = 1.6
"""Quiet launches from which a module was timed with its host, which launches kernel after kernel: 1.6 to 3.3 for vLLM
on other cards. Its rows fit with that time added; servers hide it in CUDA graphs: the launch becomes the quiet one."""

FEWEST_ROWS = 40
"""Fewest rows for nine coefficients."""

LATENT_PREFILL = "flash_attention"
"""The kernel of prefill that the package timed over latent vectors (aiconfigurator, sglang/collect_mla.py: one key of
576 values for all heads). SGLang's servers expand them to heads (attention_backend_handler.py: MHA_ONE_SHOT,
MHA_CHUNKED_KV), so its speed counts, not its work."""

HELD_OUT = ["n_heads", "batch"]
"""Columns that are held out together: none of the eight measured numbers of heads can be spared."""


@dataclass(frozen=True)
class MlaRows:
    """The columns of one fit, `(n_rows,)` each."""

    dtype: str
    kv_dtype: str
    n_heads: Floats
    batch: Floats
    tokens: Floats
    width: Floats
    """Multiplications per pair and head, relative to PAIR_WIDTH."""

    def seconds(self, form: Any, gpu: GpuSpec) -> Any:
        """Return the times of a form for the rows: of whole prompts, or of a line in the keys."""
        n_tokens = self.batch * self.tokens
        prompts = n_tokens, n_tokens * (self.tokens + 1) / 2, n_tokens
        match form:
            case MlaPrefillModule():
                return form.module_s(gpu, self.dtype, self.n_heads, *prompts)
            case MlaPrefill():
                return form.seconds(gpu, self.n_heads * self.width, *prompts)
            case MlaDecodeModule():
                intercept, slope = form.module_line(gpu, self.dtype, self.n_heads, self.kv_dtype, self.batch)
            case _:
                intercept, slope = form.line(gpu, self.n_heads, self.kv_dtype, self.batch)
        return intercept + slope * self.batch * self.tokens


def fit(table: pd.DataFrame, gpu: GpuSpec) -> list[KernelFit]:
    """Fit every operation and dtype; `dtype` is that of the cache ("fp8"), for modules after that of the weights
    ("fp8_block/fp8"). The kernel of the longest contexts counts: for prompts up to 512 tokens, vLLM attends over
    latent vectors, as in decode."""
    timed = [(op, rows) for op in LATENT for _, rows in rows_of(table, op).groupby(["dtype", "kv_dtype"])]
    return [fit for op, rows in timed if (fit := _fit_one(op, rows, gpu))]


def _fit_one(op: str, rows: pd.DataFrame, gpu: GpuSpec) -> KernelFit | None:
    """Fit one operation; None with too few rows or an unknown dtype."""
    dtype, kv_dtype = str(rows["dtype"].iloc[0]), str(rows["kv_dtype"].iloc[0])
    if dtype not in FITTED or kv_dtype not in FITTED:
        return None
    is_latent = (_kernels(rows) == LATENT_PREFILL) & (op == "mla_prefill")
    kept, excluded = _usable(op, rows.assign(width=np.where(is_latent, KEY_WIDTH / PAIR_WIDTH, 1.0)), gpu)
    held = held_out(kept, HELD_OUT)
    if (~held).sum() < FEWEST_ROWS or not held.any():
        return None
    measured = kept["latency_s"].to_numpy()
    sizes = [kept[name].to_numpy() for name in ("n_heads", "batch", "tokens", "width")]
    fitted, others = (MlaRows(dtype, kv_dtype, *(each[chosen] for each in sizes)) for chosen in (~held, held))
    form: Any = fit_form(LATENT[op], lambda form: fitted.seconds(form, gpu), measured[~held])
    residuals = Residuals.of(others.seconds(form, gpu), measured[held])
    quiet_s = QUIET_LAUNCH_S.get(op, {}).get(dtype, np.inf)
    if form.launch_s > HOSTED * quiet_s:
        form = replace(form, launch_s=quiet_s)
    key = f"{dtype}/{kv_dtype}" if op.endswith("module") else kv_dtype
    return KernelFit(op, key, form, int((~held).sum()), excluded, residuals)


def _usable(op: str, rows: pd.DataFrame, gpu: GpuSpec) -> tuple[pd.DataFrame, Mapping[str, int]]:
    """Return the rows that a fit may use, and the excluded rows by reason."""
    decode = op.startswith("mla_decode")
    long = rows if decode else rows[rows["tokens"] >= LEAST_PROMPT]
    ours = long[_kernels(long) == _kernels(long[long["tokens"] == long["tokens"].max()]).min()]
    possible = ours[(_bytes_s(ours, gpu) if decode else _flop_s(ours, gpu)) <= ours["latency_s"]]
    return possible, {
        "prompt as short as a decode step": len(rows) - len(long),
        "another kernel": len(long) - len(ours),
        "faster than the data sheet": len(ours) - len(possible),
    }


def _kernels(rows: pd.DataFrame) -> "pd.Series[str]":
    return rows["kernel"].fillna("") if "kernel" in rows else pd.Series("", index=rows.index)


def _bytes_s(rows: pd.DataFrame, gpu: GpuSpec) -> "pd.Series[float]":
    """Return the seconds to read the cache once; 0 where the L2 keeps it between measurements."""
    n_bytes = rows["batch"] * rows["tokens"] * CACHED * rows["kv_dtype"].map(BYTES_PER_VALUE)
    return (n_bytes / gpu.hbm_bytes_per_s).where(n_bytes > 2 * gpu.l2_bytes, 0.0)


def _flop_s(rows: pd.DataFrame, gpu: GpuSpec) -> "pd.Series[float]":
    """Return the seconds to compute scores and values of whole prompts in 16 bits."""
    pairs = rows["batch"] * rows["tokens"] * (rows["tokens"] + 1) / 2
    return 2 * PAIR_WIDTH * rows["width"] * rows["n_heads"] * pairs / gpu.peak_flop_per_s("bf16")
