"""Lock step: one step of ranks that step together, its way through a pipeline, and prompts that wait for ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

from simserve.cost.model import CostModel
from simserve.engine.slowness import Slowness
from simserve.engine.step_run import StepRun
from simserve.scenario.parallel import BalanceSection


class Pipeline:
    """The stages of a replica. A batch takes equally long in each, and waits for a stage that is busy."""

    def __init__(self, n_stages: int) -> None:
        self._free_at_ps = [0] * n_stages

    @property
    def n_stages(self) -> int:
        """Number of stages; each takes an equal part of a step."""
        return len(self._free_at_ps)

    def enter(self, now_ps: int, step_ps: int) -> tuple[int, ...]:
        """Send a batch that takes step_ps without waits; return when it leaves each stage, `(n_stages,)`."""
        free_at_ps, at_ps = self._free_at_ps, now_ps
        stage_ps = -(-step_ps // len(free_at_ps))
        for stage, free_ps in enumerate(free_at_ps):
            if free_ps > at_ps:
                at_ps = free_ps
            at_ps += stage_ps
            free_at_ps[stage] = at_ps
        return tuple(free_at_ps)


class Hold:
    """Hold prompts back until each rank has one, as TensorRT-LLM's `enable_balance` (py_executor.py).

    All prompts run where a rank with requests has none to decode. While some rank has no prompt, or none has, steps are
    counted, and prompts run at each timeout_iters-th; an idle rank decodes a dummy.
    """

    def __init__(self, balance: BalanceSection) -> None:
        self._balance = balance
        self._n_waited = self._n_batching = 0

    def decides(self, n_only_wait: int, *, any_decodes: bool, all_have_prompts: bool) -> bool:
        """Return whether the next step of each rank has no prompts; an idle group counts nothing.

        n_only_wait: ranks with requests of which none decodes.
        """
        if not n_only_wait and not any_decodes:
            return False
        if all_have_prompts:
            self._n_waited = 0
            holds = not n_only_wait and self._n_batching < self._balance.batching_wait_iters
            if not n_only_wait:
                self._n_batching = self._n_batching + 1 if holds else 0
            return holds
        self._n_waited += 1
        holds = not n_only_wait and self._n_waited < self._balance.timeout_iters
        if not holds:
            self._n_waited = 0
        return holds


class LockStep:
    """One step of ranks that step together.

    It lasts as long as that of the busiest rank, plus the time of the experts for the tokens of all ranks, and goes
    through the stages.
    """

    def __init__(self, cost: CostModel, pipeline: Pipeline, n_ranks: int, slowness: Slowness) -> None:
        self._cost, self._pipeline, self._n_ranks, self._slowness = cost, pipeline, n_ranks, slowness
        self.wait_ps = self.stage_ps = 0
        """How long all wait for what delays the slowest, and the time of each stage, once it has begun."""
        self.clear()

    def clear(self) -> None:
        """Begin anew, without ranks."""
        self._slowest_ps = self._step_ps = self._host_ps = self._n_busiest = self._n_splitting = self._sent_ps = 0
        self.n_tokens = 0
        """Tokens of all ranks; 0: none has anything to do."""
        self._gives_tokens = False

    def add(self, step_run: StepRun, n_tokens: int, n_rows: int) -> None:
        """Add what a rank has to do: n_tokens, of which n_rows are sampled."""
        first_ps: int = step_run.first_ps
        self._slowest_ps = max(self._slowest_ps, first_ps)
        self._step_ps = max(self._step_ps, first_ps - step_run.wait_ps)
        self._host_ps = max(self._host_ps, self._cost.host_ps(n_rows))
        n_tokens += self._cost.own_tokens(step_run.n_prefill_tokens) - step_run.n_prefill_tokens
        self.n_tokens += n_tokens
        self._n_busiest = max(self._n_busiest, n_tokens)
        self._gives_tokens = self._gives_tokens or n_rows > 0
        sent_ps = self._cost.overlapped_ps(n_tokens, step_run.n_prefill_tokens > 0)
        self._n_splitting, self._sent_ps = self._n_splitting + (sent_ps > 0), max(self._sent_ps, sent_ps)

    def begin(self, now_ps: int) -> tuple[int, ...]:
        """Begin the step; return when it leaves each stage, `(n_stages,)`."""
        step_ps, self.wait_ps = self._step_ps, self._slowest_ps - self._step_ps
        if self._n_ranks > 1:
            is_split = self._n_splitting == self._n_ranks
            step_ps += self._cost.group_ps(self.n_tokens, self._n_busiest, is_split)
            step_ps = max(step_ps, self._sent_ps * is_split)
        step_ps = max(step_ps, self._host_ps)
        if self._slowness.windows:
            step_ps = self._slowness.step_ps(step_ps, now_ps)
        self.stage_ps = -(-step_ps // self._pipeline.n_stages)
        return self._pipeline.enter(now_ps + self.wait_ps, step_ps)

    def end_ps(self, ends_ps: tuple[int, ...]) -> int:
        """Return when the step ends for the schedulers: one that emits no token, once the first stage is through."""
        return ends_ps[-1] if self._gives_tokens else ends_ps[0]


@dataclass(eq=False)
class Lane:
    """The ranks of a replica in one of the batches in flight in its pipeline; they step together.

    Several lanes are like the virtual engines of vLLM 0 (core/scheduler.py). A step that emits no token ends for the
    schedulers once the first stage is through: the next chunk of a long prompt follows closely, as in Sarathi-Serve
    (OSDI '24, section 4). A rank without requests runs a dummy batch (as in vLLM), which takes no time.
    """

    ranks: Sequence[int]
    """Their ids."""
    cost: CostModel
    """Cost model of each rank."""
    step: LockStep
    n_stages: int
    hold: Hold | None
    """Holds prompts back, if anything does."""


class Stepping:
    """Ranks that a replica steps with, if there are any."""

    def __init__(self, index: int) -> None:
        self.lane: Lane | None = None
        """The ranks of one batch in flight, if there are several ranks or batches."""
        self.first_lane = index
        """Id of the replica that is the first lane on the same GPUs."""

    @property
    def n_stages(self) -> int:
        """Pipeline stages that a step passes through."""
        return 1 if self.lane is None else self.lane.n_stages

    @property
    def group(self) -> Lane | None:
        """Ranks that step together, if there are several."""
        return self.lane if self.lane is not None and len(self.lane.ranks) > 1 else None
