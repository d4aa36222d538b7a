"""Drafting: what it takes to propose tokens, by how they are made."""

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from simserve.catalog.specs import EngineSpec, ModelSpec
from simserve.cost.kernels import Kernels
from simserve.cost.model import CostModel
from simserve.cost.ops import HEAD_DTYPE, Shard
from simserve.cost.step import StepCost
from simserve.units import to_ps


class Drafting(Protocol):
    """Integer picoseconds of the proposals of a step; pure."""

    def line(self, n: int) -> tuple[int, int]:
        """(intercept, slope): for n requests, intercept + slope * keys that these attend in their next token."""

    def prompt_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int) -> int:
        """What the chunks of prompts take it besides, in a step in which it proposes for n requests."""


@dataclass(frozen=True)
class FreeDrafting:
    """Proposals that take the GPU no time: what followed the same words before (n-grams)."""

    def line(self, n: int) -> tuple[int, int]:
        """Nothing."""
        return 0, 0

    def prompt_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int) -> int:
        """Nothing."""
        return 0


@dataclass(frozen=True)
class ModelDrafting:
    """A model that decodes n_passes tokens one after the other: a small one of its own, or a layer of the target's kind
    that is applied again and again (EAGLE, MTP).

    It keeps keys and values of the same tokens as the target, so it computes prompts too, in its first pass.
    """

    model: CostModel
    """Without host time, which a step takes once."""
    n_passes: int

    def line(self, n: int) -> tuple[int, int]:
        """Pass i, from 0, attends i tokens a request more than the first."""
        intercept_ps, slope_ps = self.model.decode_line(n)
        pass_ps = self.model.tokens_ps(n) + self.model.sampled_ps(n) + intercept_ps
        n_later_keys = n * (self.n_passes * (self.n_passes - 1) // 2)
        return self.n_passes * pass_ps + slope_ps * n_later_keys, self.n_passes * slope_ps

    def prompt_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int) -> int:
        """They go along with the tokens of the first pass."""
        alone_ps = self.model.tokens_ps(n) if n else 0
        return (
            self.model.tokens_ps(n + n_tokens) - alone_ps + self.model.prefill_ps(n_tokens, n_pairs, n_context_tokens)
        )


@dataclass(frozen=True)
class MedusaDrafting:
    """Heads side by side on the last hidden state, one a position: a square matrix and an LM head each, and no keys
    (Medusa: Cai et al., ICML '24, section 2.1)."""

    kernels: Kernels
    shard: Shard
    """Of the target."""
    n_heads: int
    _lines: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def line(self, n: int) -> tuple[int, int]:
        """One head after the other."""
        if n not in self._lines:
            hidden = self.shard.model.hidden_size
            matrix_s = self.kernels.matmul_s(HEAD_DTYPE, n, hidden, hidden)
            head_s = self.kernels.matmul_s(HEAD_DTYPE, n, self.shard.head_columns, hidden)
            self._lines[n] = to_ps(self.n_heads * float(matrix_s + head_s))
        return self._lines[n], 0

    def prompt_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int) -> int:
        """Nothing: they look at last positions only."""
        return 0


class LayerCost(StepCost):
    """Passes of one layer that joins the target's hidden state with the embedding of the last token first, by a matrix
    (EAGLE: Li et al., ICML '24, section 3.1; MTP: DeepSeek-V3, section 2.2)."""

    def tokens_s(self, n_tokens: Any) -> Any:
        """With that matrix."""
        hidden = self.shard.model.hidden_size
        return super().tokens_s(n_tokens) + self._kernels.matmul_s(HEAD_DTYPE, n_tokens, hidden, 2 * hidden)


def one_layer(model: ModelSpec) -> ModelSpec:
    """A layer like the model's last, under its LM head, which it shares."""
    experts = model.experts and replace(model.experts, n_dense_layers=0)
    n_window = 1 if model.n_window_layers == model.n_layers else 0
    return replace(model, n_layers=1, n_window_layers=n_window, experts=experts, tie_word_embeddings=True)


def without_host(engine: EngineSpec) -> EngineSpec:
    """The engine as passes of a draft see it: the host's time for a step is spent once, with the target."""
    return replace(engine, step_host_s=0.0, request_host_s=0.0)
