"""FLOP and bytes of each kernel of a step, on one GPU of a tensor-parallel group. Numbers in, numbers out; arrays too.

Sources: operation counts of a transformer layer as in Kaplan et al. 2020 (table 1) and Pope et al. 2022 (section 2);
Megatron-LM for what tensor parallelism divides (Shoeybi et al. 2019, section 3); DeepSeek-V2 (section 2.1) for
latent attention.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simserve.catalog.layers import UNIFORM_ROUTING, Experts, Matrices
from simserve.catalog.specs import BYTES_PER_VALUE, ModelSpec

ACTIVATION_BYTES = 2
"""Activations take 16 bits, whatever the weights are stored in."""

HEAD_DTYPE = "bf16"
"""Embeddings, LM head and gates stay in 16 bits, whatever the layers are stored in."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The FLOP and bytes of a kernel; both scalars, or both arrays of one shape."""

    flop: Any
    bytes: Any


@dataclass(frozen=True)
class ExpertLayer:
    """The routed experts of a layer and the GPUs that share them, as a cost form needs them.

    GPUs that do not divide the experts hold copies of some, so that each has as many (vLLM, num_redundant_experts).
    """

    hidden_size: int
    expert_size: int
    """Inner size of one expert, before `tensor` GPUs divide it."""
    n_experts: int
    """Experts of all GPUs, copies included."""
    top_k: int
    tensor: int
    """GPUs that divide each expert."""
    expert: int
    """GPUs that distribute the experts."""


