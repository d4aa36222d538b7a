"""StepCost: the cost of a replica's steps in whole picoseconds, tabulated from the times of its kernels."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.layers import LayerGroup
from simserve.catalog.specs import GpuSpec
from simserve.cost.comm import NodeLink
from simserve.cost.context import ContextExchange
from simserve.cost.exchange import ExchangeKernels, exchange_of
from simserve.cost.kernels import Kernels, entry_lines, entry_prefills
from simserve.cost.layer_shards import whole_shards
from simserve.cost.operations import RankOperations, ReplicaLinks, padded, total_s
from simserve.cost.roofline import Roofline, work_of
from simserve.cost.shard import Shard
from simserve.cost.step_lines import StepLines
from simserve.tables.facts import WorkFacts
from simserve.units import array_to_ps, to_ps

FIRST_TABLE = 4096
"""First size of a table; it doubles when a step needs more."""


class StepCost:
    """The cost of the steps of one rank of a replica; pure.

    In a pipeline, a step goes through all stages. Where `data` groups share the experts, their joint work is not part
    of a rank's step but `group_ps`, for the tokens of all of them.

    fast: everything that depends on a count alone is a table of Python integers, filled by numpy with the full formula.
    """

    def __init__(
        self,
        shard: Shard,
        gpu: GpuSpec,
        engine: EngineSpec,
        *,
        kernels: Kernels | None = None,
        pipeline: int = 1,
        node_link: NodeLink | None = None,
        exchange: ExchangeKernels = "by_batch",
        hides_host: bool = False,
        merges: bool = False,
    ) -> None:
        """merges: a layer of a draft, before which a matrix merges two vectors."""
        self.shard, self.gpu, self.engine, self.step_lines = shard, gpu, engine, StepLines()
        self.node_link = node_link or NodeLink(gpu.nic_bytes_per_s)
        self.kernels = kernels or Roofline(gpu, engine)
        self.exchange = exchange_of(shard, gpu, self.node_link, exchange)
        """The exchange of tokens where experts are spread over several nodes; else None."""
        self._links = ReplicaLinks(shard, gpu, self.node_link, self.kernels, pipeline)
        operations = RankOperations(shard, self.kernels, engine, self._links, self.exchange)
        self._of_tokens, self._head_s = operations.of_tokens(), operations.head_s
        self._of_groups, self._of_exchange = operations.of_groups(), operations.of_exchange()
        launched = [*self._of_tokens, *self._of_groups] if engine.enforce_eager else self._of_tokens
        launches_ps = to_ps((engine.eager_kernel_s or 0.0) * sum(each.n_layers * each.n_launches for each in launched))
        self.eager_ps = launches_ps if engine.enforce_eager else 0
        self._launches_ps = 0 if engine.enforce_eager or engine.captures_prompts else launches_ps
        """The host's time to launch the kernels of a step with prompts, which is no shorter."""
        if merges:
            self._of_tokens.append(operations.merge())
        exposed_s = engine.exposed_step_s if hides_host else None
        self._step_s, self.request_s = engine.step_host_s, engine.request_host_s
        """Host time that the GPU waits for, per step and per request in it."""
        self._hidden_ps = (0, 0)
        if exposed_s is not None:
            self._hidden_ps = to_ps(exposed_s + self._step_s), to_ps(self.request_s)
            self._step_s, self.request_s = exposed_s, 0.0
        self._prompt_states = self.kernels.prompt_states(shard)
        self.context, self._n_groups = ContextExchange(self._links), shard.prefill_context
        self._wholes = [self._of_prompts(*each) for each in whole_shards(shard) if not each[1].has_entries]
        self._entry_prefills = entry_prefills(shard, self.kernels)
        self._windows = [self._of_prompts(shard.of(each), each) for each in shard.model.groups if each.window]
        self._prompts_ps: dict[int, tuple[int, int]] = {}
        """Tokens of one whole prompt and its attention, by its pairs."""
        self._tokens_ps, self._sampled_ps = list[int](), list[int]()
        self._group_ps, self._exchange_ps = list[int](), list[int]()
        self._lines: list[tuple[int, int]] = []
        self._window_slopes: list[tuple[int, ...]] = []

    def _of_prompts(self, shard: Shard, group: LayerGroup) -> tuple[int, Callable[[Any, Any, Any], Any]]:
        """Return the layers of a group, and what prompts take in one."""
        return group.n_layers, self.context.of(shard).divided(self.kernels.prefill_attention(shard)).seconds

    def tokens_ps(self, n_tokens: int) -> int:
        """Return the part that depends on the number of tokens in the step alone, padded ones included."""
        if n_tokens >= len(self._tokens_ps):
            pads = self.engine.pads_to_graphs and not self.engine.enforce_eager
            self._tokens_ps = _tabulated(n_tokens, lambda counts: self.tokens_s(padded(counts) if pads else counts))
        return self._tokens_ps[n_tokens]

    def own_tokens(self, n_tokens: int) -> int:
        """Return the tokens of the group with most."""
        return -(-n_tokens // self._n_groups)

    def sampled_ps(self, n_rows: int) -> int:
        """Return the LM head over n_rows positions, and the host's time for their requests."""
        if n_rows >= len(self._sampled_ps):
            self._sampled_ps = _tabulated(n_rows, self.sampled_s)
        return self._sampled_ps[n_rows]

    def host_ps(self, n_rows: int) -> int:
        """Return the host's time for n_rows requests that hides behind kernels: work, or launches without graphs."""
        return max(self._hidden_ps[0] + n_rows * self._hidden_ps[1], self.eager_ps)

    def group_ps(self, n_tokens: int, n_busiest: int, is_split: bool = False) -> int:
        """Return the joint work of groups that share experts, and the exchange for tokens of the group with most."""
        if n_tokens >= len(self._group_ps):
            self._group_ps = _tabulated(n_tokens, self.group_s)
        return self._group_ps[n_tokens] + (0 if self.exchange is None else self.exchange_ps(n_busiest))

    def overlapped_ps(self, n_tokens: int, has_prompts: bool) -> int:
        """Return 0: the exchange comes after the compute; but see `TwoBatchCost`."""
        return 0

    def exchange_ps(self, n_busiest: int) -> int:
        """Return the exchange with experts on other nodes, for the tokens of the group with most; 0 in a node."""
        if n_busiest >= len(self._exchange_ps):
            self._exchange_ps = _tabulated(n_busiest, self.exchange_s)
        return self._exchange_ps[n_busiest]

    def prefill_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int) -> int:
        """Return the attention of all prompt chunks of the step outside of windows, and their states."""
        if n_context_tokens != n_tokens:
            return self._chunks_ps(n_tokens, n_pairs, n_context_tokens)
        prompt = self._prompts_ps.get(n_pairs)  # fast: most steps with prompts compute one, as a whole
        if prompt is not None and prompt[0] == n_tokens:
            return prompt[1]
        prompts_ps = self._chunks_ps(n_tokens, n_pairs, n_context_tokens)
        if 2 * n_pairs == n_tokens * (n_tokens + 1):
            self._prompts_ps[n_pairs] = n_tokens, prompts_ps
        return prompts_ps

    def _chunks_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int) -> int:
        states, work = self._prompt_states, (float(n_tokens), float(n_pairs), float(n_context_tokens))
        if not n_tokens or not (self._wholes or states or self._entry_prefills):
            return 0
        other_s = self.shard.model.n_state_layers * states.seconds(*work) if states else 0.0
        other_s += sum(float(entries.seconds(*work)) for entries in self._entry_prefills)
        return to_ps(sum(n_layers * prefill_s(*work) for n_layers, prefill_s in self._wholes) + other_s)

    def prefill_windows_ps(self, n_tokens: int, reads: Sequence[tuple[int, int]]) -> int:
        """Return that in layers with a window, from the pairs and the keys read in a layer of each such group."""
        works = zip(self._windows, reads, strict=True)
        return to_ps(sum(n_layers * float(prefill_s(n_tokens, *read)) for (n_layers, prefill_s), read in works))

    def decode_line(self, n: int) -> tuple[int, int]:
        """Return (intercept, slope): attention of n decoding requests takes intercept + slope * keys attended, besides
        the keys in layers with a window (see `window_slopes`)."""
        if n >= len(self._lines):
            self._fill_lines(n)
        return self._lines[n]

    def window_slopes(self, n: int) -> tuple[int, ...]:
        """Return the time per key that n decoding requests attend in a layer of each group with a window."""
        if n >= len(self._lines):
            self._fill_lines(n)
        return self._window_slopes[n]

    def _fill_lines(self, n: int) -> None:
        counts = np.arange(max(FIRST_TABLE, 2 * n))
        intercepts, of_groups = self.attention_by_group_ps(counts)
        slopes, windows = np.zeros_like(counts), [np.zeros((0, len(counts)), np.int64)]
        for group, slope in zip(self.shard.model.groups, of_groups, strict=True):
            if group.window is None:
                slopes = slopes + slope
            else:
                windows.append(slope[None])
        self._lines = list(zip(intercepts.tolist(), slopes.tolist(), strict=True))
        self._window_slopes = list(map(tuple, np.concatenate(windows).T.tolist()))

    def attention_by_group_ps(self, counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
        """Return the attention of that many decoding requests without keys, and per key that these requests attend in
        one layer of each group (`LayerGroup.keys`), `(n_counts,)` each."""
        nothing: Any = 0.0 * counts
        model, slopes_s, intercepts_s = self.shard.model, dict[Shard, Any](), nothing
        n_parts = self.shard.decode_context
        for shard, n_layers in self.shard.by_heads:
            intercept_s, slope_s = self.kernels.decode_attention(shard, counts)
            intercept_s, slope_s = intercept_s + self.context.of(shard).queries_s(counts), slope_s / n_parts
            if model.indexer is not None:  # kernels attend top_k keys, however few there are
                intercept_s = intercept_s + counts * (model.indexer.top_k * slope_s)
                slope_s = self.kernels.scored_s(shard, counts) / n_parts
            intercepts_s, slopes_s[shard] = intercepts_s + n_layers * intercept_s, slope_s
        if model.n_state_layers:
            states_s = self.kernels.states_s(self.shard, counts)
            intercepts_s = intercepts_s + model.n_state_layers * states_s * (counts > 0)
        plain = (group for group in model.groups if not group.has_entries)
        of_groups = [each.n_layers * slopes_s[self.shard.of(each)] if each.attends else nothing for each in plain]
        for chosen_s, slope_s in entry_lines(self.shard, self.kernels, counts):
            intercepts_s, of_groups = intercepts_s + chosen_s, [*of_groups, slope_s]
        return array_to_ps(intercepts_s), [array_to_ps(each) for each in of_groups]

    def mixed_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int, kv_tokens: int, n_rows: int) -> int:
        """Return a step of prompt chunks and n decoding requests, without the keys in layers with a window: the sum of
        the parts, each rounded once; with chunks, at least the host's time to launch its kernels."""
        n_own = -(-n_tokens // self._n_groups)
        try:  # fast: the tables, in place
            total_ps = self._tokens_ps[n_own + n] + self._sampled_ps[n_rows]
            line = self._lines[n]
        except IndexError:
            total_ps = self.tokens_ps(n_own + n) + self.sampled_ps(n_rows)
            line = self.decode_line(n)
        if n:
            intercept_ps, slope_ps = line
            total_ps += intercept_ps + slope_ps * kv_tokens
        if n_tokens:
            total_ps += self.prefill_ps(n_tokens, n_pairs, n_context_tokens)
            if total_ps < self._launches_ps:
                return self._launches_ps
        return total_ps

    def check(self) -> None:
        """Evaluate every kernel once. Raises CalibrationError for one that was never timed."""
        for seconds in (self.tokens_s, self.group_s, self.exchange_s, self.sampled_s):
            seconds(1)
        self.kernels.decode_attention(self.shard, 1)
        self.context.prompt_s(1, 2)

    def tokens_s(self, n_tokens: Any) -> Any:
        """Return the seconds of matrices, element-wise work, all-reduces, sends and exposed host time."""
        return self._step_s + total_s(self._of_tokens, n_tokens) + self._links.sends_s(n_tokens)

    def group_s(self, n_tokens: Any) -> Any:
        """Return the seconds of the joint work of groups that share experts; 0 where experts are not shared."""
        return total_s(self._of_groups, n_tokens)

    def exchange_s(self, n_tokens: Any) -> Any:
        """Return the seconds of all exchanges between nodes for n_tokens of a group."""
        return total_s(self._of_exchange, n_tokens)

    def sampled_s(self, n_rows: Any) -> Any:
        """Return the seconds of the LM head and of waiting for the host, for n_rows requests; 0 for none."""
        return (n_rows > 0) * (self._head_s(n_rows) + n_rows * self.request_s)

    @property
    def work(self) -> WorkFacts:
        """The useful work of a rank."""
        return work_of(self.shard, self.gpu)


def _tabulated(n: int, seconds: Callable[[Any], Any]) -> list[int]:
    """Return the picoseconds of 0, 1, ... past n. They may fall: kernels with fewer empty rows are faster."""
    table: list[int] = array_to_ps(seconds(np.arange(max(FIRST_TABLE, 2 * n)))).tolist()
    return table
