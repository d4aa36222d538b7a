"""Exchange: what moves tokens to experts on other GPUs and outputs back, by the figures of DeepEP."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from math import comb, prod
from typing import Any, Literal

import numpy as np

from simserve.catalog.dtypes import COMPUTES_IN
from simserve.catalog.layers import Experts
from simserve.catalog.specs import GpuSpec
from simserve.cost.comm import NodeLink, gather_over_nodes_s
from simserve.cost.shard import ACTIVATION_BYTES, Shard

NIC_SHARE = 0.88
"""Share of a network adapter that exchanges reach, as far as it is their bottleneck (DeepEP, docs/legacy.md, EP 32 and
64: 58 and 51 GB/s over an adapter of 50, which include a token's own node; EP 16 in README.md of V2: 90)."""

LINK_SHARE = 0.77
"""Share of the links inside a node that a low-latency exchange reaches (DeepEP, docs/legacy.md, EP 8)."""

FORWARD_SHARE = 0.62
"""Share of these links where a GPU forwards what arrives from other nodes (DeepEP, docs/legacy.md, EP 16 and 32)."""

EXCHANGE_S = 25e-6
"""Launch and synchronization of a low-latency exchange, beside bytes and link latency (DeepEP, docs/legacy.md)."""

LOW_LATENCY_TOKENS = 256
"""Most tokens of a GPU in a low-latency exchange (DeepEP, docs/legacy.md; vLLM, VLLM_MOE_DP_CHUNK_SIZE)."""

NORMAL_BUFFER_BYTES = 2.0**30
"""Buffer for normal exchanges (vLLM, VLLM_DEEPEP_BUFFER_SIZE_MB)."""

SENT_BYTES = {"fp8": 1 + 4 / 128, "fp4": 1 / 2 + 1 / 16}
"""Bytes of a value that is sent in fp8, with a 32-bit scale for 128 (DeepEP), or in nvfp4, with an 8-bit one for 16."""

ExchangeKernels = Literal["normal", "low_latency", "by_batch", "gather", "all_to_all"]
"""Kernels of an exchange; by_batch: low-latency ones for up to LOW_LATENCY_TOKENS a GPU, else normal ones; gather:
collectives of NCCL in place of DeepEP's kernels; all_to_all: as by_batch, also in one node."""


@dataclass(frozen=True)
class Exchange:
    """The exchange of tokens between GPUs that share experts over several whole nodes: to the experts (dispatch), and
    the outputs back (combine). It takes what the GPU with most tokens takes; experts are drawn evenly.

    Normal kernels send a token once to every node with one of its experts, where a GPU forwards it to those of its
    node. Low-latency kernels send it once to every expert, straight to its GPU. Source: DeepEP, docs/legacy.md.
    Without these, an all-gather brings the tokens of all GPUs to all, as many of each as of the GPU with most, and a
    reduce-scatter returns the sums. Source: SGLang, layers/dp_attention.py, DpPaddingMode.
    """

    gpu: GpuSpec
    link: NodeLink
    experts: Experts
    hidden_size: int
    n_gpus: int
    sent_bytes: float = ACTIVATION_BYTES
    """Bytes of a value that dispatch sends, as the experts multiply it; outputs return in 16 bits."""
    kernels: ExchangeKernels = "by_batch"

    @property
    def n_nodes(self) -> int:
        """Nodes of the group."""
        return max(1, self.n_gpus // self.gpu.gpus_per_node)

    @cached_property
    def far_nodes(self) -> float:
        """Other nodes with one of a token's experts."""
        return self._holders(self.n_nodes) * (1 - 1 / self.n_nodes)

    @cached_property
    def gpus(self) -> float:
        """GPUs with one of a token's experts."""
        return self._holders(self.n_gpus)

    @property
    def far_experts(self) -> float:
        """A token's experts on other nodes."""
        return self.experts.top_k * (1 - 1 / self.n_nodes)

    @property
    def near_experts(self) -> float:
        """A token's experts on other GPUs of its node."""
        return self.experts.top_k * (1 / self.n_nodes - 1 / self.n_gpus)

    @property
    def buffer_bytes(self) -> float:
        """Bytes of a GPU's buffers: low-latency kernels hold a place for each token of every GPU and expert, to send
        and to receive, twice (DeepEP, config.hpp, LowLatencyLayout)."""
        if self.kernels == "gather":
            return 0.0
        low_latency = 2 * 2 * self.experts.n_experts * LOW_LATENCY_TOKENS * self.hidden_size * ACTIVATION_BYTES
        return (self.kernels != "normal") * low_latency + (self.kernels != "low_latency") * NORMAL_BUFFER_BYTES

    def seconds(self, n_tokens: Any) -> Any:
        """Return the seconds of dispatch and combine for a GPU's n_tokens, a scalar or `(n,)`; 0 for none."""
        if self.kernels == "gather":
            n_bytes = n_tokens * (self.n_gpus * self.hidden_size * ACTIVATION_BYTES)
            return (n_tokens > 0) * 2 * gather_over_nodes_s(self.gpu, self.link, self.n_nodes, n_bytes)
        ways = self.hidden_size * self.sent_bytes, self.hidden_size * ACTIVATION_BYTES
        return sum(self.pass_s(n_tokens, n_bytes) for n_bytes in ways)

    def pass_s(self, n_tokens: Any, token_bytes: float) -> Any:
        """Return the seconds of one direction by DeepEP's kernels, for the bytes of a token."""
        if self.kernels == "normal":
            return self._normal_s(n_tokens, token_bytes)
        if self.kernels == "low_latency":
            return self._low_latency_s(n_tokens, token_bytes)
        few_s, many_s = self._low_latency_s(n_tokens, token_bytes), self._normal_s(n_tokens, token_bytes)
        return np.where(n_tokens <= LOW_LATENCY_TOKENS, few_s, many_s)

    def _normal_s(self, n_tokens: Any, token_bytes: float) -> Any:
        far_s = n_tokens * (self.far_nodes * token_bytes) / (self.link.bytes_per_s * NIC_SHARE)
        forward_s = n_tokens * (self.gpus * token_bytes) / (self.gpu.link_bytes_per_s * FORWARD_SHARE)
        return (n_tokens > 0) * (EXCHANGE_S + self.link.latency_s + np.maximum(far_s, forward_s))

    def _low_latency_s(self, n_tokens: Any, token_bytes: float) -> Any:
        far_s = n_tokens * (self.far_experts * token_bytes) / (self.link.bytes_per_s * NIC_SHARE)
        near_s = n_tokens * (self.near_experts * token_bytes) / (self.gpu.link_bytes_per_s * LINK_SHARE)
        n_rounds = np.ceil(n_tokens / LOW_LATENCY_TOKENS)
        return n_rounds * (EXCHANGE_S + self.link.latency_s) + np.maximum(far_s, near_s)

    def _holders(self, n_parts: int) -> float:
        """Return how many of n_parts equal parts of the experts have one of a token's, which it draws evenly from all
        experts of `top_groups` groups (DeepSeek-V3, section 2.1.2)."""
        experts = self.experts
        group_size, part_size = experts.n_experts / experts.n_groups, experts.n_experts / n_parts
        n_eligible, n_ways = group_size * experts.top_groups, comb(experts.n_groups, experts.top_groups)
        result = 0.0
        for part in range(n_parts):
            begin, end = part * part_size, (part + 1) * part_size
            groups = range(experts.n_groups)
            shared = [round(min(end, (i + 1) * group_size) - max(begin, i * group_size), 6) for i in groups]
            here = [size for size in shared if size > 0]
            for (n_chosen, n_here), ways in _sums(here).items():
                ways *= comb(experts.n_groups - len(here), max(0, experts.top_groups - n_chosen))
                if n_chosen <= experts.top_groups and ways:
                    missed = prod(max(0.0, 1 - n_here / (n_eligible - i)) for i in range(experts.top_k))
                    result += ways / n_ways * (1 - missed)
        return result


def _sums(sizes: list[float]) -> Counter[tuple[int, float]]:
    """Return how many subsets have each number of members and sum."""
    result = Counter({(0, 0.0): 1})
    for size in sizes:
        result.update({(n + 1, total + size): ways for (n, total), ways in result.items()})
    return result


def exchange_of(shard: Shard, gpu: GpuSpec, link: NodeLink, kernels: ExchangeKernels) -> Exchange | None:
    """Return the exchange of groups that share experts over several nodes, or all to all in one; None for others."""
    experts, n_gpus, dtype = shard.model.experts, shard.tensor * shard.data, COMPUTES_IN.get(shard.weight_dtype, "")
    if experts is None or shard.data == 1 or ((is_near := n_gpus <= gpu.gpus_per_node) and kernels != "all_to_all"):
        return None
    sent_bytes = SENT_BYTES.get(dtype if is_near or dtype == "fp8" else "", ACTIVATION_BYTES)
    link = NodeLink(gpu.link_bytes_per_s, gpu.link_latency_s) if is_near else link
    return Exchange(gpu, link, experts, shard.expert_layer.hidden, n_gpus, sent_bytes, kernels)
