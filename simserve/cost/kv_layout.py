"""KV layout: what layers keep of a request, in blocks of one pool, on one GPU."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simserve.catalog.layers import GroupKind, LayerGroup
from simserve.cost.shard import Shard
from simserve.state.layer_blocks import LayerBlocks


class Spec(NamedTuple):
    """What layers have in common that share blocks."""

    kind: GroupKind
    window: int | None
    layer_bytes: float
    """Bytes of a token in a layer, or of a request's state."""

    @classmethod
    def of(cls, shard: Shard, group: LayerGroup) -> "Spec":
        """Return what the layers of a group have in common with others."""
        layer_bytes = shard.token_bytes(group) if group.attends else shard.state_bytes
        return cls("full" if group.kind == "latent" else group.kind, group.window, layer_bytes)


@dataclass(frozen=True)
class GroupMemory:
    """What the layers of a group keep of a request, on one GPU."""

    group: LayerGroup
    spec: Spec
    blocks: LayerBlocks
    """Blocks of one request that its layers take, or as many of these as a block has."""
    is_draft: bool = False
    """Whether the layers are those of a draft model."""

    @property
    def bytes_per_token(self) -> float:
        """Bytes of a token in all its layers; 0 for states."""
        return self.group.n_keeping * self.spec.layer_bytes * self.group.attends

    @property
    def bytes_per_request(self) -> float:
        """Bytes of a request's states in all its layers; 0 where tokens are kept."""
        return self.group.n_keeping * self.spec.layer_bytes * (not self.group.attends)

    def most_bytes(self, n_tokens: int) -> float:
        """Return the most bytes that a request of n tokens ever holds, without padding layers."""
        (group,) = self.blocks.groups
        n_times = self.blocks.most(n_tokens) / group.n_parts if group.n_parts else 1
        return n_times * (group.tokens * self.bytes_per_token + self.bytes_per_request)


@dataclass(frozen=True)
class KvLayout:
    """The groups of a model and its draft in one pool of blocks, on one GPU."""

    parts: tuple[GroupMemory, ...]
    blocks: LayerBlocks
    """Blocks of one request in all groups."""
    n_layers: int
    """Layers in a block; layers of a kind that do not fill its last part are padding."""
    layer_bytes: float
    """Bytes of a block in each of its layers."""
    n_merged: int = 1
    """Blocks of the engine in one of these: all that layers take for the same tokens, where all keep all tokens."""
    draft_bytes: float = 0.0
    """Bytes of a draft's layers in a block, where these and the model's all keep the same tokens."""
    is_joint: bool = False
    """Whether a block is of all layers, of several sizes, for the same tokens (vLLM, UniformTypeKVCacheSpecs)."""

    @property
    def block_size(self) -> int:
        """Tokens of the smallest blocks: the engine's, or more where a state needs a larger block."""
        return self.blocks.id_tokens

    @property
    def blocks_per_tokens(self) -> int | float:
        """Blocks that all layers take for the same block_size tokens; no whole number where some hold more tokens."""
        n_blocks: int = self.blocks.filled(self.blocks.common_tokens)
        n_times = self.blocks.common_tokens // self.blocks.id_tokens
        if not n_blocks:
            return 0  # requests keep states alone
        return max(1, n_blocks / n_times if n_blocks % n_times else n_blocks // n_times)

    @property
    def block_bytes(self) -> float:
        """Bytes of a block."""
        entry_bytes = sum(each.bytes_per_token * each.blocks.id_tokens for each in self.parts if each.group.has_entries)
        return max(self.n_layers * self.layer_bytes, entry_bytes) + self.draft_bytes

    def stage_bytes(self, n_in_groups: Sequence[int]) -> float:
        """Return the bytes of a block on a pipeline stage with so many layers of each group of the model, and all of
        the draft."""
        if self.is_joint:
            sizes = (n * part.spec.layer_bytes for n, part in zip(n_in_groups, self.parts, strict=False))
            return self.block_size * sum(sizes) + self.draft_bytes
        on_stage: Counter[object] = Counter()
        in_all: Counter[object] = Counter()
        drafts = () if self.draft_bytes else (part for part in self.parts if part.is_draft)
        counts, entry_bytes = (*n_in_groups, *(part.group.n_keeping for part in drafts)), 0.0
        for n, part in zip(counts, self.parts, strict=False):
            if part.group.has_entries:
                entry_bytes += n * part.spec.layer_bytes * part.blocks.id_tokens
                continue
            on_stage[part.spec] += n
            in_all[part.spec] += part.group.n_keeping
        n_each = self.n_layers // self.n_merged
        most = max(-(-n // -(-in_all[spec] // n_each)) for spec, n in on_stage.items())
        return max(self.n_merged * most * self.layer_bytes, entry_bytes) + self.draft_bytes
