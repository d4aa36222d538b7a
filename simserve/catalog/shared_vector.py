"""Shared vector: attention of all heads to one vector per token, and to entries for several tokens beside it."""

from dataclasses import dataclass

from simserve.catalog.layers import LayerGroup, Mla


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

    def entry_matrices(self, hidden: int, group: LayerGroup) -> dict[str, tuple[int, int]]:
        """Return (rows in, columns out) of values and gates that entries are made of; twice where these overlap."""
        index, n_spans = group.indexer, 1 if group.indexer is None else 2
        chosen_by = {} if index is None else index.matrices(hidden, self.q_lora_rank)
        return {"entries": (hidden, 2 * n_spans * self.cached_size), **chosen_by}
