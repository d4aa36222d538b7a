"""Shard: the part of a model on one GPU of a tensor-parallel group: its matrices, weights, keys and values.

Sources: Megatron-LM (Shoeybi et al. 2019, section 3) for what tensor parallelism divides; DeepSeek-V2 (section 2.1).
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.catalog.layers import UNIFORM_ROUTING, Experts, LayerGroup
from simserve.catalog.specs import ModelSpec
from simserve.catalog.states import Matrices, StateLayers
from simserve.cost.matrices import ExpertLayer, attention_matrices, n_weights

ACTIVATION_BYTES = 2
"""Activations take 16 bits, whatever the weights are stored in."""

HEAD_DTYPE = "bf16"
"""Embeddings, LM head and gates stay in 16 bits, whatever the layers are stored in."""


@dataclass(frozen=True)
class Shard:
    """The part of a model on one GPU of a tensor-parallel group.

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
    decode_context: int = 1
    """GPUs that divide a context's tokens, in turn, where each would hold a copy of the same keys and values."""
    prefill_context: int = 1
    """Groups that divide a prompt's tokens among them; each holds all weights, keys and values."""
    shares_keys: bool = False
    """Whether layers attend the keys of another layer, and project none."""

    @property
    def whole(self) -> "Shard":
        """The model on one GPU: each head, and each expert, once."""
        return replace(self, tensor=1, expert=1, data=1, decode_context=1, prefill_context=1)

    def of(self, group: LayerGroup) -> "Shard":
        """The model with the heads and the indexer of a group of its layers in all of them."""
        own = {**(vars(group.heads) if group.heads else {}), **({"indexer": group.indexer} if group.indexer else {})}
        return replace(self, model=replace(self.model, **own)) if own else self

    @cached_property
    def sharing(self) -> "Shard":
        """The model with keys and values of other layers in all of its layers."""
        return replace(self, shares_keys=True)

    @cached_property
    def by_heads(self) -> list[tuple["Shard", int]]:
        """The model with each of the heads of its layers, with keys or without, and how many layers attend so."""
        counts = Counter[Shard]()
        for group in (group for group in self.model.groups if group.attends and not group.has_entries):
            own = self.of(group)
            counts[own] += group.n_keeping
            counts[own.sharing] += group.n_sharing
        return [(own, n) for own, n in counts.items() if n or not own.shares_keys]

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
        return self.model.mla.v_head_dim if self.model.mla else self.model.value_head_dim or self.model.head_dim

    @property
    def inner_size(self) -> int:
        """Columns of the MLP on this GPU; padded where the group does not divide them."""
        return -(-self.model.intermediate_size // self.tensor)

    @property
    def dense_dtype(self) -> str:
        """Dtype of attention, MLP and shared experts."""
        in_checkpoint = self.model.dense_dtype if self.weight_dtype == self.model.weight_dtype else None
        return HEAD_DTYPE if self.model.only_experts_quantized else in_checkpoint or self.weight_dtype

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
        """(rows in, columns out) of the projections of any layer."""
        return attention_matrices(self.model, self.n_heads, 0 if self.shares_keys else self.n_kv_heads)

    @cached_property
    def state(self) -> StateLayers | None:
        """The part of layers with a state; None without such layers."""
        return self.model.linear and self.model.linear.on(self.tensor)

    @cached_property
    def linear_matrices(self) -> dict[str, tuple[int, int]]:
        """(rows in, columns out) of the projections of a layer with a state; empty without such layers."""
        return {} if self.state is None else dict(self.state.matrices(self.model.hidden_size))

    @cached_property
    def shared_matrices(self) -> dict[str, tuple[int, int]]:
        """(rows in, columns out) of the shared experts of a layer, concatenated; empty without any."""
        experts = self.model.experts
        inner = experts.n_shared_experts * experts.shared_size if experts else 0
        return self._mlp(-(-inner // self.tensor)) if inner else {}

    @cached_property
    def latent_matrices(self) -> dict[str, tuple[int, int]]:
        """(rows in, columns out) of the projections to and from the width of routed experts, whole on every GPU; empty
        where that is the hidden size."""
        hidden, width = self.model.hidden_size, self.model.experts and self.model.experts.latent_size
        return {"latent_in": (hidden, width), "latent_out": (width, hidden)} if width else {}

    @cached_property
    def input_matrices(self) -> dict[str, tuple[int, int]]:
        """(rows in, columns out) of what each layer adds of its own embeddings, whole on every GPU; empty without."""
        own = self.model.layer_inputs
        return {} if own is None else own.matrices(self.model.hidden_size)

    @property
    def router(self) -> tuple[int, int]:
        """(rows in, columns out) of the gate of a layer with experts: whole on every GPU, in 16 bits."""
        return self.model.hidden_size, self._experts.n_experts + self._experts.n_zero_experts

    @property
    def expert_layer(self) -> ExpertLayer:
        """The experts of a layer. Without expert parallelism, all GPUs that share them divide each."""
        experts = self._experts
        return ExpertLayer(
            hidden=experts.latent_size or self.model.hidden_size,
            inter=experts.expert_size,
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
        return -(-self.expert_layer.inter // self.expert_layer.tensor)

    @property
    def expert_weights(self) -> int:
        """Weights of one expert on this GPU."""
        return n_weights(self._mlp(self.expert_columns, self._experts.latent_size))

    @property
    def head_columns(self) -> int:
        """Columns of the LM head on this GPU, as the vocabulary is divided."""
        return -(-self.model.vocab_size // self.tensor)

    @property
    def head_weights(self) -> int:
        """Weights in the LM head."""
        return self.model.hidden_size * self.head_columns

    @property
    def layer_kv_bytes_per_token(self) -> float:
        """Bytes of one token's keys and values in one layer, and of its key for the indexer, on a GPU in the mean."""
        index = self.model.indexer
        return (self.attended_bytes + (0.0 if index is None else index.bytes_per_token)) / self.decode_context

    @property
    def attended_bytes(self) -> float:
        """Bytes that attention reads of a token: 2 vectors per head for K and V, or one latent vector for both."""
        value_bytes, width = BYTES_PER_VALUE[self.kv_dtype], self.n_kv_heads * (self.key_size + self.value_size)
        return self.model.mla.cached_bytes(value_bytes) if self.model.mla else width * value_bytes

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of one token's keys and values in all layers that attend, whatever they keep of older tokens."""
        return sum(group.n_keeping * self.token_bytes(group) for group in self.model.groups if group.attends)

    def token_bytes(self, group: LayerGroup) -> float:
        """Return the bytes of one token in one layer of a group that attends: a part of an entry, if it has these."""
        return self.of(group).layer_kv_bytes_per_token / group.ratio

    @property
    def state_bytes(self) -> float:
        """Bytes of one request's state in one layer (vLLM, mamba_utils.py)."""
        return 0 if self.state is None else self.state.state_bytes

    def hidden_bytes(self, n_tokens: Any) -> Any:
        """Return the bytes of n tokens' hidden states, the unit of all-reduces and expert inputs."""
        return n_tokens * self.model.hidden_size * ACTIVATION_BYTES

    @property
    def _experts(self) -> Experts:
        experts = self.model.experts
        assert experts is not None, "the model has no experts"
        return experts

    def _mlp(self, inner: int, width: int | None = None) -> dict[str, tuple[int, int]]:
        """Return (rows in, columns out) of an MLP of that inner size, on vectors of that width or the hidden size; of
        size 0: of one square matrix."""
        hidden = width or self.model.hidden_size
        mlp = {"gate_up": (hidden, inner * (2 if self.model.gated_mlp else 1)), "down": (inner, hidden)}
        return mlp if inner else {"matrix": (-(-hidden // self.tensor), hidden)}
