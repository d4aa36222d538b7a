"""SpeculativeCost: the cost of steps that propose and verify tokens; Drafting: the part of proposing, by method."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.layers import LayerGroup
from simserve.catalog.specs import ModelSpec
from simserve.cost.kernels import Kernels
from simserve.cost.model import CostModel
from simserve.cost.shard import HEAD_DTYPE, Shard
from simserve.cost.step_lines import StepLines
from simserve.units import to_ps


class Drafting:
    """The cost of a step's proposals in integer picoseconds; pure. Those from earlier text (n-grams) take none."""

    n_windows: int = 0
    """Groups of its layers with a window."""

    def line(self, n: int) -> tuple[int, int]:
        """Return (intercept, slope): n requests take intercept + slope * keys that their next tokens attend, besides
        the keys in layers with a window (see `window_slopes`)."""
        return 0, 0

    def window_slopes(self, n: int) -> tuple[int, ...]:
        """Return the time per key that the next tokens of n requests attend in a layer of each group with a window."""
        return ()

    def prompt_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int) -> int:
        """Return the extra time for prompt chunks, in a step that also proposes for n requests, without layers that
        have a window."""
        return 0

    def prompt_windows_ps(self, n_tokens: int, reads: Sequence[tuple[int, int]]) -> int:
        """Return that in layers with a window, from the pairs and keys read in a layer of each such group."""
        return 0


@dataclass(frozen=True)
class ModelDrafting(Drafting):
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
        return self.model.tokens_ps(n + self.model.own_tokens(n_tokens)) - alone_ps + chunks_ps

    def prompt_windows_ps(self, n_tokens: int, reads: Sequence[tuple[int, int]]) -> int:
        """Return the chunks' share of the first pass."""
        return self.model.prefill_windows_ps(n_tokens, reads)


@dataclass(frozen=True)
class MedusaDrafting(Drafting):
    """Parallel heads on the last hidden states, one per position: a square matrix and an LM head each, without a cache
    (Medusa: Cai et al., ICML '24, section 2.1)."""

    kernels: Kernels
    shard: Shard
    """Shard of the target."""
    n_heads: int

    _lines: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def line(self, n: int) -> tuple[int, int]:
        """Sum the heads, which run in sequence."""
        if n not in self._lines:
            hidden = self.shard.model.hidden_size
            matrix_s = self.kernels.matmul_s(HEAD_DTYPE, n, hidden, hidden)
            head_s = self.kernels.matmul_s(HEAD_DTYPE, n, self.shard.head_columns, hidden)
            self._lines[n] = to_ps(self.n_heads * float(matrix_s + head_s))
        return self._lines[n], 0


