"""The speculation section and its rules; SpeculationSetup: the memory, work and cost of its draft."""

from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Annotated, Literal

from pydantic import Field

from simserve import catalog
from simserve.catalog.specs import GpuSpec, ModelSpec
from simserve.catalog.types import Chance, HostTime, Section, WeightDtype
from simserve.cost.kernels import draft_shard
from simserve.cost.memory import ExtraMemory
from simserve.cost.roofline import decode_work, key_flop
from simserve.cost.shard import ACTIVATION_BYTES, Shard
from simserve.cost.speculative import Drafting, MedusaDrafting, ModelDrafting, SpeculativeCost, one_layer, without_host
from simserve.cost.step import StepCost
from simserve.cost.weights import stages, weights_bytes
from simserve.scenario.draft import Draft
from simserve.scenario.machine import check_rate
from simserve.tables.facts import WorkFacts
from simserve.units import to_ps

GB = 1e9

PADDED_TOKENS = 128
"""Tokens by which vocabularies of a family differ through padding (llama.cpp, SPEC_VOCAB_MAX_SIZE_DIFFERENCE)."""

MODELS = ("draft_model", "eagle", "mtp")
"""Drafts with a KV cache of their own."""

LATENT_FP8 = frozenset({"b200-sxm", "b300-sxm", "gb200", "gb300"})
"""Cards with decode kernels that multiply latent vectors of an fp8 cache in fp8 (TensorRT-LLM, modules/attention.py:
"FP8 MLA for generation phase"; SGLang, trtllm_mla_backend.py)."""


class SpeculationSection(Section):
    """Speculative decoding: how tokens are proposed, and how many are accepted."""

    kind: Literal["draft_model", "ngram", "eagle", "mtp", "medusa"]
    """What proposes tokens: a smaller model, n-grams, or layers or heads of the model (vLLM `method`, SGLang
    `--speculative-algorithm`, TensorRT-LLM `decoding_type`)."""
    tokens: Annotated[int, Field(ge=0, le=32)]
    """[tokens] Proposed per request and step; 0 is plain decoding (vLLM `num_speculative_tokens`, SGLang
    `--speculative-num-steps`, TensorRT-LLM `max_draft_len`)."""
    acceptance: Chance | Annotated[tuple[Chance, ...], Field(min_length=1)]
    """[share] Probability that a proposal is accepted given that all before it were: one rate, or one per position."""
    model: str | None = None
    """Model of a `draft_model`, as that of a scenario; null: for other kinds (vLLM `model`, SGLang
    `--speculative-draft-model-path`)."""
    weight_dtype: WeightDtype | None = None
    """Dtype of the weights of a `draft_model`; null: its checkpoint's, else the target's."""
    propose_s: HostTime = 0.0
    """[s] Host time per step for proposals."""

    @property
    def rates(self) -> tuple[float, ...]:
        """Acceptance rates by position."""
        return self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,) * self.tokens


def check_speculation(draft: Draft, given: SpeculationSection, target: ModelSpec) -> None:
    """Check that the keys suit the kind, and the kind its target."""
    if given.tokens and isinstance(given.acceptance, tuple) and len(given.acceptance) != given.tokens:
        rule = f"must be one rate, or one for each of the {given.tokens} tokens"
        draft.problem(("acceptance",), rule, list(given.acceptance))
    if given.kind == "draft_model" and given.model is None:
        draft.problem(("model",), "is required for draft_model", None, "name a small one of the target's family")
    if given.kind == "mtp" and given.tokens and not target.n_mtp_layers:
        rule = f"mtp needs a layer that predicts further tokens, and {target.name} has none"
        remedy = "use eagle, draft_model or ngram, or a config.json that counts it in num_nextn_predict_layers"
        draft.problem(("kind",), rule, given.kind, remedy)
    if given.kind == "draft_model":
        return
    for key, value in (("model", given.model), ("weight_dtype", given.weight_dtype)):
        if value is not None:
            draft.problem((key,), f"is for draft_model, not {given.kind}", value, "leave it out")


def resolve_draft(draft: Draft, given: SpeculationSection, target: Shard, gpu: GpuSpec) -> SpeculationSection:
    """Return the section with the draft's dtype and absolute path; report a draft that does not suit its target."""
    if given.model is None or draft.touched("model"):
        return given
    name = draft.absolute_model(given.model)
    model = draft.below("model").looked_up(catalog.load_model, name)
    if model is None:
        return given
    dtype = given.weight_dtype or model.weight_dtype or target.weight_dtype
    if given.weight_dtype is None:
        draft.set_origin(("weight_dtype",), f"model {model.name}" if model.weight_dtype else "weight_dtype")
    check_rate(draft.below("weight_dtype"), dtype, gpu)
    _check_model(draft, model, dtype, target)
    return given.model_copy(update={"model": name, "weight_dtype": dtype})


def _check_model(draft: Draft, model: ModelSpec, dtype: str, target: Shard) -> None:
    here, verifier, tensor = ("model",), target.model, target.tensor
    bytes_of = weights_bytes(Shard(model, dtype)), weights_bytes(Shard(verifier, target.weight_dtype))
    if bytes_of[0] > bytes_of[1]:
        sizes = " and ".join(f"{n_bytes / GB:.1f} GB" for n_bytes in bytes_of)
        rule = f"must be smaller than its target {verifier.name}; their weights take {sizes}"
        draft.problem(here, rule, model.name, "drafts usually have a tenth of the weights or less")
    if abs(model.vocab_size - verifier.vocab_size) > PADDED_TOKENS:
        vocabulary = f"the {verifier.vocab_size} tokens of {verifier.name}"
        rule = f"must have {vocabulary}, which verifies its proposals, not {model.vocab_size}"
        draft.problem(here, rule, model.name, "use a smaller model of the same family")
    if not all(heads.divides(tensor) for heads in model.all_heads):
        rule = f"is sharded as its target is: parallel.tensor must divide its {model.n_heads} heads"
        draft.problem(here, rule, tensor, "use fewer GPUs or another draft")


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
        if self.kind == "draft_model":
            assert self.model is not None, "resolving requires a model"
            return draft_shard(target, self.model, self.weight_dtype)
        return replace(target, model=one_layer(target.model)) if self.kind in MODELS else None

    def extra_memory(self, target: Shard) -> ExtraMemory:
        """Return a GPU's memory besides the target; a draft layer uses the target's embeddings and LM head."""
        shard, hidden = self.shard(target), target.model.hidden_size
        if self.kind == "medusa":
            return ExtraMemory(self.n_proposed * _medusa_weights(target) * ACTIVATION_BYTES)
        if shard is None:
            return ExtraMemory()
        if self.kind == "draft_model":
            return ExtraMemory(weights_bytes(shard), shard)
        stage = replace(next(stages(shard.model)), is_first=False, is_last=False)
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
    return SpeculationSetup(given.kind, given.rates, given.propose_s, model, given.weight_dtype or weight_dtype)


def _query_ps(target: StepCost) -> int:
    """Return one more query, among many, in all layers: its exchange, and its attention where it chooses its keys."""
    step_s, (_, slope_s) = target.context.step_s, target.kernels.decode_attention(target.shard, 256)
    n_keys = sum(n_layers * index.top_k for n_layers, _, index in target.shard.model.contexts if index is not None)
    return to_ps(n_keys * float(slope_s) / target.shard.decode_context + (step_s(0, 512) - step_s(0, 256)) / 256)


def _medusa_weights(shard: Shard) -> int:
    """Count the weights of one head: its square matrix and this GPU's shard of its LM head."""
    return int(shard.model.hidden_size**2) + shard.head_weights
