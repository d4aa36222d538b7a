"""Kernels: the kernel times of a step on one GPU, the interface of rooflines and fits."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, sqrt
from typing import Any, Protocol

import numpy as np

from simserve.catalog.layers import LayerGroup
from simserve.catalog.specs import ModelSpec
from simserve.catalog.states import Matrices
from simserve.cost.layer_shards import whole_shards
from simserve.cost.shard import Shard


class PrefillAttentionCost(Protocol):
    """Causal attention of all prompt chunks of a step, in one layer."""

    def seconds(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """Return the seconds for query tokens, query-key pairs and keys read; scalars or arrays; monotone in each."""


@dataclass(frozen=True)
class PrefillCost:
    """Prefill attention over grouped heads of one layer on one GPU; each a number or `(n,)`.

    Only +, * and a square root: scalars and arrays agree bit by bit, and whole numbers with floats, which are faster.
    """

    launch_s: Any
    pair_s: Any
    row_s: Any
    tail_s2: Any
    """Seconds squared per pair."""
    query_s: Any
    key_s: Any
    write_s: Any

    def seconds(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """Return the seconds for the query tokens, query-key pairs and keys read of all chunks of a step."""
        work_s = n_pairs * self.pair_s + n_tokens * self.row_s
        memory_s = n_tokens * self.query_s + n_context_tokens * self.key_s
        squares = work_s * work_s + n_pairs * self.tail_s2 + memory_s * memory_s
        # same bits for a number as for a cell of an array, as both are correctly rounded
        busy_s = sqrt(squares) if isinstance(squares, float) else np.sqrt(squares)
        return self.launch_s + busy_s + n_tokens * self.write_s


class Kernels(Protocol):
    """Seconds on one GPU, for scalars or arrays. No work may still cost a launch."""

    def matmul_s(self, dtype: str, m: Any, n: int, k: int) -> Any:
        """Time (m, k) activations times (k, n) weights stored in dtype."""

    def projections_s(self, shard: Shard, n_tokens: Any) -> Any:
        """Time the matrices around one layer's attention, for all tokens of a step."""

    def experts_s(self, shard: Shard, n_tokens: Any) -> Any:
        """Time the routed experts of one layer on the busiest GPU, without gate and collectives."""

    def elementwise_s(self, n_bytes: Any, n_kernels: int) -> Any:
        """Time kernels that move bytes and compute little."""

    def all_reduce_s(self, n_gpus: int, n_bytes: Any) -> Any:
        """Time a sum over the GPUs of a group; 0 for a group of one."""

    def all_gather_s(self, n_gpus: int, n_bytes: Any) -> Any:
        """Time a gather: every GPU of a group ends with n_bytes, of which each had a part."""

    def reduce_scatter_s(self, n_gpus: int, n_bytes: Any) -> Any:
        """Time a reduction: every GPU of a group has n_bytes, and ends with a part of their sums."""

    def prefill_attention(self, shard: Shard) -> PrefillAttentionCost:
        """Return the attention of one layer of a shard."""

    def decode_attention(self, shard: Shard, n: Any) -> tuple[Any, Any]:
        """Return (intercept, slope): attention of n decoding requests in one layer takes intercept + slope * keys
        attended on the GPU, by the heads of all GPUs that divide a context."""

    def scored_s(self, shard: Shard, n: Any) -> Any:
        """Time the indexer of one layer per key of n decoding requests, all of which it scores."""

    def states_s(self, shard: Shard, n: Any) -> Any:
        """Time the states of n decoding requests in one layer."""

    def prompt_states(self, shard: Shard) -> PrefillAttentionCost | None:
        """Return what the states of one layer take for prompts, beside what any token does; None for nothing."""


