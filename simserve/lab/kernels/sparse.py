"""Fit of sparse attention over latent vectors: modules of prefill and decode, by dtype of weights and cache."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from simserve import catalog
from simserve.catalog.specs import GpuSpec
from simserve.cost.forms.sparse import SPARSE, SparsePrefillModule, SparseSizes
from simserve.cost.shard import Shard
from simserve.lab.kernels import KernelFit, Residuals, fit_form, held_out
from simserve.lab.kernels.mla import HOSTED
from simserve.lab.kernels.table import FITTED, rows_of

SPARSE_MODELS = {
    "deepseek-ai/DeepSeek-V3.2": "deepseek-v3.2",
    **dict.fromkeys(("zai-org/GLM-5", "zai-org/GLM-5-FP8", "nvidia/GLM-5.2-NVFP4"), "glm-5"),
}
"""Models of the package with such modules, by our names; the last has attention in 16 bits."""

LEAST_CHUNK = 64
"""Fewest tokens of a prompt's chunk that is none of a few tokens to verify."""

SHORT_STEP = 512
"""Tokens up to which a hosted module takes as long as launching its kernels."""

HOST_S = 3e-4
"""Median time of short steps from which a module of prefill was timed with its host: 0.8 to 4 ms, without it 0.15."""

ABOVE_HOST = 1.5
"""Host times from which kernels decide; shorter rows are left out, and the launch becomes the quiet one."""

QUIET_LAUNCH_S: Mapping[str, Mapping[str, float]] = {
    "sparse_prefill_module": {"bf16": 7.5e-5, "fp8_block": 8.5e-5, "nvfp4": 8.5e-5},
    "sparse_decode_module": {"bf16": 5e-5, "fp8_block": 6e-5, "nvfp4": 8e-5},
}
"""Launches of a module with its host hidden: those of TensorRT-LLM on Blackwell, in decode also of SGLang."""

NO_GRAPH = 1.2
"""Ratio of the shortest times per request of a batch and a smaller one that only launches without a CUDA graph
explain."""

FEWEST_ROWS = 60
"""Fewest rows for eleven coefficients."""

SERIES = ["model", "n_heads"]
HELD_OUT = [*SERIES, "batch"]


class SparseRows:
    """The columns of one fit, `(n_rows,)` each, with the sizes of their modules."""

    def __init__(self, rows: pd.DataFrame) -> None:
        """Raises CatalogError for a model that the catalog lacks."""
        self.dtype, self.kv_dtype = str(rows.dtype.iloc[0]), str(rows.kv_dtype.iloc[0])
        self.batch, self.tokens, self.keys = (rows[name].to_numpy() for name in ("batch", "tokens", "keys"))
        own = [vars(_sizes(str(model), int(heads))) for model, heads in zip(rows.model, rows.n_heads, strict=True)]
        self.sizes = SparseSizes(**{name: np.array([each[name] for each in own]) for name in own[0]})

    @property
    def attended(self) -> Any:
        """Query-key pairs of the best keys of all tokens of a request."""
        first = self.keys - self.tokens
        rising = np.clip(self.sizes.top_k - first, 0, self.tokens)
        return rising * first + rising * (rising + 1) / 2 + (self.tokens - rising) * self.sizes.top_k

    def seconds(self, form: Any, gpu: GpuSpec) -> Any:
        """Return the times of a form for the rows."""
        n, sizes = self.batch * self.tokens, self.sizes
        match form:
            case SparsePrefillModule():
                scored, n_keys = n * (self.keys - (self.tokens - 1) / 2), self.batch * self.keys
                attention_s = form.attention_s(gpu, sizes, n, self.batch * self.attended, scored, n_keys)
                return attention_s + form.matrices_s(gpu, self.dtype, sizes.n_weights, n)
        intercept, slope = form.best_line(gpu, sizes, self.kv_dtype, self.batch)
        matrices_s = form.expansion_s(gpu, self.dtype, sizes.n_weights, self.batch)
        scored_s = form.scored_s(gpu, sizes, self.batch) * self.keys
        return intercept + matrices_s + self.batch * (slope * self.attended + scored_s)