@dataclass(frozen=True)
class Shard:
    """The part of a model on one GPU of a tensor-parallel group, and its work for n tokens.

    KV heads are replicated when there are more GPUs than KV heads, and so is the cache of latent attention. `expert`
    GPUs share the experts: those of this group, or with data parallelism those of all `data` groups. Each group holds
    the rest of the model.
    """

    model: ModelSpec
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    tensor: int = 1
    expert: int = 1
    data: int = 1
    """Groups that share the experts; each has its own requests."""
    routing: str = UNIFORM_ROUTING
    """Expert routing; see `forms.moe.load_of`."""

    @property
    def n_heads(self) -> int:
        """Query heads on this GPU."""
        return self.model.n_heads // self.tensor

    @property
    def n_kv_heads(self) -> int:
        """KV heads on this GPU."""
        return max(1, self.model.n_kv_heads // self.tensor)

    @property
    def key_size(self) -> int:
        """Width of a head's key."""
        return self.model.mla.qk_head_dim if self.model.mla else self.model.head_dim

    @property
    def value_size(self) -> int:
        """Width of a head's value."""
        return self.model.mla.v_head_dim if self.model.mla else self.model.head_dim

    @property
    def inner_size(self) -> int:
        """Columns of the MLP on this GPU; padded where the group does not divide them."""
        return -(-self.model.intermediate_size // self.tensor)

    @property
    def weight_bytes_per_value(self) -> float:
        """Bytes per weight of the layers' matrices, without scales; embeddings and LM head stay in 16 bits."""
        return BYTES_PER_VALUE[self.weight_dtype]

    @property
    def dense_dtype(self) -> str:
        """Dtype of attention, MLP and shared experts."""
        return HEAD_DTYPE if self.model.only_experts_quantized else self.weight_dtype

    @cached_property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """(rows in, columns out) of each matrix of a dense layer: attention, then MLP."""
        return {**self.attention_matrices, **self.mlp_matrices}

    @cached_property
    def projections(self) -> Matrices:
        """Attention matrices that apply to each token once: all but the expansion of latent vectors."""
        return {name: sizes for name, sizes in self.attention_matrices.items() if name != "kv_b"}

    @property
    def expansion(self) -> tuple[int, int] | None:
        """kv_b, from latent vectors to keys and values. Prefill applies it to all attended keys; decode, transposed, to
        the queries and outputs of its tokens (DeepSeek-V2, section 2.1.2)."""
        return self.attention_matrices.get("kv_b")

    @cached_property
    def mlp_matrices(self) -> dict[str, tuple[int, int]]:
        """(rows in, columns out) of the MLP of a layer without experts."""
        return self._mlp(self.inner_size)

    @cached_property
    def attention_matrices(self) -> dict[str, tuple[int, int]]:
        """(rows in, columns out) of the projections of any layer; those to latent vectors are one matrix, not divided
        (vLLM, SGLang: fused_qkv_a_proj; TensorRT-LLM: kv_a_proj_with_mqa)."""
        model, mla = self.model, self.model.mla
        output = (self.n_heads * self.value_size, model.hidden_size)
        if mla is None:
            n_queries = self.n_heads * (2 if model.gated_attention else 1)
            columns = n_queries * model.head_dim + 2 * self.n_kv_heads * model.head_dim
            return {"qkv": (model.hidden_size, columns), "output": output}
        queries = self.n_heads * mla.qk_head_dim
        rank = mla.q_lora_rank
        latent = (model.hidden_size, (rank or 0) + mla.cached_size)
        return {
            **({"q": (model.hidden_size, queries), "kv_a": latent} if rank is None else {"qkv_a": latent}),
            **({} if rank is None else {"q_b": (rank, queries)}),
            "kv_b": (mla.kv_lora_rank, self.n_heads * (mla.qk_nope_head_dim + mla.v_head_dim)),
            "output": output,
            **self._index_matrices,
        }

    @property
    def _index_matrices(self) -> Matrices:
        """(rows in, columns out) of the indexer, whole on every GPU: queries, a key, and a weight per head."""
        model, index = self.model, self.model.indexer
        if index is None or model.mla is None:
            return {}
        return {
            "index_q": (model.mla.q_lora_rank or model.hidden_size, index.n_heads * index.head_dim),
            "index_k": (model.hidden_size, index.head_dim + index.n_heads),
        }

    @cached_property
    def linear_matrices(self) -> dict[str, tuple[int, int]]:
        """(rows in, columns out) of the projections of a layer with a state; empty without such layers."""
        linear = self.model.linear
        return {} if linear is None else dict(linear.matrices(self.model.hidden_size, self.tensor))

    @cached_property
    def shared_matrices(self) -> dict[str, tuple[int, int]]:
        """(rows in, columns out) of the shared experts of a layer, concatenated; empty without any."""
        experts = self.model.experts
        inner = experts.n_shared_experts * experts.shared_size if experts else 0
        return self._mlp(-(-inner // self.tensor)) if inner else {}

    @property
    def router(self) -> tuple[int, int]:
        """(rows in, columns out) of the gate of a layer with experts: whole on every GPU, in 16 bits."""
        return self.model.hidden_size, self._experts.n_experts

    @property
    def expert_layer(self) -> ExpertLayer:
        """The experts of a layer. Without expert parallelism, all GPUs that share them divide each."""
        experts = self._experts
        return ExpertLayer(
            hidden_size=self.model.hidden_size,
            expert_size=experts.expert_size,
            n_experts=self.n_experts * self.expert,
            top_k=experts.top_k,
            tensor=max(1, self.tensor * self.data // self.expert),
            expert=self.expert,
        )

    @property
    def n_experts(self) -> int:
        """Routed experts of a layer on this GPU, whole or in part, copies included."""
        return -(-self._experts.n_experts // self.expert)

    @property
    def expert_columns(self) -> int:
        """Inner size of an expert on this GPU."""
        return -(-self.expert_layer.expert_size // self.expert_layer.tensor)

    @property
    def layer_weights(self) -> int:
        """Weights in the matrices of a dense layer."""
        return _n_weights(self.matrices)

    @property
    def attention_weights(self) -> int:
        """Weights in the projections of a layer with attention."""
        return _n_weights(self.attention_matrices)

    @property
    def linear_weights(self) -> int:
        """Weights in the projections of a layer with a state."""
        return _n_weights(self.linear_matrices)

    @property
    def mlp_weights(self) -> int:
        """Weights in the MLP of a layer without experts."""
        return _n_weights(self.mlp_matrices)

    @property
    def shared_weights(self) -> int:
        """Weights in the shared experts of a layer."""
        return _n_weights(self.shared_matrices)

    @property
    def mixing_weights(self) -> int:
        """Weights in the projections of all layers, of attention and of states."""
        model = self.model
        return model.n_attention_layers * self.attention_weights + model.n_state_layers * self.linear_weights

    @property
    def router_weights(self) -> int:
        """Weights in the gate of a layer with experts."""
        n_in, n_out = self.router
        return n_in * n_out

    @property
    def expert_weights(self) -> int:
        """Weights of one expert on this GPU."""
        return _n_weights(self._mlp(self.expert_columns))

    @property
    def head_columns(self) -> int:
        """Columns of the LM head on this GPU, as the vocabulary is divided."""
        return -(-self.model.vocab_size // self.tensor)

    @property
    def head_weights(self) -> int:
        """Weights in the LM head."""
        return self.model.hidden_size * self.head_columns

    @property
    def active_weights(self) -> int:
        """Weights that multiply a token in all layers, 2 FLOP each, without the LM head."""
        return self._weights_with(0 if self.model.experts is None else self._experts.top_k)

    @property
    def total_weights(self) -> int:
        """Weights in all matrices, gates, embeddings and LM head on this GPU (one matrix when tied): the published
        number of parameters without norms and biases."""
        in_layers = self._weights_with(0 if self.model.experts is None else self.n_experts)
        return in_layers + self.head_weights * (1 if self.model.tie_word_embeddings else 2)

    @property
    def layer_kv_bytes_per_token(self) -> float:
        """Bytes of one token's keys and values in one layer, and of its key for the indexer."""
        index = self.model.indexer
        return self._attended_bytes if index is None else self._attended_bytes + index.bytes_per_token

    @property
    def _attended_bytes(self) -> float:
        """Bytes that attention reads of a token: 2 vectors per head for K and V, or one latent vector for both."""
        mla = self.model.mla
        values = mla.cached_size if mla else 2 * self.n_kv_heads * self.model.head_dim
        return values * BYTES_PER_VALUE[self.kv_dtype]

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of one token's keys and values in all layers that attend, whatever they keep of older tokens."""
        return self.layer_kv_bytes_per_token * self.model.n_attention_layers

    @property
    def state_bytes(self) -> float:
        """Bytes of one request's state in one layer (vLLM, mamba_utils.py)."""
        linear = self.model.linear
        return 0.0 if linear is None else linear.state_bytes // self.tensor

    def matmul(self, name: str, n_tokens: Any) -> Kernel:
        """Return a matrix of a layer applied to n tokens: 2 FLOP per weight and token; weights read once."""
        n_in, n_out = self.matrices[name]
        return matmul(n_tokens, n_in, n_out, BYTES_PER_VALUE[self.dense_dtype])

    def lm_head(self, n_rows: Any) -> Kernel:
        """Return the projection of n hidden states to logits."""
        return matmul(n_rows, self.model.hidden_size, self.head_columns, BYTES_PER_VALUE[HEAD_DTYPE])

    def elementwise(self, n_tokens: Any) -> Kernel:
        """Return norms and residuals, rotary embedding, activation and KV write of an average layer: mostly memory
        traffic. The activation of routed experts belongs to their kernel.

        Each of two norms reads input and residual and writes both; rotation reads and writes queries and keys; the
        activation reads gate and up and writes one; keys and values are written once.
        """
        model = self.model
        activated = model.n_dense_layers * self.inner_size
        if self.shared_matrices:
            activated += model.n_moe_layers * self.shared_matrices["down"][0]
        values = (
            2 * 4 * model.hidden_size + 2 * self._rotated + (3 if model.gated_mlp else 2) * activated // model.n_layers
        )
        n_bytes = values * ACTIVATION_BYTES + self.layer_kv_bytes_per_token
        return Kernel(n_tokens * values, n_tokens * n_bytes)

    def state_update(self, n_tokens: Any) -> Kernel:
        """Return the convolution and gates of a layer with a state, for n tokens: inputs and output gates are read and
        written once. A decoding request also moves its state: see `state_bytes`."""
        linear = self.model.linear
        n_values = 0 if linear is None else 2 * linear.mixed_size(self.tensor)
        return Kernel(n_tokens * n_values, n_tokens * (n_values * ACTIVATION_BYTES))

    def prefill_attention(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Kernel:
        """Return causal attention of prompt chunks in one layer: 2 FLOP per pair, head and width of scores and values.

        Latent vectors are expanded to keys and values first, by a matrix (kv_b) that is not counted here.
        """
        return Kernel(
            2 * self.n_heads * (self.key_size + self.value_size) * n_pairs,
            n_context_tokens * self._attended_bytes + n_tokens * self._query_bytes,
        )

    def decode_attention(self, n: Any, kv_tokens: Any) -> Kernel:
        """Return attention of n decoding requests that attend kv_tokens keys in all, in one layer.

        Latent attention works on the cached vectors: queries and outputs are projected instead of keys.
        """
        mla = self.model.mla
        width = mla.cached_size + mla.kv_lora_rank if mla else self.key_size + self.value_size
        query_bytes = self.n_heads * width * ACTIVATION_BYTES
        return Kernel(2 * self.n_heads * width * kv_tokens, kv_tokens * self._attended_bytes + n * query_bytes)

    def hidden_bytes(self, n_tokens: Any) -> Any:
        """Return the bytes of n tokens' hidden states, the unit of all-reduces and expert inputs."""
        return n_tokens * self.model.hidden_size * ACTIVATION_BYTES

    @property
    def _query_bytes(self) -> int:
        """Return the bytes of a token's queries read and outputs written, in one layer."""
        return self.n_heads * (self.key_size + self.value_size) * ACTIVATION_BYTES

    @property
    def _rotated(self) -> int:
        """Return the number of query and key values that carry a position; with latent attention a part of each."""
        mla = self.model.mla
        return (
            (self.n_heads + 1) * mla.qk_rope_head_dim if mla else (self.n_heads + self.n_kv_heads) * self.model.head_dim
        )

    @property
    def _experts(self) -> Experts:
        experts = self.model.experts
        assert experts is not None, "the model has no experts"
        return experts

    def _weights_with(self, n_experts: int) -> int:
        """Count the weights in all layers, with that many routed experts in each MoE layer."""
        model = self.model
        per_moe_layer = 0
        if n_experts:
            per_moe_layer = self.shared_weights + self.router_weights + n_experts * self.expert_weights
        return self.mixing_weights + model.n_dense_layers * self.mlp_weights + model.n_moe_layers * per_moe_layer

    def _mlp(self, inner: int) -> dict[str, tuple[int, int]]:
        """Return (rows in, columns out) of an MLP of that inner size."""
        hidden = self.model.hidden_size
        return {"gate_up": (hidden, inner * (2 if self.model.gated_mlp else 1)), "down": (inner, hidden)}


def _n_weights(matrices: dict[str, tuple[int, int]]) -> int:
    return sum(n_in * n_out for n_in, n_out in matrices.values())


def matmul(n_tokens: Any, n_in: int, n_out: int, weight_bytes: float) -> Kernel:
    """Return (n, n_in) x (n_in, n_out); without tokens no work, not even the weights are read."""
    n_bytes = (n_tokens > 0) * (n_in * n_out * weight_bytes) + n_tokens * ((n_in + n_out) * ACTIVATION_BYTES)
    return Kernel(n_tokens * (2 * n_in * n_out), n_bytes)