def prompt_tokens(n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
    """Return the query tokens of each of a step's prompts, from the sums over all; exact for prompts that are alike."""
    return (n_pairs / n_tokens - 0.5) / (n_context_tokens / n_tokens - 0.5)


def n_copies(model: ModelSpec, tensor: int) -> int:
    """Count the GPUs of a group that attend the same keys: all with latent vectors, else those of one KV head."""
    return tensor if model.mla else gcd(*(max(1, tensor // heads.n_kv_heads) for heads in model.all_heads))


def attending(shard: Shard) -> Shard:
    """Return the heads that a GPU decodes: those of all GPUs that divide a context, over its part of the tokens."""
    return replace(shard, tensor=shard.tensor // shard.decode_context, decode_context=1)


def draft_shard(target: Shard, model: ModelSpec, weight_dtype: str) -> Shard:
    """Return a GPU's shard of a draft model. GPUs divide its contexts as far as these have copies of the same keys."""
    divided = gcd(target.decode_context, n_copies(model, target.tensor))
    return replace(target, model=model, weight_dtype=weight_dtype, expert=1, data=1, decode_context=divided)


MANY_KEYS = 8192
"""Enough keys for a product to reach its best speed."""


@dataclass(frozen=True)
class ExpandedPrefill:
    """Prefill over latent vectors, which are expanded to keys and values first, including the cached context."""

    attention: PrefillAttentionCost
    key_s: float
    """Seconds to expand the keys and values of all heads for one token, among many."""

    @classmethod
    def of(cls, attention: PrefillAttentionCost, kernels: Kernels, shard: Shard) -> "PrefillAttentionCost":
        """Wrap an attention cost; without expansion, return it unchanged."""
        if shard.expansion is None:
            return attention
        n_in, n_out = shard.expansion
        return cls(attention, float(kernels.matmul_s(shard.dense_dtype, MANY_KEYS, n_out, n_in)) / MANY_KEYS)

    def seconds(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """Return the seconds of attention and of expanding all keys."""
        return self.attention.seconds(n_tokens, n_pairs, n_context_tokens) + n_context_tokens * self.key_s


@dataclass(frozen=True)
class EntryPrefill:
    """Attention of prompts to the entries of all layers of a group; groups of GPUs divide tokens and pairs.

    An entry is a key of latent attention, with an indexer of sparse attention. One kernel attends the window, too, so
    that its launch and queries count there (DeepSeek-V4, section 2.3).
    """

    attention: PrefillAttentionCost
    group: LayerGroup
    n_parts: int

    def seconds(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """Return the seconds beside those of windows."""
        group, n = self.group, self.n_parts
        n_queries = n_tokens / n if group.indexer else 0.0 * n_tokens
        entries = n_pairs / group.ratio / n, n_context_tokens / group.ratio
        return group.n_layers * self.attention.seconds(n_queries, *entries)


def entry_prefills(shard: Shard, kernels: Kernels) -> list[EntryPrefill]:
    """Return the attention of prompts to entries, by group."""
    return [
        EntryPrefill(kernels.prefill_attention(of_entries), group, shard.prefill_context)
        for of_entries, group in whole_shards(shard)
        if group.has_entries
    ]


def entry_lines(shard: Shard, kernels: Kernels, n: Any) -> Iterator[tuple[Any, Any]]:
    """Yield for each group the attention of n decoding requests to entries in all its layers, beside that of windows:
    what does not depend on their tokens, and per token."""
    for of_entries, group in (each for each in whole_shards(shard) if each[1].has_entries):
        _, slope_s = kernels.decode_attention(of_entries, n)
        chosen_s, token_s = 0.0 * n, slope_s
        if group.indexer is not None:  # kernels attend top_k entries, however few there are
            chosen_s, token_s = n * (group.indexer.top_k * slope_s), kernels.scored_s(of_entries, n)
        n_parts = shard.decode_context
        yield group.n_layers * chosen_s / n_parts, group.n_layers * token_s / (group.ratio * n_parts)


def matrices_s(kernels: Kernels, dtype: str, n_tokens: Any, matrices: Matrices) -> Any:
    """Sum the times of matrices, each (rows in, columns out); 0 for none."""
    return sum(kernels.matmul_s(dtype, n_tokens, n_out, n_in) for n_in, n_out in matrices.values())
