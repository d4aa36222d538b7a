"""The speculation section: how a pool proposes tokens, and which drafts suit its model."""

from typing import Annotated, Literal

from pydantic import Field

from simserve import catalog
from simserve.catalog.specs import GpuSpec, ModelSpec
from simserve.catalog.types import Chance, HostTime, Section, WeightDtype
from simserve.cost.shard import HEAD_DTYPE, Shard
from simserve.cost.weights import weights_bytes
from simserve.scenario.draft import Draft
from simserve.scenario.machine import check_rate

GB = 1e9

PADDED_TOKENS = 128
"""Tokens by which vocabularies of a family differ through padding (llama.cpp, SPEC_VOCAB_MAX_SIZE_DIFFERENCE)."""

MODELS = ("draft_model", "eagle", "mtp")
"""Drafts with a KV cache of their own."""


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
    """Model of a `draft_model`, as that of a scenario, or the config.json of a head of `eagle`; null: a head with the
    target's widths, or for other kinds (vLLM `model`, SGLang `--speculative-draft-model-path`)."""
    weight_dtype: WeightDtype | None = None
    """Dtype of its weights; null: its checkpoint's, else the target's for a `draft_model` and bf16 for `eagle`."""
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
    if given.kind in ("draft_model", "eagle"):
        return
    for key, value in (("model", given.model), ("weight_dtype", given.weight_dtype)):
        if value is not None:
            draft.problem((key,), f"is for draft_model or eagle, not {given.kind}", value, "leave it out")


def resolve_draft(draft: Draft, given: SpeculationSection, target: Shard, gpu: GpuSpec) -> SpeculationSection:
    """Return the section with the draft's dtype and absolute path; report a draft that does not suit its target."""
    if given.weight_dtype is not None:
        check_rate(draft.below("weight_dtype"), given.weight_dtype, gpu)
    if given.model is None or draft.touched("model"):
        return given
    name = draft.absolute_model(given.model)
    model = draft.below("model").looked_up(catalog.load_model, name)
    if model is None:
        return given
    dtype = given.weight_dtype or model.weight_dtype or (HEAD_DTYPE if given.kind == "eagle" else target.weight_dtype)
    if given.weight_dtype is None:
        is_own = model.weight_dtype or given.kind == "eagle"
        draft.set_origin(("weight_dtype",), f"model {model.name}" if is_own else "weight_dtype")
        check_rate(draft.below("weight_dtype"), dtype, gpu)
    _check_model(draft, model, dtype, target, given.kind)
    return given.model_copy(update={"model": name, "weight_dtype": dtype})


def _check_model(draft: Draft, model: ModelSpec, dtype: str, target: Shard, kind: str) -> None:
    here, verifier, tensor = ("model",), target.model, target.tensor
    bytes_of = weights_bytes(Shard(model, dtype)), weights_bytes(Shard(verifier, target.weight_dtype))
    if bytes_of[0] > bytes_of[1]:
        sizes = " and ".join(f"{n_bytes / GB:.1f} GB" for n_bytes in bytes_of)
        rule = f"must be smaller than its target {verifier.name}; their weights take {sizes}"
        draft.problem(here, rule, model.name, "drafts usually have a tenth of the weights or less")
    if kind == "eagle" and model.hidden_size != verifier.hidden_size:
        rule = f"must have the hidden size of {verifier.name}, {verifier.hidden_size}, as a head reads its layers"
        draft.problem(here, rule, model.hidden_size, "use the config.json of a head that was trained for it")
    n_fewer = verifier.vocab_size - model.vocab_size
    if n_fewer < -PADDED_TOKENS or (n_fewer > PADDED_TOKENS and kind != "eagle"):  # heads may lack rare tokens
        vocabulary = f"the {verifier.vocab_size} tokens of {verifier.name}"
        rule = f"must have {vocabulary}, which verifies its proposals, not {model.vocab_size}"
        draft.problem(here, rule, model.name, "use a smaller model of the same family")
    if not all(heads.divides(tensor) for heads in model.all_heads):
        rule = f"is sharded as its target is: parallel.tensor must divide its {model.n_heads} heads"
        draft.problem(here, rule, tensor, "use fewer GPUs or another draft")
