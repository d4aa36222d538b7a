"""Stepping: when the next step of a replica may start and when it ends: alone, in a pipeline, or in lockstep."""

from collections.abc import Sequence

from simserve.cost.model import CostModel
from simserve.engine.alarm import PLAN_PHASE, Alarm, Clock
from simserve.engine.hooks import Group
from simserve.engine.lock_step import Hold, LockStep, Pipeline
from simserve.engine.replica import Replica
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.step_run import StepRun


class Alone:
    """A replica that steps on its own: plan, sleep until the step run ends or is cut, commit, plan again."""

    def __init__(self, replica: Replica, clock: Clock) -> None:
        self.n_stages = 1
        """Pipeline stages that a step passes through."""
        self.first_lane = replica.id
        """Id of the replica that is the first lane on the same GPUs."""
        self.group: Group | None = None
        """Ranks that step together."""
        self.lane: Lane | None = None
        """The ranks of one batch in flight, if there are several ranks or batches."""
        self._replica, self._in_flight = replica, replica.in_flight
        self._clock = clock
        self._n_ahead, self._is_alone = replica.n_ahead, replica.is_alone
        self._step_end = Alarm(clock, self._on_step_end, phase=replica.id)
        self._plan_time = Alarm(clock, self._plan, phase=PLAN_PHASE + replica.id)

    def plan_at(self, at_ps: int) -> None:
        """Plan at an instant, as the last event."""
        self._plan_time.set(at_ps)

    def wake(self, now_ps: int, n_ahead: int = 0) -> None:
        """Plan when the step in flight and n_ahead more are over, or now when idle."""
        step_run = self._in_flight.step_run
        if step_run is None:
            if self._plan_time.due_ps != now_ps:
                self._plan_time.set(now_ps)
        elif step_run.n_steps > 1:
            n_steps = step_run.steps_begun(now_ps) + n_ahead
            if n_steps < step_run.n_steps:
                step_run.cut(n_steps)
                self._step_end.set(step_run.end_ps)

    def commit_now(self, now_ps: int) -> None:
        """Commit a step that ends at this very instant, before its alarm goes off, and plan as that would have."""
        step_run = self._in_flight.step_run
        assert step_run is not None, "a step was in flight"
        self._step_end.due_ps = None
        self._replica.commit(step_run, now_ps)
        self._plan_time.set(now_ps)

    def halt(self) -> None:
        """Neither end the step in flight nor plan any more."""
        self._step_end.due_ps = self._plan_time.due_ps = None

    def _on_step_end(self, now_ps: int) -> int | None:
        """Commit, plan and sleep; return when to wake up, None: at the plan, or when others come.

        Loop without the clock while no other event happens in between.
        """
        clock, replica, in_flight = self._clock, self._replica, self._in_flight
        step_run, instants = in_flight.step_run, clock.instants
        while step_run is not None:
            replica.commit(step_run, now_ps)
            if instants and instants[0] <= now_ps:
                self._plan_time.set(now_ps)
                return None
            replica.decide(now_ps)  # fast: no other event at this instant, so plan at once
            step_run = in_flight.step_run
            if step_run is None:
                return None
            now_ps = step_run.end_ps
            if instants and instants[0] <= now_ps:
                if self._is_alone:
                    self._cut_ahead(step_run)
                    now_ps = step_run.end_ps
                return now_ps
            clock._now = now_ps
        return None

    def _plan(self, now_ps: int) -> None:
        """Decide the next steps and sleep through them: the plan phase of an instant."""
        self._replica.decide(now_ps)
        step_run = self._in_flight.step_run
        if step_run is not None:
            if self._is_alone:
                self._cut_ahead(step_run)
            self._step_end.set(step_run.end_ps)

    def _cut_ahead(self, step_run: StepRun) -> None:
        """Cut the step run of a lone replica after the step that the next arrival falls into.

        fast: the next event can only be an arrival for this replica, so it is known in advance.
        """
        instants = self._clock.instants
        if step_run.n_steps > 1 and self._replica.blocked_by is None and instants:
            n_steps = step_run.steps_begun(instants[0]) + self._n_ahead
            if n_steps < step_run.n_steps:
                step_run.cut(n_steps)


class Rank(Alone):
    """Steps of one data-parallel rank, or of one of its batches in flight in a pipeline.

    It has its own scheduler and KV blocks. Without requests it runs a dummy batch (as in vLLM), which takes no time.
    """

    def __init__(self, replica: Replica, clock: Clock, lane: "Lane", first_lane: int) -> None:
        super().__init__(replica, clock)
        self.lane = self._lane = lane
        self.first_lane = first_lane
        self.n_stages = lane.n_stages
        self.group = lane if lane.n_ranks > 1 else None
        replica.decode.steps_singly = True

    def wake(self, now_ps: int, n_ahead: int = 0) -> None:
        """Plan now when idle, with all ranks; a run of ranks is one step, also while the others still plan."""
        if self._in_flight.step_run is None:
            self._lane.wake(now_ps)

    def commit_now(self, now_ps: int) -> None:
        """Commit a step that ends at this very instant; the lane's alarm, which goes off at the same one, plans."""
        step_run = self._in_flight.step_run
        assert step_run is not None, "a step was in flight"
        self._replica.commit(step_run, now_ps)

    def _plan(self, now_ps: int) -> None:
        """Plan with all ranks; arrivals during a step wait for its end."""
        self._lane.plan(now_ps)

    def halt(self) -> None:
        """Neither end the step in flight nor plan any more."""
        super().halt()
        self._lane.halt()


