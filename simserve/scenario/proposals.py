"""Proposals: how a pool proposes tokens, and the memory, work and cost of its draft."""

from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from simserve import catalog
from simserve.catalog.specs import ModelSpec
from simserve.cost.kernels import draft_shard
from simserve.cost.layer_shards import whole_shards
from simserve.cost.memory import ExtraMemory
from simserve.cost.roofline import decode_work, key_flop
from simserve.cost.shard import ACTIVATION_BYTES, HEAD_DTYPE, Shard
from simserve.cost.speculative import Drafting, MedusaDrafting, ModelDrafting, SpeculativeCost, one_layer, without_host
from simserve.cost.step import StepCost
from simserve.cost.weights import stages, weights_bytes
from simserve.scenario.speculation import MODELS, SpeculationSection
from simserve.tables.facts import WorkFacts
from simserve.units import to_ps

LATENT_FP8 = frozenset({"b200-sxm", "b300-sxm", "gb200", "gb300"})
"""Cards with decode kernels that multiply latent vectors of an fp8 cache in fp8 (TensorRT-LLM, modules/attention.py:
"FP8 MLA for generation phase"; SGLang, trtllm_mla_backend.py)."""


@dataclass(frozen=True)
class SpeculationSetup:
    """All that the simulation, explain and the metrics need to know of a pool that speculates."""

    kind: str
    rates: tuple[float, ...]
    """Acceptance rates by position."""
    propose_s: float
    model: ModelSpec | None = None
    """The draft model, where it is a separate model."""
    weight_dtype: str = "bf16"
    """The draft model's weight dtype."""

    @property
    def n_proposed(self) -> int:
        """Proposed tokens per request and step."""
        return len(self.rates)

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens per step of an unfinished request: one, plus for each position the probability that it is
        accepted (Leviathan et al., ICML '23, equation 1, where all rates are equal)."""
        return float(sum(accumulate(self.rates, mul), 1.0))

    @property
    def n_slots(self) -> int:
        """Tokens beyond the stored ones that a request has blocks for: one and the proposals, and as many again where
        a draft writes keys of its own (vLLM V1, Scheduler.num_lookahead_tokens)."""
        return 1 + self.n_proposed + (self.n_proposed if self.kind in MODELS else 0)

    @property
    def proposes_on_host(self) -> bool:
        """Whether proposals need tokens on the host, so that no step is planned ahead (vLLM, config/vllm.py)."""
        return self.kind not in MODELS

    def shard(self, target: Shard) -> Shard | None:
        """Return a GPU's shard of the draft model or draft layer; None where there is neither."""
        if self.model is not None:
            return draft_shard(target, self.model, self.weight_dtype)
        if self.kind not in MODELS:
            return None
        layer = replace(target, model=one_layer(target.model, self.kind))
        return replace(layer, weight_dtype=self.weight_dtype) if self.kind == "eagle" else layer

    def extra_memory(self, target: Shard) -> ExtraMemory:
        """Return a GPU's memory besides the target; a draft layer uses the target's embeddings and LM head."""
        shard, hidden = self.shard(target), target.model.hidden_size
        if self.kind == "medusa":
            return ExtraMemory(self.n_proposed * _medusa_weights(target) * ACTIVATION_BYTES)
        if shard is None:
            return ExtraMemory()
        if self.kind == "draft_model":
            return ExtraMemory(weights_bytes(shard), shard)
        stage = replace(next(stages(shard.model)), is_first=False, is_last=self.model is not None)
        joining_bytes = 2 * hidden * hidden * ACTIVATION_BYTES
        return ExtraMemory(weights_bytes(shard, stage) + joining_bytes, shard)

    def running_cost(self, target: StepCost) -> SpeculativeCost:
        """Return the cost of steps that propose and verify."""
        model, n_queries, draft = target.shard.model, self.n_proposed + 1, self.draft_cost(target)
        in_fp8 = model.mla is not None and target.shard.kv_dtype == "fp8" and target.gpu.name in LATENT_FP8
        flop_per_s = target.gpu.peak_flop_per_s("fp8" if in_fp8 else "bf16") * target.engine.compute_efficiency
        windows = [group for group in model.groups if group.window is not None]
        flops = [n_queries * group.n_layers * decode_work(target.shard.of(group), 0, 1).flop for group in windows]
        return SpeculativeCost(
            target,
            self._drafting(target, draft),
            self.n_proposed,
            key_floor_ps=to_ps(n_queries * key_flop(target.shard) / flop_per_s),
            row_host_ps=to_ps(target.request_s),
            propose_ps=to_ps(self.propose_s),
            launch_ps=self.n_proposed * draft.eager_ps if draft else 0,
            query_ps=_query_ps(target),
            window_floors_ps=tuple(to_ps(flop / flop_per_s) for flop in flops),
        )

    def draft_work(self, target: StepCost) -> WorkFacts | None:
        """Return the work of each draft pass, or of each Medusa head; None where nothing is computed."""
        if self.kind == "medusa":
            n_weights = _medusa_weights(replace(target.shard, tensor=1))
            n_bytes = n_weights * ACTIVATION_BYTES
            none = dict.fromkeys(("flop_per_token", "flop_per_pair", "kv_bytes_per_token"), 0.0)
            return replace(target.work, flop_per_sampled=2 * n_weights, weight_bytes_per_step=n_bytes, **none)
        draft = self.draft_cost(target)
        if draft is None:
            return None
        n_joining = 2 * target.shard.model.hidden_size**2 if self.kind != "draft_model" else 0
        return replace(
            draft.work,
            flop_per_token=draft.work.flop_per_token + 2 * n_joining,
            weight_bytes_per_step=draft.work.weight_bytes_per_step + n_joining * ACTIVATION_BYTES,
        )

    def draft_cost(self, target: StepCost) -> StepCost | None:
        """Return the cost of passes of the draft model or layer on the target's GPUs."""
        shard = self.shard(target.shard)
        if shard is None:
            return None
        return StepCost(
            replace(shard, data=1),
            target.gpu,
            without_host(target.engine),
            kernels=target.kernels,
            node_link=target.node_link,
            merges=self.kind != "draft_model",
        )

    def _drafting(self, target: StepCost, draft: StepCost | None) -> Drafting:
        if self.kind == "medusa":
            return MedusaDrafting(target.kernels, target.shard, self.n_proposed)
        if draft is None:
            return Drafting()
        n_windows = sum(group.window is not None for group in draft.shard.model.groups)
        return ModelDrafting(draft, self.n_proposed, n_windows)


def speculation_setup(
    given: SpeculationSection | None, weight_dtype: str, max_model_len: int | None
) -> SpeculationSetup | None:
    """Return how a pool with these weights speculates; None without proposals. Raises CatalogError."""
    if given is None or not given.tokens:
        return None
    model = None if given.model is None else catalog.load_model(given.model)
    if model is not None and max_model_len is not None:
        model = model.within(max_model_len)
    dtype = given.weight_dtype or (HEAD_DTYPE if given.kind == "eagle" else weight_dtype)
    return SpeculationSetup(given.kind, given.rates, given.propose_s, model, dtype)


def _query_ps(target: StepCost) -> int:
    """Return one more query, among many, in all layers: its exchange, its attention where it chooses its keys, and the
    state after it, which is written but not read (vLLM: a slot for each token that may be the last one accepted)."""
    shard, model, kernels, step_s = target.shard, target.shard.model, target.kernels, target.context.step_s
    choosing = ((own, group.n_layers, own.model.indexer) for own, group in whole_shards(shard))
    keys_s = sum(n * index.top_k * float(kernels.decode_attention(own, 256)[1]) for own, n, index in choosing if index)
    update_s = (kernels.states_s(shard, 512) - kernels.states_s(shard, 256)) / 256
    states_s = model.n_state_layers * float(update_s) / 2 if model.n_state_layers else 0.0
    exchange_s = (step_s(0, 512) - step_s(0, 256)) / 256
    return to_ps(keys_s / shard.decode_context + states_s + exchange_s)


def _medusa_weights(shard: Shard) -> int:
    """Count the weights of one head: its square matrix and this GPU's shard of its LM head."""
    return int(shard.model.hidden_size**2) + shard.head_weights
