"""Context parallelism: GPUs that divide the tokens of a context while decoding, or of a prompt, and what they exchange.

Sources: vLLM, docs/serving/context_parallel_deployment.md, v1/attention/ops/common.py (cp_lse_ag_out_rs), backends
flash_attn.py (_forward_with_dcp) and mla/common.py, RFC 46358 (both are independent); Helix (arXiv:2507.07120).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.cost.comm import between_nodes_s
from simserve.cost.kernels import PrefillAttentionCost, attending
from simserve.cost.operations import ReplicaLinks
from simserve.cost.shard import ACTIVATION_BYTES, Shard

LSE_BYTES = 4
"""A log-sum-exp of a head, in 32 bits."""


@dataclass(frozen=True)
class ContextExchange:
    """What GPUs exchange in one layer with attention; nothing takes time where nothing is divided.

    Layers with states exchange nothing: a state is not divided, and groups compute those of a prompt in turn.
    """

    links: ReplicaLinks

    def of(self, shard: Shard) -> "ContextExchange":
        """Return the exchange in layers with the heads of a shard."""
        return ContextExchange(replace(self.links, shard=shard))

    def queries_s(self, n: Any) -> Any:
        """Return the exchange for n queries over divided contexts: gathers of all heads' queries and of their
        log-sum-exps, and a scatter of summed outputs."""
        shard, kernels = self.links.shard, self.links.kernels
        mla, n_parts, n_heads = shard.model.mla, shard.decode_context, n * attending(shard).n_heads
        widths = (mla.cached_size, mla.kv_lora_rank) if mla else (shard.key_size, shard.value_size)
        query_bytes, output_bytes = (n_heads * width * ACTIVATION_BYTES for width in widths)
        gathered_s = self._pass_s(kernels.all_gather_s, n_parts, 1, query_bytes)
        lse_s = self._pass_s(kernels.all_gather_s, n_parts, 1, n_heads * (n_parts * LSE_BYTES))
        return gathered_s + lse_s + self._pass_s(kernels.reduce_scatter_s, n_parts, 1, output_bytes)

    def prompt_s(self, n_tokens: Any, n_context_tokens: Any) -> Any:
        """Return the exchange for prompts: groups gather the new keys and values of all. Over divided contexts, queries
        are exchanged as in decoding, or cached latent vectors gathered, which prefill expands."""
        shard, gather = self.links.shard, self.links.kernels.all_gather_s
        n_groups, index = shard.prefill_context, shard.model.indexer
        token_bytes = shard.attended_bytes / BYTES_PER_VALUE[shard.kv_dtype] * ACTIVATION_BYTES
        new_bytes = n_tokens * (token_bytes if index is None else token_bytes + index.bytes_per_token)
        new_s = self._pass_s(gather, n_groups, shard.tensor * shard.data, new_bytes)
        if shard.model.mla is None:
            return new_s + self.queries_s(n_tokens / n_groups)
        n_cached = n_context_tokens - n_tokens
        return new_s + (n_cached > 0) * self._pass_s(gather, shard.decode_context, 1, n_cached * token_bytes)

    def step_s(self, n_tokens: int, n_queries: int) -> float:
        """Return the exchange of a step in all layers, for whole prompts and for decoding queries."""
        by_heads = [(self.of(shard), n_layers) for shard, n_layers in self.links.shard.by_heads]
        prompts_s = sum(n * float(each.prompt_s(n_tokens, n_tokens)) for each, n in by_heads) if n_tokens else 0.0
        return prompts_s + (sum(n * float(each.queries_s(n_queries)) for each, n in by_heads) if n_queries else 0.0)

    def divided(self, attention: PrefillAttentionCost) -> PrefillAttentionCost:
        """Return the attention of prompts with its exchange; unchanged where nothing is divided."""
        shard = self.links.shard
        return attention if shard.decode_context == shard.prefill_context == 1 else DividedPrefill(attention, self)

    def _pass_s(self, kernel: Callable[[int, Any], Any], n_gpus: int, stride: int, n_bytes: Any) -> Any:
        """Return an all-gather or reduce-scatter over n_gpus, of which every stride-th is one: between nodes, where
        each GPU has its part of what a node sends, and in each node."""
        n_near = max(1, min(n_gpus, self.links.gpu.gpus_per_node // stride))
        far_s = between_nodes_s(self.links.node_link, -(-n_gpus // n_near), n_bytes / n_near)
        return kernel(n_near, n_bytes) + far_s


@dataclass(frozen=True)
class DividedPrefill:
    """Attention of prompts, of which each group has as many tokens and pairs (vLLM, RFC 46358: zigzag) and all keys."""

    attention: PrefillAttentionCost
    exchange: ContextExchange

    def seconds(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """Return the seconds of one group's attention and of the exchange."""
        n = self.exchange.links.shard.prefill_context
        own_s = self.attention.seconds(n_tokens / n, n_pairs / n, n_context_tokens)
        return own_s + self.exchange.prompt_s(n_tokens, n_context_tokens)