class Lane:
    """The ranks of a replica in one of the batches in flight in its pipeline; they step together.

    Several lanes are like the virtual engines of vLLM 0 (core/scheduler.py). A step that emits no token ends for the
    schedulers once the first stage is through: the next chunk of a long prompt follows closely, as in Sarathi-Serve
    (OSDI '24, section 4).
    """

    def __init__(
        self, ranks: Sequence[Replica], cost: CostModel, clock: Clock, pipeline: Pipeline, hold: "Hold | None"
    ) -> None:
        self.ranks, self.hold = ranks, hold
        self.n_ranks, self.n_stages = len(ranks), pipeline.n_stages
        """Ranks that step together, and stages that they go through."""
        self.cost = cost
        """Cost model of each rank."""
        self.step = LockStep(cost, pipeline, len(ranks))
        self._is_stepping = False
        self._step_end = Alarm(clock, self._on_step_end, phase=ranks[0].id)
        self._plan_time = Alarm(clock, self.plan, phase=PLAN_PHASE + ranks[0].id)

    def wake(self, now_ps: int) -> None:
        """Plan at this instant, unless a step is in flight."""
        if not self._is_stepping and self._plan_time.due_ps != now_ps:
            self._plan_time.set(now_ps)

    def plan(self, now_ps: int) -> None:
        """Plan and begin one step on all ranks; do nothing while a step is in flight."""
        if self._is_stepping:
            return
        self._hold_prompts()
        step = self.step
        step.clear()
        for rank in self.ranks:
            rank.decide(now_ps)
            step_run = rank.in_flight.step_run
            if step_run is not None:
                n_tokens = step_run.n_prefill_tokens + step_run.n_decoding * rank.cohort.n_tokens
                step.add(step_run, n_tokens, n_sampled(step_run))
        if not step.n_tokens:
            return
        ends_ps = step.begin(now_ps)
        end_ps = step.end_ps(ends_ps)
        for rank in self.ranks:
            step_run = rank.in_flight.step_run
            if step_run is not None:
                step_run.last(end_ps - now_ps)
                step_run.wait_ps = step.wait_ps
                if self.n_stages > 1:
                    rank.role.passes_stages(step_run, ends_ps, step.stage_ps)
        self._is_stepping = True
        self._step_end.set(end_ps)

    def _hold_prompts(self) -> None:
        """Tell each rank whether its next step may have prompts."""
        if self.hold is None:
            return
        holds = self.hold.decides(
            sum(rank.batch.only_waits for rank in self.ranks),
            any_decodes=any(rank.cohort.n for rank in self.ranks),
            all_have_prompts=all(rank.batch.has_prompts for rank in self.ranks),
        )
        for rank in self.ranks:
            rank.holds_prompts = holds

    def halt(self) -> None:
        """Neither end the step in flight nor plan any more."""
        self._step_end.due_ps = self._plan_time.due_ps = None

    def _on_step_end(self, now_ps: int) -> None:
        """Commit, and plan after all other events of this instant."""
        self._is_stepping = False
        for rank in self.ranks:
            step_run = rank.in_flight.step_run
            if step_run is not None:
                rank.commit(step_run, now_ps)
        self.wake(now_ps)


def n_sampled(step_run: StepRun) -> int:
    """Return the requests that a step samples: those that decode or complete their prompt."""
    return step_run.n_decoding + sum(n >= request.prefill_left_tokens for request, n in step_run.chunks)


def set_stepping(ranks: Sequence[Replica], clock: Clock, setup: ReplicaSetup) -> None:
    """Let the ranks of one replica step: through the stages of a pipeline, in lockstep, or one on its own.

    ranks: `(n_stages * n_in_step,)`, those of the first lane first. The lanes of a rank share its GPUs.
    """
    if len(ranks) == 1:
        ranks[0].stepping = Alone(ranks[0], clock)
        return
    pipeline, n_in_step, balance = Pipeline(setup.n_stages), setup.n_in_step, setup.balance
    hold = None if balance is None or n_in_step == 1 else Hold(balance)
    for first in range(0, len(ranks), n_in_step):
        lane = Lane(ranks[first : first + n_in_step], setup.cost, clock, pipeline, hold)
        for rank, first_lane in zip(ranks[first : first + n_in_step], ranks, strict=False):
            rank.stepping = Rank(rank, clock, lane, first_lane.id)
            if rank.tier is not None and first_lane.tier is not None:
                rank.tier.share_links(first_lane.tier)
