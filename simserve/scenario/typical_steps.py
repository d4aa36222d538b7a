"""Typical steps: the shapes for which `explain` and warnings give the cost of a pool's steps."""

from collections.abc import Iterable, Iterator

from simserve.catalog.layers import LayerGroup
from simserve.cost.shape import StepShape
from simserve.scenario.setup import PoolSetup

CONTEXT_TOKENS = 1024
"""Context of each request in a typical decode step, where requests may be this long."""
DECODE_BATCHES = (1, 8, 32, 128, 256)
PROMPTS_TOKENS = (512, 2048, 8192)


def windows_of(setup: PoolSetup) -> list[LayerGroup]:
    """Return the groups with a window: those of the model, then those of its draft."""
    how = setup.speculation
    draft = None if how is None else how.shard(setup.step_cost().shard)
    groups = [*setup.model.groups, *(() if draft is None else draft.model.groups)]
    return [group for group in groups if group.window is not None]


def decodes(setup: PoolSetup, batches: Iterable[int] = DECODE_BATCHES) -> Iterator[tuple[int, StepShape]]:
    """Yield decode steps of the batches that the KV cache holds."""
    context_tokens = min(CONTEXT_TOKENS, setup.max_model_len)
    for n in batches:
        if n * setup.ledger.layout.blocks.most(context_tokens) <= setup.ledger.lane_blocks:
            windows = tuple((0, 0, n * group.keys(context_tokens)) for group in windows_of(setup))
            yield n, StepShape(decode_requests=n, kv_tokens=n * context_tokens, sampled_rows=n, windows=windows)


def whole_prompts(setup: PoolSetup) -> Iterator[tuple[int, StepShape]]:
    """Yield prefills of whole prompts, as long as the model allows."""
    for n in PROMPTS_TOKENS:
        if n <= setup.max_model_len:
            windows = tuple((*group.reads(0, n), 0) for group in windows_of(setup))
            pairs = n * (n + 1) // 2
            yield n, StepShape(n, prefill_pairs=pairs, prefill_context_tokens=n, sampled_rows=1, windows=windows)
