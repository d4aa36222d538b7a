"""TwoBatchCost: steps in two micro-batches, so that the exchange of one hides behind the compute of the other."""

from simserve.catalog.specs import GpuSpec
from simserve.cost.comm import NodeLink
from simserve.cost.exchange import ExchangeKernels, exchange_of
from simserve.cost.shard import Shard
from simserve.cost.step import StepCost
from simserve.units import to_ps


class TwoBatchCost(StepCost):
    """The cost of ranks that share experts and split a step in two halves, from a threshold on: it takes the larger of
    compute and exchange, not their sum, but computes each half by itself. What the first and the last layer cannot hide
    is left out."""

    def group_ps(self, n_tokens: int, n_busiest: int, is_split: bool = False) -> int:
        """Return for a split step the experts of both halves, and how much longer the ranks' own layers take."""
        if not is_split:
            return super().group_ps(n_tokens, n_busiest)
        experts_ps = super().group_ps(-(-n_tokens // 2), 0) - self.exchange_ps(0)
        halves_ps = 2 * self.tokens_ps(-(-n_busiest // 2)) - to_ps(self._step_s)
        return 2 * experts_ps + halves_ps - self.tokens_ps(n_busiest)

    def overlapped_ps(self, n_tokens: int, has_prompts: bool) -> int:
        """Return the exchange of both halves, and no less than their launches without CUDA graphs, if a rank's tokens
        are enough (vLLM, v1/worker/ubatch_splitting.py); else 0."""
        engine = self.engine
        least = engine.dbo_prefill_token_threshold if has_prompts else engine.dbo_decode_token_threshold
        return 2 * max(self.exchange_ps(-(-n_tokens // 2)), self.eager_ps) if n_tokens >= max(2, least or 0) else 0


def can_overlap(shard: Shard, gpu: GpuSpec, link: NodeLink, kernels: ExchangeKernels) -> bool:
    """Tell whether ranks have an exchange that runs beside compute; collectives take the GPU's cores."""
    return kernels != "gather" and exchange_of(shard, gpu, link, kernels) is not None
