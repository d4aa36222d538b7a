"""InFlight: the step run of a replica that is in flight, and the blocks that are taken and freed until it is over."""

from simserve.engine.memory import Memory
from simserve.engine.step_run import StepRun
from simserve.state.cohort import Cohort


class InFlight:
    """The step run in flight of a replica, with requests that keep their blocks to the end.

    The pool counts the blocks that a run's tokens begin when the run is committed. Others free blocks at once, and the
    run's row has the counters at its start.
    """

    def __init__(self, cohort: Cohort, memory: Memory, *, reserves: bool) -> None:
        self._cohort, self._memory, self._pool = cohort, memory, memory.pool
        self._reserves = reserves
        self.step_run: StepRun | None = None
        """None: the replica is idle, or commits."""
        self._n_freed = 0
        """Blocks that others have freed during the run."""
        self.has_changed = False
        """Blocks were taken or freed during the run."""

    def free(self, n_blocks: int) -> None:
        """Note that others have freed blocks."""
        if self.step_run is not None:
            self._n_freed += n_blocks
            self.has_changed = True

    def see(self, now_ps: int) -> None:
        """Apply what windows keep no longer by now, before others use blocks or the cache."""

    @property
    def used_at_start(self) -> int:
        """Blocks used at the start of the run."""
        return self._pool.used_blocks + self._n_freed

    def land(self) -> tuple[int, int]:
        """End the run, which is to be applied; return the blocks used and reserved at its start."""
        self.step_run, self.has_changed = None, False
        pool, n_freed = self._pool, self._n_freed
        self._n_freed = 0
        return pool.used_blocks + n_freed, pool.reserved_blocks

    def apply(self, n_steps: int) -> None:
        """Apply n_steps of decode to the cohort and its blocks."""
        n_blocks = self._cohort.advance(n_steps)
        if n_blocks:
            self._pool.take(n_blocks, self._reserves)

    def held_blocks(self, now_ps: int) -> int:
        """Return the blocks used or reserved at an instant, including those of the step in flight."""
        self.see(now_ps)
        step_run, n_held = self.step_run, self._pool.total_blocks - self._pool.free_blocks
        if step_run is None or not step_run.n_decoding or self._reserves:
            return n_held
        return n_held + self._n_new(step_run.steps_begun(now_ps)) - self._n_dropped(step_run, now_ps)

    def reclaim(self, now_ps: int) -> None:
        """Evict what the blocks held that the run's steps have filled by now, before the cache is looked up."""
        step_run = self.step_run
        if step_run is not None and step_run.n_decoding:
            n_steps = step_run.steps_done(now_ps)
            self.see(now_ps)
            self._memory.reclaim(self._n_new(n_steps))

    def _n_new(self, n_steps: int) -> int:
        """Return the blocks that the first n_steps begin, without those that are taken already."""
        return self._cohort.blocks_begun(n_steps)

    def _n_dropped(self, step_run: StepRun, now_ps: int) -> int:
        """Return the blocks that windows have left by now and that are used still."""
        return 0


class InFlightWithWindows(InFlight):
    """The step run in flight of a replica where windows free blocks of requests that go on."""

    def __init__(self, cohort: Cohort, memory: Memory, *, reserves: bool) -> None:
        super().__init__(cohort, memory, reserves=reserves)
        self._n_moved = 0
        """Blocks that windows have left during the run, as far as this is applied by now."""
        self._n_taken = 0
        """Blocks that its steps began until then."""
        self._n_left = 0
        """Blocks used less since its start for both reasons; others may share what windows left."""

    def see(self, now_ps: int) -> None:
        """Apply what windows keep no longer by now."""
        step_run = self.step_run
        if self._cohort.drops is not None and step_run is not None and step_run.n_decoding:
            self._move_ahead(min(step_run.steps_done(now_ps), step_run.n_steps - 1))

    def _move_ahead(self, n_steps: int) -> None:
        """Free what windows keep no longer in the first n_steps of the run, up to the last block with an id: such
        blocks become idle in turn, after those taken and freed before."""
        cohort, pool, drops = self._cohort, self._pool, self._cohort.drops
        while drops is not None and drops.next_step - cohort.step <= n_steps:
            n_used, n = pool.used_blocks, drops.next_step - cohort.step
            n_named, n_dropped, n_taken = drops.pop(), cohort.blocks_dropped(n), cohort.blocks_begun(n)
            if n_taken > self._n_taken:
                pool.take(n_taken - self._n_taken, self._reserves)
                self._n_taken = n_taken
            if n_dropped - n_named > self._n_moved:
                pool.drop(n_dropped - n_named - self._n_moved, self._reserves)
            for request, n_before, n_tokens in drops.due:
                self._memory.drop(request, (n_before, n_tokens), self._reserves)
            self._n_moved = n_dropped
            self._n_left += n_used - pool.used_blocks
            self.has_changed = True

    def land(self) -> tuple[int, int]:
        """End the run, which is to be applied; return the blocks used and reserved at its start."""
        used_blocks, reserved_blocks = super().land()
        n_left, self._n_left = self._n_left, 0
        return used_blocks + n_left, reserved_blocks - (n_left if self._reserves else 0)

    def apply(self, n_steps: int) -> None:
        """Apply n_steps of decode to the cohort and its blocks, and free those that windows keep no longer."""
        cohort, pool = self._cohort, self._pool
        self._move_ahead(n_steps - 1)
        self._n_left = 0
        n_blocks = cohort.advance(n_steps)
        pool.drop(cohort.n_dropped - self._n_moved, self._reserves)
        if n_blocks > self._n_taken:
            pool.take(n_blocks - self._n_taken, self._reserves)
        self._n_moved = self._n_taken = 0
        if cohort.drops is not None:
            for request, n_before, n_tokens in cohort.drops.due:
                self._memory.drop(request, (n_before, n_tokens), self._reserves)

    def _n_new(self, n_steps: int) -> int:
        """Return the blocks that the first n_steps begin, without those that are taken already."""
        return self._cohort.blocks_begun(n_steps) - self._n_taken

    def _n_dropped(self, step_run: StepRun, now_ps: int) -> int:
        """Return the blocks that windows have left by now and that are used still."""
        return self._cohort.blocks_dropped(step_run.steps_done(now_ps)) - self._n_moved
