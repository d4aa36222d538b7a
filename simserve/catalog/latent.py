"""Latent: attention to one vector per token for all heads, and indexers that choose among these."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: keys and values come from one short vector per token (DeepSeek-V2, section 2.1)."""

    ROUTING: ClassVar[str] = "lognormal_0.5"
    """How tokens choose experts in models with such layers; SHARED_HEADS_ROUTING has the source."""

    kv_lora_rank: int
    """Width of the latent vector, which the cache holds."""
    qk_nope_head_dim: int
    """Width of the unrotated part of a head's key."""
    qk_rope_head_dim: int
    """Width of the rotated part, shared by all heads; cached with the latent vector."""
    v_head_dim: int
    q_lora_rank: int | None = None
    """Width of the queries' latent vector; None: queries are projected directly."""

    @property
    def qk_head_dim(self) -> int:
        """Width of a head's key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cached_size(self) -> int:
        """Cached values per token and layer, whatever the heads."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def cached_bytes(self, value_bytes: float) -> float:
        """Return the bytes of a token with values of so many."""
        return self.cached_size * value_bytes

    def matrices(self, hidden: int, n_heads: int) -> dict[str, tuple[int, int]]:
        """Return (rows in, columns out) of the projections of n_heads by name; those to latent vectors are one matrix,
        not divided (vLLM, SGLang: fused_qkv_a_proj; TensorRT-LLM: kv_a_proj_with_mqa)."""
        rank, queries = self.q_lora_rank, n_heads * self.qk_head_dim
        latent = (hidden, (rank or 0) + self.cached_size)
        into = {"q": (hidden, queries), "kv_a": latent} if rank is None else {"qkv_a": latent, "q_b": (rank, queries)}
        expanded = n_heads * (self.qk_nope_head_dim + self.v_head_dim)
        return {**into, "kv_b": (self.kv_lora_rank, expanded), "output": (n_heads * self.v_head_dim, hidden)}


@dataclass(frozen=True)
class Indexer:
    """The part of sparse attention that scores all keys, of which the best are attended (DeepSeek-V3.2, section 2.1).

    It has one key per token in fp8, whole on every GPU.
    """

    n_heads: int
    head_dim: int
    top_k: int
    """Attended keys per token."""
    n_projected: int = 1
    """Vectors of a key's width that it is made of."""

    @property
    def bytes_per_token(self) -> float:
        """Bytes of a token's key in one layer, with a 32-bit scale for 128 values (vLLM, deepseek_v2.py)."""
        return self.head_dim * (1 + 4 / 128)

    @property
    def flop_per_pair(self) -> int:
        """FLOP of a score."""
        return 2 * self.n_heads * self.head_dim

    def matrices(self, hidden: int, rank: int | None) -> dict[str, tuple[int, int]]:
        """Return (rows in, columns out) by name, whole on every GPU: queries, from the latent ones if there are; a key
        and a weight per head."""
        queries = (rank or hidden, self.n_heads * self.head_dim)
        return {"index_q": queries, "index_k": (hidden, self.n_projected * self.head_dim + self.n_heads)}


@dataclass(frozen=True)
class SharedVector(Mla):
    """Attention of all heads to one vector per token, which is key and value, with outputs projected in groups of heads
    (DeepSeek-V4, section 2.3)."""

    group_heads: int = 1
    """Heads that are projected together."""
    o_lora_rank: int = 1
    """Width of a group's projection."""

    @property
    def cached_size(self) -> int:
        """Cached values per token and layer."""
        return self.qk_head_dim

    def cached_bytes(self, value_bytes: float) -> float:
        """Return the bytes of a token: below 16 bits, the rotated part keeps these, and there are 8 bytes of scales
        (vLLM, fp8_ds_mla)."""
        in_few_bits = self.qk_nope_head_dim * value_bytes + 2 * self.qk_rope_head_dim + 8
        return in_few_bits if value_bytes < 2 else self.cached_size * value_bytes

    def matrices(self, hidden: int, n_heads: int) -> dict[str, tuple[int, int]]:
        """Return (rows in, columns out) of the projections of n_heads by name."""
        rank = self.q_lora_rank or 0
        n_together, columns = min(n_heads, self.group_heads), -(-n_heads // self.group_heads) * self.o_lora_rank
        into = {"qkv_a": (hidden, rank + self.cached_size), "q_b": (rank, n_heads * self.qk_head_dim)}
        return {**into, "output_a": (n_together * self.v_head_dim, columns), "output": (columns, hidden)}

    def entry_matrices(self, hidden: int, index: Indexer | None) -> dict[str, tuple[int, int]]:
        """Return (rows in, columns out) of values and gates that entries are made of; twice where these overlap."""
        n_spans = 1 if index is None else 2
        chosen_by = {} if index is None else index.matrices(hidden, self.q_lora_rank)
        return {"entries": (hidden, 2 * n_spans * self.cached_size), **chosen_by}
