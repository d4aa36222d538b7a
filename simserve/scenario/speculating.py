"""SpeculationSetup: how a pool speculates, with its draft looked up: what it holds, takes, and asks for."""

from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING

from simserve import catalog
from simserve.catalog.specs import ModelSpec
from simserve.cost.drafting import (
    Drafting,
    FreeDrafting,
    LayerCost,
    MedusaDrafting,
    ModelDrafting,
    one_layer,
    without_host,
)
from simserve.cost.memory import ExtraMemory, Stage, weights_bytes
from simserve.cost.ops import ACTIVATION_BYTES, Shard
from simserve.cost.speculative import SpeculativeCost
from simserve.cost.step import StepCost, StepWork
from simserve.units import to_ps

if TYPE_CHECKING:
    from simserve.scenario.models import Scenario
    from simserve.scenario.servers import Pool

MODELS = ("draft_model", "eagle", "mtp")
"""Those that keep keys and values of their own."""


@dataclass(frozen=True)
class SpeculationSetup:
    """What simulating, explain and the metrics need to know of a pool that speculates."""

    kind: str
    rates: tuple[float, ...]
    """Of each position."""
    propose_s: float
    model: ModelSpec | None = None
    """The draft's, where it is a model of its own."""
    weight_dtype: str = "bf16"
    """What that is stored in."""

    @property
    def n_proposed(self) -> int:
        """Tokens a step and request."""
        return len(self.rates)

    @property
    def tokens_per_step(self) -> float:
        """Expected of a request that goes on: one, and for each position the chance that it is reached and accepted
        (Leviathan et al., ICML '23, equation 1, where all rates are alike)."""
        return float(sum(accumulate(self.rates, mul), 1.0))

    @property
    def n_slots(self) -> int:
        """Tokens beyond those stored that a request has blocks for: one and the proposals, and where a draft writes
        keys of its own as many again (vLLM V1, Scheduler.num_lookahead_tokens)."""
        return 1 + self.n_proposed + (self.n_proposed if self.kind in MODELS else 0)

    @property
    def proposes_on_host(self) -> bool:
        """Proposals need tokens on the host, so no step is planned ahead (vLLM, config/vllm.py)."""
        return self.kind not in MODELS

    def shard(self, target: Shard) -> Shard | None:
        """What a GPU holds of the draft model, or of the layer; None where there is neither."""
        if self.kind == "draft_model":
            assert self.model is not None, "resolving has seen to that"
            return replace(target, model=self.model, weight_dtype=self.weight_dtype, expert=1, data=1)
        return replace(target, model=one_layer(target.model)) if self.kind in MODELS else None

    def extra_memory(self, target: Shard) -> ExtraMemory:
        """What a GPU holds beside the target; embeddings and LM head of a layer are the target's."""
        shard, hidden = self.shard(target), target.model.hidden_size
        if self.kind == "medusa":
            return ExtraMemory(self.n_proposed * _medusa_weights(target) * ACTIVATION_BYTES)
        if shard is None:
            return ExtraMemory()
        if self.kind == "draft_model":
            return ExtraMemory(weights_bytes(shard), shard.kv_bytes_per_token)
        model = shard.model
        stage = Stage(model.n_dense_layers, model.n_moe_layers, is_first=False, is_last=False)
        joining_bytes = 2 * hidden * hidden * ACTIVATION_BYTES
        return ExtraMemory(weights_bytes(shard, stage) + joining_bytes, shard.kv_bytes_per_token)

    def running_cost(self, target: StepCost) -> SpeculativeCost:
        """Steps that propose and verify."""
        model, n_queries = target.shard.model, self.n_proposed + 1
        n_whole = model.n_layers - (model.n_window_layers if model.windowed else 0)
        flop_per_s = target.gpu.peak_flop_per_s("bf16") * target.engine.compute_efficiency
        key_flop = n_queries * n_whole * target.shard.decode_attention(0, 1).flop
        return SpeculativeCost(
            target,
            self._drafting(target),
            self.n_proposed,
            key_floor_ps=to_ps(key_flop / flop_per_s),
            row_host_ps=to_ps(target.engine.request_host_s),
            propose_ps=to_ps(self.propose_s),
        )

    def draft_work(self, target: StepCost) -> StepWork | None:
        """What each pass of the draft asks for; of Medusa, each head. None where nothing is computed."""
        if self.kind == "medusa":
            n_weights = _medusa_weights(replace(target.shard, tensor=1))
            n_bytes = n_weights * ACTIVATION_BYTES
            none = dict.fromkeys(("flop_per_token", "flop_per_pair", "kv_bytes_per_token"), 0.0)
            return replace(target.work, flop_per_sampled=2 * n_weights, weight_bytes_per_step=n_bytes, **none)
        draft = self.draft_cost(target)
        if draft is None:
            return None
        n_joining = 2 * target.shard.model.hidden_size**2 if isinstance(draft, LayerCost) else 0
        return replace(
            draft.work,
            flop_per_token=draft.work.flop_per_token + 2 * n_joining,
            weight_bytes_per_step=draft.work.weight_bytes_per_step + n_joining * ACTIVATION_BYTES,
        )

    def draft_cost(self, target: StepCost) -> StepCost | None:
        """Passes of the draft model, or of the layer, on the target's GPUs."""
        shard = self.shard(target.shard)
        if shard is None:
            return None
        kind = StepCost if self.kind == "draft_model" else LayerCost
        return kind(
            shard.model,
            target.gpu,
            without_host(target.engine),
            kernels=target.kernels,
            weight_dtype=shard.weight_dtype,
            kv_dtype=shard.kv_dtype,
            tensor=shard.tensor,
            expert=shard.expert,
            routing=shard.routing,
        )

    def _drafting(self, target: StepCost) -> Drafting:
        if self.kind == "medusa":
            return MedusaDrafting(target.kernels, target.shard, self.n_proposed)
        draft = self.draft_cost(target)
        return FreeDrafting() if draft is None else ModelDrafting(draft, self.n_proposed)


def speculation_of(scenario: "Scenario", pool: "Pool") -> SpeculationSetup | None:
    """How a pool speculates; None where it does not, or proposes nothing. Raises CatalogError."""
    requested = pool.speculation
    if requested is None or not requested.tokens:
        return None
    model = None if requested.model is None else catalog.load_model(requested.model)
    dtype = requested.weight_dtype or scenario.weight_dtype
    return SpeculationSetup(requested.kind, requested.rates, requested.propose_s, model, dtype)


def _medusa_weights(shard: Shard) -> int:
    """Numbers in one head: its square matrix, and its LM head as far as it is here."""
    return int(shard.model.hidden_size**2) + shard.head_weights
