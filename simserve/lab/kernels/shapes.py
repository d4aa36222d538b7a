"""The shapes to time on a card, so that its table can be fitted: layers of models, collectives, copies to the host."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import product
from typing import Any

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.catalog.specs import GpuSpec, ModelSpec
from simserve.cost.forms.attention import TILE
from simserve.cost.forms.collective import COLLECTIVES
from simserve.cost.shard import HEAD_DTYPE, Shard
from simserve.lab.kernels.attention import HEADS, MOST_GROUPED, SHORTEST_CONTEXT
from simserve.lab.kernels.gemm import LEAST
from simserve.lab.kernels.table import ATTENTION, SHAPES

Shape = Mapping[str, Any]
"""An operation, `op`, with its columns of SHAPES."""

MODELS = ("gemma-2-9b", "gpt-oss-120b", "llama-2-7b", "llama-3.1-8b", "llama-3.1-70b", "qwen3-32b")
"""Models timed on every card, so that shapes suffice to hold some out of a fit: heads of width 64, 128 and 256, grouped
and not, and hidden sizes from 2,880 to 8,192."""

TENSOR = (1, 2, 4, 8)
"""GPUs that divide each model."""

ROWS = (*(2**i for i in range(15)), 48, 65, 96, 192, 257, 384, 768, 1536, 3072)
"""Tokens of a step: powers of two and what lies between, some just above a tile."""

MOST_SAMPLED = 1024
"""Most rows of the LM head, which computes sampled tokens only."""

PROMPTS = tuple(product((1, 4, 16, 64), (TILE, 512, 1024, 2048, 4096, 8192, 16384, 32768)))
"""(requests, tokens of each) of prefill."""

CONTEXTS = tuple(product((1, 4, 16, 64, 256), (SHORTEST_CONTEXT, 1024, 2048, 4096, 8192, 32768, 131072)))
"""(requests, keys of each) of decode."""

MOST_PROMPT_TOKENS = 65536
"""Most tokens of a prefill, twice the largest steps of engines."""

CACHE_SHARE = 0.2
"""Most of the card's memory for the keys and values of a measurement, which are made twice."""

MESSAGES = tuple(2**i for i in range(10, 29))
"""Bytes of collectives and copies: 1 KiB to 256 MiB."""


def shapes_to_time(
    models: Sequence[ModelSpec], gpu: GpuSpec, dtypes: Collection[str], n_gpus: int
) -> tuple[Shape, ...]:
    """List the shapes of a table that `--from` can fit, in an order that follows neither size nor operation.

    Any first part is a sample of all operations on one GPU, which can be fitted. Collectives are of 2, 4 and 8 of the
    n_gpus at hand, and come last, group by group.
    """
    groups = [n for n in TENSOR if 1 < n <= n_gpus]
    unique: dict[tuple[str, ...], Shape] = {}
    for shape in (
        *_products(models, dtypes),
        *_attention(models, gpu),
        *({"op": op, "dtype": "bf16", "n_gpus": n, "bytes": b} for n in groups for op in COLLECTIVES for b in MESSAGES),
        *({"op": "host_copy", "direction": to, "bytes": b} for to in ("to_host", "to_device") for b in MESSAGES),
    ):
        unique.setdefault(key_of(shape), shape)
    # A card that warms up meanwhile must not slow the large shapes alone, and the time left must be told from any part.
    order = {key: sha256("/".join(key).encode()).hexdigest() for key in unique}
    return tuple(unique[key] for key in sorted(unique, key=lambda key: (unique[key].get("n_gpus", 0), order[key])))


def key_of(shape: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what tells a shape from others, the same for numbers and for their text in a file."""
    return (str(shape["op"]), *(str(shape[column]) for column in SHAPES[shape["op"]]))


def _products(models: Sequence[ModelSpec], dtypes: Collection[str]) -> Iterator[Shape]:
    for model, tensor in _shards(models):
        shard = Shard(model, tensor=tensor)
        dense = shard.mlp_matrices if model.n_dense_layers else {}
        layers = {**shard.attention_matrices, **dense, **shard.shared_matrices, **shard.linear_matrices}
        head = (model.hidden_size, -(-model.vocab_size // tensor))
        for dtype, (k, n), m in product(dtypes, layers.values(), ROWS):
            if min(n, k) >= LEAST and not (dtype != HEAD_DTYPE and (n % 16 or k % 16)):  # cuBLAS multiplies no others
                yield {"op": "gemm", "dtype": dtype, "m": m, "n": n, "k": k}
        for m in ROWS:
            if m <= MOST_SAMPLED:
                yield {"op": "gemm", "dtype": HEAD_DTYPE, "m": m, "n": head[1], "k": head[0]}


def _attention(models: Sequence[ModelSpec], gpu: GpuSpec) -> Iterator[Shape]:
    for model, tensor in _shards(models):
        if model.mla is not None or not model.n_attention_layers:
            continue
        shard = Shard(model, tensor=tensor)
        heads = dict(zip(HEADS, (shard.n_heads, shard.n_kv_heads, model.head_dim), strict=True))
        key_bytes = 2 * shard.n_kv_heads * model.head_dim * BYTES_PER_VALUE["bf16"]
        for op, loads in (("prefill_attention", PROMPTS), ("decode_attention", CONTEXTS)):
            for batch, tokens in loads:
                n_keys = batch * tokens
                is_decode = op == "decode_attention"
                fits = n_keys * key_bytes <= CACHE_SHARE * gpu.hbm_bytes if is_decode else n_keys <= MOST_PROMPT_TOKENS
                if fits and not (is_decode and shard.n_heads > MOST_GROUPED * shard.n_kv_heads):
                    columns = ("bf16", "bf16", batch, tokens, *heads.values(), 0)
                    yield {"op": op, **dict(zip(ATTENTION, columns, strict=True))}


def _shards(models: Sequence[ModelSpec]) -> Iterator[tuple[ModelSpec, int]]:
    """Yield each model with the numbers of GPUs that divide its heads."""
    for model, tensor in product(models, TENSOR):
        if all(heads.divides(tensor) for heads in model.all_heads):
            yield model, tensor
