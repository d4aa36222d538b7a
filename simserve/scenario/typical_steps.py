"""Typical steps: those that `explain` gives the cost of, and dtypes in which they take longer than in bf16."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import get_args

from simserve.catalog.dtypes import NEEDS_RATE, STORED_BYTES
from simserve.catalog.layers import LayerGroup
from simserve.catalog.types import KvDtype, WeightDtype
from simserve.cost.model import CostModel, StepShape, shape_ps
from simserve.scenario.setup import PoolSetup
from simserve.units import to_s

CONTEXT_TOKENS = 1024
"""Context of each request in a typical decode step, where requests may be this long."""
DECODE_BATCHES = (1, 8, 32, 128, 256)
PROMPTS_TOKENS = (512, 2048, 8192)

PLAIN = "bf16"

SLOWER = 1.05
"""Ratio of times from which a step is slower; the fits of kernels are off by as much (docs/calibration.md)."""

SHOWN = (*DECODE_BATCHES, *PROMPTS_TOKENS)
"""Sizes to name, as `explain` shows their steps, where one of them is slower."""

MOST_DECODING = 512
"""Largest decode batch that is tried, as is every smaller one."""

DTYPES: Mapping[str, tuple[str, ...]] = {"weight_dtype": get_args(WeightDtype), "kv_dtype": get_args(KvDtype)}


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


def all_decodes(setup: PoolSetup) -> dict[int, StepShape]:
    """Return decode steps of all batches that the pool's slots and KV cache hold, the largest one last."""
    return dict(decodes(setup, range(1, min(MOST_DECODING, setup.scheduler.max_running or MOST_DECODING) + 1)))


def whole_prompts(setup: PoolSetup) -> Iterator[tuple[int, StepShape]]:
    """Yield prefills of whole prompts, as long as the model allows."""
    for n in PROMPTS_TOKENS:
        if n <= setup.max_model_len:
            windows = tuple((*group.reads(0, n), 0) for group in windows_of(setup))
            pairs = n * (n + 1) // 2
            yield n, StepShape(n, prefill_pairs=pairs, prefill_context_tokens=n, sampled_rows=1, windows=windows)


def slow_dtypes(setup: PoolSetup) -> tuple[str, ...]:
    """Return, for weights and KV cache in fewer than 16 bits, which decode step and which prefill lose most against
    bf16, and what to set instead; nothing where no step is slower."""
    target = replace(setup, speculation=None)
    return tuple(text for key in DTYPES for text in _of(target, key))


def _of(setup: PoolSetup, key: str) -> Iterator[str]:
    dtype = getattr(setup, key)
    if STORED_BYTES[dtype] >= STORED_BYTES[PLAIN]:
        return
    own, plain = StepTimes(setup), StepTimes(_in(setup, key, PLAIN))
    context_tokens = min(CONTEXT_TOKENS, setup.max_model_len)
    for steps, each, shapes in (
        ("decode steps", f" x {context_tokens:,}", all_decodes(setup)),
        ("prefills", "", dict(whole_prompts(setup))),
    ):
        ratios = {n: own.ps(shape) / plain.ps(shape) for n, shape in shapes.items()}
        slow = {n: ratio for n, ratio in ratios.items() if ratio > SLOWER}
        if not slow:
            continue
        n = max([n for n in SHOWN if n in slow] or slow, key=lambda n: slow[n])
        own_ps, plain_ps = own.ps(shapes[n]), plain.ps(shapes[n])
        yield (
            f"{key} {dtype} of {setup.model.name} on {setup.gpu.name} is slower than {PLAIN} in "
            f"{'some' if len(slow) < len(shapes) else 'all'} {steps}: {n:,}{each} tokens take {_ms(own_ps)}, "
            f"with {PLAIN} {_ms(plain_ps)}. {_instead(setup, key, shapes[n])}"
        )


def _instead(setup: PoolSetup, key: str, shape: StepShape) -> str:
    """Return the fastest dtype of no fewer bits that has kernels of its own on the card."""
    own = getattr(setup, key)
    times_ps = {
        dtype: StepTimes(_in(setup, key, dtype)).ps(shape)
        for dtype in DTYPES[key]
        if dtype != own and STORED_BYTES[dtype] > 0.99 * STORED_BYTES[own] and _is_timed(setup, dtype)
    }
    best = min(times_ps, key=lambda dtype: times_ps[dtype])
    more = STORED_BYTES[best] / STORED_BYTES[own]
    if more > 1.01:
        return f"{key} {best} takes {_ms(times_ps[best])}, in {more:.2g} times the memory"
    return f"Set {key}: {best} ({_ms(times_ps[best])})"


def _is_timed(setup: PoolSetup, dtype: str) -> bool:
    """Tell whether the model's kernels of a dtype were timed, or none of any dtype; bf16 always counts."""
    if dtype in NEEDS_RATE and not setup.gpu.multiplies(dtype):
        return False
    ops = {"gemm", "moe"} if setup.model.experts else {"gemm"}
    forms = None if setup.calibration is None else setup.calibration.forms
    return dtype == PLAIN or forms is None or all((op, dtype) in forms for op in ops)


def _in(setup: PoolSetup, key: str, dtype: str) -> PoolSetup:
    """Return a pool in another dtype."""
    return replace(setup, weight_dtype=dtype) if key == "weight_dtype" else replace(setup, kv_dtype=dtype)


class StepTimes:
    """The times of a pool's steps, as `explain` shows them; with speculation, tokens are proposed and verified."""

    def __init__(self, setup: PoolSetup) -> None:
        target, how = setup.step_cost(), setup.speculation
        self._cost: CostModel = target if how is None else how.running_cost(target)
        self._n_ranks, self._n_tokens = setup.n_sharing, 1 if how is None else 1 + how.n_proposed

    def ps(self, shape: StepShape) -> int:
        """Return the duration of a step; of ranks that share experts all decode, or one computes a prompt."""
        n_tokens = self._cost.own_tokens(shape.prefill_tokens) + shape.decode_requests * self._n_tokens
        n_all = (self._n_ranks if shape.decode_requests else 1) * n_tokens
        sent_ps = 0 if shape.prefill_tokens else self._cost.overlapped_ps(n_tokens, False)
        step_ps = shape_ps(self._cost, shape) + self._cost.group_ps(n_all, n_tokens, sent_ps > 0)
        return max(step_ps, sent_ps, self._cost.host_ps(shape.sampled_rows))


def _ms(ps: int) -> str:
    """Return `52.9 ms`."""
    value_ms = to_s(ps) * 1e3
    return f"{value_ms:,.0f} ms" if value_ms >= 1000 else f"{value_ms:.3g} ms"
