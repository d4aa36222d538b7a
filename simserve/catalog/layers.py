"""Layers: the kinds of a transformer's layers, and their parts: heads, experts, what they add."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from simserve.catalog.latent import Indexer

UNIFORM_ROUTING = "uniform"
"""Expert routing of tokens that draw their experts at random."""

SHARED_HEADS_ROUTING, OWN_HEADS_ROUTING = "lognormal_0.35", "lognormal_0.2"
"""How tokens choose experts in models of attention with KV heads that query heads share, or without, where it was not
measured of the model itself. Latent attention and states have their own.

Source: Gini coefficients of five checkpoints (arXiv:2605.20982): 0.24 and more on text, 0.29 to 0.38 on random tokens
with latent attention and gated delta nets, 0.15 with Mamba-2, 0.105 with own heads, between with shared heads. That of
a log-normal popularity is erf(S / 2): 0.28, 0.17, 0.11 and 0.20 here.
"""


@dataclass(frozen=True)
class Heads:
    """The heads of attention in a layer.

    Invariant: n_heads is a multiple of n_kv_heads.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    """Width of a head's key and query."""
    value_head_dim: int | None = None
    """Width of a head's value; None: that of its key."""

    def divides(self, tensor: int) -> bool:
        """Tell whether so many GPUs share the heads evenly: KV heads may be whole on several."""
        return self.n_heads % tensor == 0 and (self.n_kv_heads % tensor == 0 or tensor % self.n_kv_heads == 0)


GroupKind = Literal["full", "windowed", "chunked", "latent", "compressed", "state", "matrix", "none"]


@dataclass(frozen=True)
class LayerGroup:
    """Layers of one kind, spread evenly over the model: what each keeps of a request, and what a token attends.

    full: all keys; windowed: the last `window`; chunked: those of the same `window` tokens (Llama 4); latent: one
    vector per token (MLA); compressed: an entry per `ratio` tokens, beside a window of the same layers in another group
    (DeepSeek-V4); state: one of fixed size per request; matrix: nothing, as one square matrix mixes; none: nothing.

    Invariant: windowed and chunked have a window, others have none, but for states that a prefix cache keeps; those
    of kind compressed, alone with a ratio above 1, come last.
    """

    kind: GroupKind
    n_layers: int
    window: int | None = None
    """Tokens of a window or chunk."""
    heads: Heads | None = None
    """Heads of its own; None: those of the model."""
    n_sharing: int = 0
    """Layers of these that attend the keys and values of another layer, and have none (Gemma 3n, CLA)."""
    ratio: int = 1
    """Tokens of an entry."""
    indexer: Indexer | None = None
    """What chooses among entries; None: all are attended."""

    @property
    def has_entries(self) -> bool:
        """Whether another group counts these layers, too."""
        return self.kind == "compressed"

    @property
    def n_keeping(self) -> int:
        """Layers that keep something of a request."""
        return self.n_layers - self.n_sharing if self.attends or self.kind == "state" else 0

    def n_of(self, n_layers: int) -> int:
        """Return how many of so many of these layers keep something, as they are spread evenly."""
        return -(-n_layers * self.n_keeping // self.n_layers)

    @property
    def attends(self) -> bool:
        """Whether a layer attends cached tokens."""
        return self.kind not in ("state", "matrix", "none")

    def keys(self, n_context: int) -> int:
        """Return the keys that the last of n_context tokens attends in a layer."""
        return n_context - self.first_kept(n_context - 1) if self.attends else 0

    def first_kept(self, n_tokens: Any) -> Any:
        """Return the first token that the one after n_tokens attends: those before it are kept no longer.

        A number, or an array of them.
        """
        if self.window is None:
            return 0 * n_tokens
        if self.kind == "chunked":
            return n_tokens // self.window * self.window
        return (n_tokens >= self.window) * (n_tokens - self.window + 1)

    def reads(self, first: int, end: int) -> tuple[int, int]:
        """Return the query-key pairs of the tokens [first, end) in a layer, and the keys that they attend."""
        return self._pairs(end) - self._pairs(first), end - self.first_kept(first)

    def reads_of(self, chunks: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return the sums of `reads` of several prompts' chunks [first, end)."""
        reads = [self.reads(first, end) for first, end in chunks]
        return sum(pairs for pairs, _ in reads), sum(keys for _, keys in reads)

    def _pairs(self, n_tokens: int) -> int:
        """Return the query-key pairs of the first n_tokens."""
        most = n_tokens if self.window is None else self.window
        n_whole, rest = divmod(n_tokens, most) if n_tokens else (0, 0)
        if self.kind == "chunked":
            return n_whole * (most * (most + 1) // 2) + rest * (rest + 1) // 2
        n_rising = min(n_tokens, most)
        return n_rising * (n_rising + 1) // 2 + (n_tokens - n_rising) * most


@dataclass(frozen=True)
class Experts:
    """The experts that replace the MLP in layers of a mixture-of-experts model.

    Invariant: 1 <= top_k <= n_experts * top_groups / n_groups; 1 <= top_groups <= n_groups, which divides n_experts.
    """

    n_experts: int
    """Routed experts per MoE layer."""
    top_k: int
    """Routed experts per token."""
    expert_size: int
    """Inner size of one expert."""
    n_dense_layers: int = 0
    """Layers with an MLP of intermediate_size instead."""
    dense_at: tuple[int, ...] = ()
    """Numbers of these layers, where they are not the first."""
    n_zero_experts: int = 0
    """Outputs of the router that pass a token on unchanged; `top_k` leaves out their share (LongCat-Flash)."""
    n_shared_experts: int = 0
    """Experts that every token uses."""
    shared_size: int = 0
    """Inner size of one shared expert."""
    n_groups: int = 1
    """Groups of experts; a token chooses among the experts of its best `top_groups` groups (DeepSeek-V3)."""
    top_groups: int = 1
    latent_size: int | None = None
    """Width that routed experts work in, with a projection into it and one out of it; None: the hidden size."""
    routing: str | None = None
    """How tokens choose experts, as it was measured; None: as `ModelSpec.expert_routing` says. See
    `forms.moe.load_of`."""


@dataclass(frozen=True)
class LayerInputs:
    """Embeddings of its own that each layer adds, and its low-rank residual (Gemma 3n)."""

    vocabulary: int
    width: int
    """Width of a token's embedding in a layer."""
    low_rank: int

    def matrices(self, hidden: int) -> dict[str, tuple[int, int]]:
        """Return (rows in, columns out) of a layer's matrices by name, besides its embeddings."""
        into = {
            "gate": (hidden, self.width),
            "projection": (hidden, self.width),
            "low_rank_in": (hidden, self.low_rank),
        }
        return {**into, "output": (self.width, hidden), "low_rank_out": (self.low_rank, hidden)}


@dataclass(frozen=True)
class SharedBlocks:
    """Blocks of attention and an MLP, of which each is used in several places (Zamba2)."""

    n_blocks: int
    """Blocks with weights of their own."""
    width: int
    """Width of what attention projects."""
    rank: int
    """Rank of the changes to an MLP in each place."""

    def matrices(self, hidden: int, inner: int) -> dict[str, tuple[int, int]]:
        """Return (rows in, columns out) by name of what each place has of its own: changes of gate and up, and what
        adds the block to the hidden states, whole on every GPU."""
        return {"change_in": (hidden, self.rank), "change_out": (self.rank, 2 * inner), "added": (hidden, hidden)}
