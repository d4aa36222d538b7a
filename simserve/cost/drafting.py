"""Drafting: the cost of proposing tokens, by method."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.layers import LayerGroup
from simserve.catalog.specs import ModelSpec
from simserve.cost.kernels import Kernels
from simserve.cost.model import CostModel
from simserve.cost.ops import HEAD_DTYPE, Shard
from simserve.cost.step import StepCost
from simserve.units import to_ps


class Drafting(Protocol):
    """The cost of a step's proposals in integer picoseconds; pure."""

    @property
    def n_windows(self) -> int:
        """Groups of its layers with a window."""

    def line(self, n: int) -> tuple[int, int]:
        """Return (intercept, slope): n requests take intercept + slope * keys that their next tokens attend, besides
        the keys in layers with a window (see `window_slopes`)."""

    def window_slopes(self, n: int) -> tuple[int, ...]:
        """Return the time per key that the next tokens of n requests attend in a layer of each group with a window."""

    def prompt_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int) -> int:
        """Return the extra time for prompt chunks, in a step that also proposes for n requests, without layers that
        have a window."""

    def prompt_windows_ps(self, n_tokens: int, reads: Sequence[tuple[int, int]]) -> int:
        """Return that in layers with a window, from the pairs and keys read in a layer of each such group."""


@dataclass(frozen=True)
class FreeDrafting:
    """Proposals without GPU time, from earlier text (n-grams)."""

    @property
    def n_windows(self) -> int:
        """Return 0."""
        return 0

    def window_slopes(self, n: int) -> tuple[int, ...]:
        """Return none."""
        return ()

    def prompt_windows_ps(self, n_tokens: int, reads: Sequence[tuple[int, int]]) -> int:
        """Return 0."""
        return 0

    def line(self, n: int) -> tuple[int, int]:
        """Return zeros."""
        return 0, 0

    def prompt_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int) -> int:
        """Return 0."""
        return 0


@dataclass(frozen=True)
class ModelDrafting:
    """A model that decodes n_passes tokens in sequence: a small model, or a layer of the target's kind that is applied
    repeatedly (EAGLE, MTP).

    It has a KV cache of its own over the target's tokens, so its first pass also computes prompts. Later passes attend
    as many keys of a window as the first: a full window gains none.
    """

    model: CostModel
    """Cost without host time, which a step takes once."""
    n_passes: int
    n_windows: int = 0

    def line(self, n: int) -> tuple[int, int]:
        """Sum the passes: pass i, from 0, attends i tokens per request more than the first."""
        intercept_ps, slope_ps = self.model.decode_line(n)
        pass_ps = self.model.tokens_ps(n) + self.model.sampled_ps(n) + intercept_ps
        n_later_keys = n * (self.n_passes * (self.n_passes - 1) // 2)
        return self.n_passes * pass_ps + slope_ps * n_later_keys, self.n_passes * slope_ps

    def window_slopes(self, n: int) -> tuple[int, ...]:
        """Sum the passes."""
        return tuple(self.n_passes * slope for slope in self.model.window_slopes(n))

    def prompt_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int) -> int:
        """Return the chunks' share of the first pass, which computes them with the decoding tokens."""
        alone_ps = self.model.tokens_ps(n) if n else 0
        chunks_ps = self.model.prefill_ps(n_tokens, n_pairs, n_context_tokens)
        return self.model.tokens_ps(n + n_tokens) - alone_ps + chunks_ps

    def prompt_windows_ps(self, n_tokens: int, reads: Sequence[tuple[int, int]]) -> int:
        """Return the chunks' share of the first pass."""
        return self.model.prefill_windows_ps(n_tokens, reads)


@dataclass(frozen=True)
class MedusaDrafting:
    """Parallel heads on the last hidden state, one per position: a square matrix and an LM head each, without a cache
    (Medusa: Cai et al., ICML '24, section 2.1)."""

    kernels: Kernels
    shard: Shard
    """Shard of the target."""
    n_heads: int

    _lines: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def n_windows(self) -> int:
        """Return 0."""
        return 0

    def line(self, n: int) -> tuple[int, int]:
        """Sum the heads, which run in sequence."""
        if n not in self._lines:
            hidden = self.shard.model.hidden_size
            matrix_s = self.kernels.matmul_s(HEAD_DTYPE, n, hidden, hidden)
            head_s = self.kernels.matmul_s(HEAD_DTYPE, n, self.shard.head_columns, hidden)
            self._lines[n] = to_ps(self.n_heads * float(matrix_s + head_s))
        return self._lines[n], 0

    def window_slopes(self, n: int) -> tuple[int, ...]:
        """Return none."""
        return ()

    def prompt_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int) -> int:
        """Return 0: the heads read last positions only."""
        return 0

    def prompt_windows_ps(self, n_tokens: int, reads: Sequence[tuple[int, int]]) -> int:
        """Return 0."""
        return 0


class LayerCost(StepCost):
    """Passes of one layer that first merges the target's hidden state and the last token's embedding by a matrix
    (EAGLE: Li et al., ICML '24, section 3.1; MTP: DeepSeek-V3, section 2.2)."""

    def tokens_s(self, n_tokens: Any) -> Any:
        """Add the merging matrix."""
        hidden = self.shard.model.hidden_size
        return super().tokens_s(n_tokens) + self._kernels.matmul_s(HEAD_DTYPE, n_tokens, hidden, 2 * hidden)


def one_layer(model: ModelSpec) -> ModelSpec:
    """Return a model of one layer, which attends all tokens, under the shared LM head."""
    experts = model.experts and replace(model.experts, n_dense_layers=0)
    groups = (LayerGroup("latent" if model.mla else "full", 1),)
    return replace(model, n_layers=1, groups=groups, experts=experts, tie_word_embeddings=True)


def without_host(engine: EngineSpec) -> EngineSpec:
    """Return the engine without host time, which a step spends once, with the target."""
    return replace(engine, step_host_s=0.0, request_host_s=0.0)
