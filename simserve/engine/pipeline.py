"""Pipeline: a replica with its layers divided into stages, and the batches that pass through them."""

from collections.abc import Sequence

from simserve.engine.replica import Replica


class Pipeline:
    """The stages of a replica. A batch takes equally long in each, and waits for a stage that is busy."""

    def __init__(self, n_stages: int) -> None:
        self._free_at_ps = [0] * n_stages

    @property
    def n_stages(self) -> int:
        """Number of stages; each takes an equal part of a step."""
        return len(self._free_at_ps)

    @classmethod
    def join(cls, lanes: "Sequence[Lane]") -> None:
        """Make these the lanes of one pipeline with as many stages."""
        pipeline = cls(len(lanes))
        for lane in lanes:
            lane.pipeline = pipeline

    def enter(self, now_ps: int, step_ps: int) -> tuple[int, int]:
        """Send a batch that takes step_ps without waits; return when it leaves the first stage, and the last."""
        free_at_ps, at_ps = self._free_at_ps, now_ps
        stage_ps = -(-step_ps // len(free_at_ps))
        for stage, free_ps in enumerate(free_at_ps):
            if free_ps > at_ps:
                at_ps = free_ps
            at_ps += stage_ps
            free_at_ps[stage] = at_ps
        return free_at_ps[0], at_ps


class Lane(Replica):
    """The requests of one of the batches in flight in a pipeline.

    Each lane has its scheduler and its share of the KV blocks, like the virtual engines of vLLM 0 (core/scheduler.py).
    A step that emits no token ends for the scheduler once the first stage is through: the next chunk of a long prompt
    follows closely, as in Sarathi-Serve (OSDI '24, section 4).
    """

    pipeline: Pipeline

    def _on_step_end(self, now_ps: int) -> None:
        """Commit, and plan after all other events of this instant."""
        assert self.step_run is not None, "a step was in flight"
        self.commit(self.step_run, now_ps)
        self._plan_time.set(now_ps)

    def _plan(self, now_ps: int) -> None:
        """Plan one step and send it through the pipeline."""
        self.decide(now_ps)
        step_run = self.step_run
        if step_run is None:
            return
        first_end_ps, end_ps = self.pipeline.enter(now_ps, step_run.first_ps)
        gives_tokens = step_run.n_decoding or any(n >= request.prefill_left_tokens for request, n in step_run.chunks)
        step_run.last((end_ps if gives_tokens else first_end_ps) - now_ps)
        self._step_end.set(step_run.end_ps)