@dataclass(frozen=True)
class SpeculativeCost:
    """A CostModel of decoding requests that each verify n_proposed + 1 tokens after proposing them.

    All tokens go through the layers and the LM head. Attention reads the keys of a request once for all its tokens, as
    multi-query kernels do; its compute may then outweigh its reads (`key_floor_ps`). For a number of requests the step
    is therefore still a line in the keys that their next tokens attend.
    """

    target: CostModel
    drafting: Drafting
    n_proposed: int
    key_floor_ps: int = 0
    """Lower bound of a key's share of a step: the n_proposed + 1 queries computed against it."""
    row_host_ps: int = 0
    """Host time that the target counts per row of the LM head; a request takes it once, whatever its rows."""
    propose_ps: int = 0
    """Host time of a step for proposals."""
    query_ps: int = 0
    """Exchange of a request's further query over divided contexts, and its attention of keys of its own (sparse)."""
    launch_ps: int = 0
    """Host time of a step to launch the draft's kernels, where no CUDA graph holds them."""
    window_floors_ps: tuple[int, ...] = ()
    """Lower bounds of a key's share by group with a window; empty for none."""
    step_lines: StepLines = field(default_factory=StepLines, init=False, repr=False, compare=False)

    def tokens_ps(self, n_tokens: int) -> int:
        """Return the target's part."""
        return self.target.tokens_ps(n_tokens)

    def own_tokens(self, n_tokens: int) -> int:
        """Return the target's part."""
        return self.target.own_tokens(n_tokens)

    def sampled_ps(self, n_rows: int) -> int:
        """Return the target's part."""
        return self.target.sampled_ps(n_rows)

    def prefill_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int) -> int:
        """Return the target's part."""
        return self.target.prefill_ps(n_tokens, n_pairs, n_context_tokens)

    def prefill_windows_ps(self, n_tokens: int, reads: Sequence[tuple[int, int]]) -> int:
        """Return that in layers with a window, from the reads of the target's groups and then the draft's."""
        n = len(reads) - self.drafting.n_windows
        return self.target.prefill_windows_ps(n_tokens, reads[:n]) + self.draft_windows_ps(n_tokens, reads[n:])

    def window_slopes(self, n: int) -> tuple[int, ...]:
        """Return the time per key of all tokens of n requests, by group with a window, the target's first."""
        return self._verify_slopes(n) + self.drafting.window_slopes(n)

    def group_ps(self, n_tokens: int, n_busiest: int, is_split: bool = False) -> int:
        """Return the target's part."""
        return self.target.group_ps(n_tokens, n_busiest, is_split)

    def overlapped_ps(self, n_tokens: int, has_prompts: bool) -> int:
        """Return the target's part."""
        return self.target.overlapped_ps(n_tokens, has_prompts)

    def host_ps(self, n_rows: int) -> int:
        """Return the target's part, once a request, whatever its rows of the LM head, and the draft's launches."""
        return self.target.host_ps(n_rows) + self.launch_ps

    def decode_line(self, n: int) -> tuple[int, int]:
        """Return the line of n requests beyond tokens_ps(n) and sampled_ps(n)."""
        verify_ps, verify_slope_ps = self._verify_line(n)
        draft_ps, draft_slope_ps = self.draft_line(n)
        n_rows = n * (self.n_proposed + 1)
        more_tokens_ps = self.target.tokens_ps(n_rows) - self.target.tokens_ps(n)
        more_rows_ps = self.target.sampled_ps(n_rows) - self.target.sampled_ps(n) - n * self._spare_host_ps
        return more_tokens_ps + more_rows_ps + verify_ps + draft_ps, verify_slope_ps + draft_slope_ps

    def draft_line(self, n: int) -> tuple[int, int]:
        """Return the part of that line spent on proposals."""
        intercept_ps, slope_ps = self.drafting.line(n)
        return intercept_ps + self.propose_ps, slope_ps

    def draft_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int, kv_tokens: int) -> int:
        """Return the part of a step as in `mixed_ps` that is spent on proposals."""
        total_ps = self.drafting.prompt_ps(n_tokens, n_pairs, n_context_tokens, n) if n_tokens else 0
        if n:
            intercept_ps, slope_ps = self.draft_line(n)
            total_ps += intercept_ps + slope_ps * kv_tokens
        return total_ps

    def draft_windows_ps(
        self, n_tokens: int, reads: Sequence[tuple[int, int]], n: int = 0, keys: Sequence[int] = ()
    ) -> int:
        """Return the part that is spent in the draft's layers with a window: the reads of chunks, and the keys of n
        decoding requests, by group."""
        total_ps = self.drafting.prompt_windows_ps(n_tokens, reads) if n_tokens else 0
        for slope_ps, n_keys in zip(self.drafting.window_slopes(n), keys, strict=False):
            total_ps += slope_ps * n_keys
        return total_ps

    def mixed_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int, kv_tokens: int, n_rows: int) -> int:
        """Return a step of prompt chunks and n decoding requests, each of which has one of the n_rows."""
        target, n_more = self.target, n * self.n_proposed
        total_ps = target.tokens_ps(target.own_tokens(n_tokens) + n + n_more)
        total_ps += target.sampled_ps(n_rows + n_more) - n * self._spare_host_ps
        if n_tokens:
            total_ps += target.prefill_ps(n_tokens, n_pairs, n_context_tokens)
        if n:
            intercept_ps, slope_ps = self._verify_line(n)
            total_ps += intercept_ps + slope_ps * kv_tokens
        return total_ps + self.draft_ps(n_tokens, n_pairs, n_context_tokens, n, kv_tokens)

    @property
    def _spare_host_ps(self) -> int:
        return self.n_proposed * self.row_host_ps

    def _verify_line(self, n: int) -> tuple[int, int]:
        """Return the attention of all tokens of n requests, where later proposals also attend earlier ones."""
        intercept_ps, slope_ps = self.target.decode_line(n)
        slope_ps = max(slope_ps, self.key_floor_ps)
        later_ps = slope_ps + sum(self._verify_slopes(n))
        return intercept_ps + (later_ps + self.query_ps) * n * self.n_proposed, slope_ps

    def _verify_slopes(self, n: int) -> tuple[int, ...]:
        """Return the target's part of `window_slopes`."""
        slopes = self.target.window_slopes(n)
        return tuple(map(max, slopes, self.window_floors_ps)) if self.window_floors_ps else slopes


def one_layer(model: ModelSpec, kind: str) -> ModelSpec:
    """Return a model of one layer under the shared LM head: of MTP as the checkpoint has it; else of EAGLE, which
    attends all tokens, or a window where others attend entries beside one, with a dense MLP as wide as the experts that
    a token meets (vLLM, llama_eagle3.py and deepseek_eagle3.py; 18,432 with Kimi-K2)."""
    mixer, mlp = model.mtp_layer if kind == "mtp" else ("full", "dense")
    mixer = "windowed" if any(group.has_entries for group in model.groups) else mixer
    whole = LayerGroup("latent" if model.mla else "full", 1)
    group = replace(next((each for each in model.groups if each.kind == mixer), whole), n_layers=1, n_sharing=0)
    layer = replace(model, n_layers=1, n_bare_layers=0, groups=(group,), layer_inputs=None)
    layer = replace(layer, mlps=(), tie_word_embeddings=True)
    experts = model.experts
    if kind != "mtp":
        layer = replace(layer, indexer=None, gated_attention=False, norms_all_heads=False)
        if experts is not None:
            n_routed = experts.top_k * experts.expert_size * (experts.latent_size or model.hidden_size)
            n_shared = experts.n_shared_experts * experts.shared_size
            layer = replace(layer, intermediate_size=n_routed // model.hidden_size + n_shared)
    alone = experts and replace(experts, n_dense_layers=0, dense_at=())
    return replace(layer, experts=alone if mlp == "experts" else None)


def without_host(engine: EngineSpec) -> EngineSpec:
    """Return the engine without host time, which a step spends once, with the target."""
    return replace(engine, step_host_s=0.0, request_host_s=0.0)