@cache
def _sizes(model: str, n_heads: int) -> SparseSizes:
    spec = catalog.load_model(model)
    return SparseSizes.of(Shard(spec, tensor=spec.n_heads // n_heads))


def fit(table: pd.DataFrame, gpu: GpuSpec) -> list[KernelFit]:
    """Fit every operation and dtype of weights and cache ("fp8_block/fp8")."""
    named = table if "kernel" in table else table.assign(kernel="")
    timed = [(op, rows) for op in SPARSE for _, rows in rows_of(named, op).groupby(["dtype", "kv_dtype"])]
    return [fit for op, rows in timed if (fit := _fit_one(op, rows, gpu))]


def _fit_one(op: str, rows: pd.DataFrame, gpu: GpuSpec) -> KernelFit | None:
    """Fit one operation; None with too few rows or an unknown dtype."""
    dtype, kv_dtype = str(rows.dtype.iloc[0]), str(rows.kv_dtype.iloc[0])
    divides = rows.model.map(lambda name: catalog.load_model(name).n_heads) >= rows.n_heads
    kept, excluded = (_decode if op == "sparse_decode_module" else _prompts)(rows[divides])
    held = held_out(kept, HELD_OUT)
    if {dtype, kv_dtype} - set(FITTED) or (~held).sum() < FEWEST_ROWS or not held.any():
        return None
    fitted, others = SparseRows(kept[~held]), SparseRows(kept[held])
    measured = kept.latency_s.to_numpy()
    form: Any = fit_form(SPARSE[op], lambda form: fitted.seconds(form, gpu), measured[~held])
    residuals = Residuals.of(others.seconds(form, gpu), measured[held])
    quiet_s = QUIET_LAUNCH_S[op].get(dtype, np.inf)
    if excluded.get(HOST_TIME) or form.launch_s > HOSTED * quiet_s:
        form = replace(form, launch_s=quiet_s)
    if op == "sparse_prefill_module":
        form = replace(form, dense=float(excluded[WHOLE] > 0))
    excluded = {"more heads than the model has": len(rows) - int(divides.sum()), **excluded}
    return KernelFit(op, f"{dtype}/{kv_dtype}", form, int((~held).sum()), excluded, residuals)


HOST_TIME, WHOLE = "host time", "kernels of whole attention"

FLASHMLA, MANY_HEADS = "FLASHMLA_SPARSE", 32
"""vLLM's kernel on Hopper, and heads from which it turns an fp8 cache into 16 bits for prompts
(flashmla_sparse.py, MIN_HEADS_FOR_BF16_PREFILL); tensor parallelism leaves fewer."""


def _prompts(rows: pd.DataFrame) -> tuple[pd.DataFrame, Mapping[str, int]]:
    """Return the rows of prefill that a fit may use, and the excluded rows by reason."""
    best = rows[~rows.kernel.fillna("").str.contains("dense")]
    turns = (best.kernel == FLASHMLA) & (best.kv_dtype == "fp8") & (best.n_heads >= MANY_HEADS)
    long = best[(best.tokens >= LEAST_CHUNK) & ~turns]
    host_s = long.latency_s[long.batch * long.tokens <= SHORT_STEP].median()
    kept = long[long.latency_s > ABOVE_HOST * host_s] if host_s > HOST_S else long
    names = (WHOLE, "prompt as short as a decode step, or another kernel", HOST_TIME)
    left = (rows, best, long, kept)
    return kept, {name: len(more) - len(less) for name, more, less in zip(names, left, left[1:], strict=False)}


def _decode(rows: pd.DataFrame) -> tuple[pd.DataFrame, Mapping[str, int]]:
    """Return the rows of decode that a fit may use: those of batches that a CUDA graph holds."""
    shortest = rows.pivot_table("latency_s", SERIES, "batch", "min")
    of_request = shortest.div(shortest.columns, axis="columns")
    eager = (of_request > NO_GRAPH * of_request.shift(axis=1)).cummax(axis=1).stack()
    kept = rows[~eager.reindex(pd.MultiIndex.from_frame(rows[[*SERIES, "batch"]])).to_numpy(dtype=bool)]
    return kept, {"no CUDA graph": len(rows) - len(kept)}
