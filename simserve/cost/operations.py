"""The operations of a step: what layers do alike, and how many layers do it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.catalog.dtypes import BYTES_PER_VALUE, COMPUTES_IN
from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.specs import GpuSpec
from simserve.catalog.states import MIXERS, Matrices
from simserve.cost.comm import NodeLink, all_reduce_over_nodes_s, between_nodes_s, send_s
from simserve.cost.exchange import SENT_BYTES, Exchange
from simserve.cost.kernels import Kernels, matrices_s
from simserve.cost.layer_shards import mlp_shards, sized
from simserve.cost.matrices import n_weights
from simserve.cost.roofline import elementwise_work, state_update_work
from simserve.cost.shard import ACTIVATION_BYTES, HEAD_DTYPE, Shard
from simserve.cost.weights import matrices_of

ELEMENTWISE_KERNELS = 3
"""Launches per layer for norms, rotation with KV write, and activation, as fused by current engines."""

HEAD_NORMS = 2
"""Sums of squares over the queries and keys of all GPUs, and their scaling."""

NORMS, REDUCES, ATTENTION = 2, 2, 3
"""Around a layer; and rotation, KV write and attention."""
LATENT = 4
"""Norms of both latent vectors, and the joining of plain and rotated parts of queries and keys; one norm of the
vector of queries alone."""
ROUTING = 3
"""Choice of experts, sorting of rows by expert, and the weighted sum; the gate is a product."""


@dataclass(frozen=True)
class Operation:
    """What so many layers do alike in a step: a row of its cost."""

    n_layers: int
    seconds: Callable[[Any], Any]
    """Seconds in one of them for n tokens, a number or an array."""
    n_launches: int = 0
    """Kernels in each of them that the host launches one by one, in a step with prompts that no CUDA graph holds."""


def total_s(operations: Iterable[Operation], n_tokens: Any) -> Any:
    """Return the sum, in their order: floats depend on it."""
    return sum((each.n_layers * each.seconds(n_tokens) for each in operations), 0.0 * n_tokens)


def padded(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tokens that steps of these counts compute, `(n,)`: those of the smallest CUDA graph that holds them,
    1, 2, 4, multiples of 8 up to 256 and of 16 up to 512; beyond, none is captured (vLLM V1, config/vllm.py)."""
    step = np.select([counts <= 2, counts <= 4, counts <= 256, counts <= 512], [1, 2, 8, 16], 1)
    sizes: NDArray[np.int64] = -(-counts // step) * step
    return sizes


@dataclass(frozen=True)
class ReplicaLinks:
    """What the GPUs of a replica send each other, in one node or over several."""

    shard: Shard
    gpu: GpuSpec
    node_link: NodeLink
    kernels: Kernels
    pipeline: int

    @property
    def n_nodes(self) -> int:
        """Nodes of a tensor-parallel group."""
        return max(1, self.shard.tensor // self.gpu.gpus_per_node)

    def all_reduce_s(self, n_bytes: Any) -> Any:
        """Return an all-reduce of a tensor-parallel group, by the engine's kernels in one node."""
        if self.n_nodes == 1:
            return self.kernels.all_reduce_s(self.shard.tensor, n_bytes)
        return all_reduce_over_nodes_s(self.gpu, self.node_link, self.n_nodes, n_bytes)

    def all_gather_s(self, n_bytes: Any) -> Any:
        """Return an all-gather of a tensor-parallel group: between nodes, where each GPU has its part of what a node
        sends, then in each node."""
        tensor, n_nodes = self.shard.tensor, self.n_nodes
        near_s = self.kernels.all_gather_s(tensor // n_nodes, n_bytes)
        return near_s + between_nodes_s(self.node_link, n_nodes, n_bytes * n_nodes / tensor)

    def sends_s(self, n_tokens: Any) -> Any:
        """Return the sends between stages: hidden states and residuals, of which each GPU of a stage sends its part and
        collects the others' (vLLM, send_tensor_dict). Stages fill nodes one after another."""
        if self.pipeline == 1:
            return 0.0
        tensor, n_vectors = self.shard.tensor, max(2, self.shard.model.n_streams)
        n_bytes = n_vectors * self.shard.hidden_bytes(n_tokens)
        n_gpus = self.pipeline * tensor * self.shard.data * self.shard.prefill_context
        n_far = min(-(-n_gpus // self.gpu.gpus_per_node), self.pipeline) - 1
        near_s, far_s = (send_s(self.gpu, n_bytes / tensor, link) for link in (None, self.node_link))
        collected_s = self.all_gather_s(n_bytes)
        return (self.pipeline - 1 - n_far) * near_s + n_far * far_s + (self.pipeline - 1) * collected_s


@dataclass(frozen=True)
class RankOperations:
    """The operations of one rank, each a row: add a kernel here, and its time to `Kernels`."""

    shard: Shard
    kernels: Kernels
    engine: EngineSpec
    links: ReplicaLinks
    exchange: Exchange | None

    def of_tokens(self) -> list[Operation]:
        """Return those for the tokens of a rank, in all layers but where groups share experts."""
        shard, model = self.shard, self.shard.model
        n_matrix = sum(group.n_layers for group in model.groups if group.kind == "matrix")
        n_plain = model.n_layers - model.n_attention_layers - model.n_state_layers
        around = NORMS + (REDUCES if shard.tensor > 1 else 0)
        norms = (HEAD_NORMS + (shard.tensor > 1)) * model.norms_all_heads
        heads = around + ATTENTION + norms + (LATENT if model.mla else model.query_rank is not None)
        state = self._n_products(shard.linear_matrices) + (MIXERS[model.linear.mixer].n_kernels if model.linear else 0)
        gate = 1 + self._n_products({**shard.latent_matrices, **shard.shared_matrices}) + len(shard.shared_matrices)
        experts = ROUTING + 2 * _n_per_matrix(shard.weight_dtype) + 1
        rows = [
            *(
                Operation(n, replace(self, shard=own)._attention_s, heads + self._n_products(own.attention_matrices))
                for own, n in shard.by_heads
            ),
            Operation(model.n_state_layers, self._state_s, around + state),
            *self._of_entries(),
            *self._of_inputs(),
            Operation(n_matrix - model.n_bare_layers, self._reduce_s),
            *(
                Operation(n, replace(self, shard=own)._mlp_s, self._n_products(own.mlp_matrices) + bool(own.inner_size))
                for own, n in [*mlp_shards(shard), (sized(shard, 0), n_matrix)]
            ),
            Operation(model.n_moe_layers, self._gate_and_shared_s, gate),  # two more: activation and sum
            Operation(model.n_moe_layers if shard.data == 1 else 0, self._experts_s, experts),
        ]
        return [Operation(n_plain, self._plain_s, around), *(row for row in rows if row.n_layers)]

    def _of_entries(self) -> Iterator[Operation]:
        """Yield the projections to entries beside windows; their sums are another kernel."""
        for group in (group for group in self.shard.model.groups if group.has_entries):
            made = matrices_of(self.shard, group)
            yield Operation(group.n_layers, partial(self._products_s, matrices=made), self._n_products(made) + 1)

    def _of_inputs(self) -> list[Operation]:
        """Return what layers add of their own embeddings."""
        matrices = self.shard.input_matrices
        seconds = partial(self._products_s, matrices=matrices)
        return [Operation(self.shard.model.n_layers, seconds, self._n_products(matrices))] if matrices else []

    def of_groups(self) -> list[Operation]:
        """Return those for the tokens of all `data` groups that share experts: the routed experts. Inside a node these
        include the gather of inputs and the scatter of sums (vLLM's default between the groups)."""
        seconds = self._gathered_experts_s if self.exchange is None else self._experts_s
        n_launches = ROUTING + 2 * _n_per_matrix(self.shard.weight_dtype) + 1
        return [] if self.shard.data == 1 else [Operation(self.shard.model.n_moe_layers, seconds, n_launches)]

    def of_exchange(self) -> list[Operation]:
        """Return those for the tokens of one group between nodes. Each of its GPUs sends a part and gathers the
        others'."""
        return [] if self.exchange is None else [Operation(self.shard.model.n_moe_layers, self._exchange_s)]

    def head_s(self, n_rows: Any) -> Any:
        """Return the LM head over n_rows positions."""
        return self.kernels.matmul_s(HEAD_DTYPE, n_rows, self.shard.head_columns, self.shard.model.hidden_size)

    def merge(self) -> Operation:
        """Return the matrix that merges the target's hidden state and the last token's embedding before a draft layer
        (EAGLE: Li et al., ICML '24, section 3.1; MTP: DeepSeek-V3, section 2.2)."""
        hidden = self.shard.model.hidden_size
        return Operation(1, lambda n_tokens: self.kernels.matmul_s(HEAD_DTYPE, n_tokens, hidden, 2 * hidden))

    def _common_s(self, n_tokens: Any) -> Any:
        return self.kernels.elementwise_s(elementwise_work(self.shard, n_tokens).bytes, ELEMENTWISE_KERNELS)

    def _reduce_s(self, n_tokens: Any) -> Any:
        return self.links.all_reduce_s(self.shard.hidden_bytes(n_tokens))

    def _plain_s(self, n_tokens: Any) -> Any:
        """Return a layer that has an MLP only, or one matrix before it."""
        return self._common_s(n_tokens) + self._reduce_s(n_tokens)

    def _attention_s(self, n_tokens: Any) -> Any:
        """Return a layer with attention, but for attention itself."""
        own_s = self.kernels.projections_s(self.shard, n_tokens) + self._head_norms_s(n_tokens)
        return own_s + self._common_s(n_tokens) + 2 * self._reduce_s(n_tokens)

    def _head_norms_s(self, n_tokens: Any) -> Any:
        """Return norms over the queries and keys of all GPUs, which add up their squares; 0 without."""
        shard = self.shard
        if not shard.model.norms_all_heads:
            return 0.0
        n_values = n_tokens * (shard.n_heads + shard.n_kv_heads) * shard.model.head_dim
        norms_s = self.kernels.elementwise_s(3 * ACTIVATION_BYTES * n_values, HEAD_NORMS)
        return norms_s + self.links.all_reduce_s(8 * n_tokens)  # sums for queries and keys, in 32 bits

    def _state_s(self, n_tokens: Any) -> Any:
        """Return a layer with a state."""
        shard = self.shard
        update_s = self.kernels.elementwise_s(state_update_work(shard, n_tokens).bytes, ELEMENTWISE_KERNELS)
        around_s = self._common_s(n_tokens)
        return self._products_s(n_tokens, shard.linear_matrices) + update_s + around_s + 2 * self._reduce_s(n_tokens)

    def _mlp_s(self, n_tokens: Any) -> Any:
        return self._products_s(n_tokens, self.shard.mlp_matrices)

    def _gate_and_shared_s(self, n_tokens: Any) -> Any:
        """Return the gate and the shared experts of a layer. In small steps these run beside the routed ones, and only
        reading their weights takes time."""
        shard, kernels = self.shard, self.kernels
        n_in, n_out = shard.router
        gate_s = kernels.matmul_s(HEAD_DTYPE, n_tokens, n_out, n_in) + self._products_s(n_tokens, shard.latent_matrices)
        shared_s = self._products_s(n_tokens, shard.shared_matrices)
        read_s = kernels.elementwise_s(n_weights(shard.shared_matrices) * BYTES_PER_VALUE[shard.dense_dtype], 0)
        is_beside = n_tokens <= (self.engine.shared_beside_tokens or 0)
        return gate_s + np.where(is_beside, np.minimum(read_s, shared_s), shared_s)

    def _experts_s(self, n_tokens: Any) -> Any:
        return self.kernels.experts_s(self.shard, n_tokens)

    def _gathered_experts_s(self, n_tokens: Any) -> Any:
        kernels, data, width = self.kernels, self.shard.data, self.shard.expert_layer.hidden
        n_bytes = n_tokens * width * ACTIVATION_BYTES
        dtype = self.shard.weight_dtype
        share = SENT_BYTES[COMPUTES_IN[dtype]] / ACTIVATION_BYTES if dtype in self.engine.gathers_quantized else 1
        passes_s = kernels.all_gather_s(data, share * n_bytes) + kernels.reduce_scatter_s(data, n_bytes)
        return self._experts_s(n_tokens) + passes_s

    def _exchange_s(self, n_tokens: Any) -> Any:
        assert self.exchange is not None, "experts are on several nodes"
        gathered_s = self.links.all_gather_s(self.shard.hidden_bytes(n_tokens))
        return self.exchange.seconds(n_tokens / self.shard.tensor) + gathered_s

    def _products_s(self, n_tokens: Any, matrices: Matrices) -> Any:
        return matrices_s(self.kernels, self.shard.dense_dtype, n_tokens, matrices)

    def _n_products(self, matrices: Matrices) -> int:
        """Count the launches of products in the dtype of attention and MLP."""
        dtype = self.shard.dense_dtype
        return len(matrices) * (1 if dtype in self.engine.quantizes_before else _n_per_matrix(dtype))


def _n_per_matrix(dtype: str) -> int:
    """Return 2 where activations are quantized before a product, else 1."""
    return 1 if COMPUTES_IN.get(dtype, "bf16") in ("bf16", "fp16") else 2
