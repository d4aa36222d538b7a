"""Agents: tasks of several model calls with tools in between, some with branches that join again."""

from itertools import count
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.tables.columns import Floats, Ints
from simserve.workload.amounts import Time, Whole, most_of, seconds, whole_numbers
from simserve.workload.lengths.base import STRICT, Drawn
from simserve.workload.prefixes.base import BlockTokens, DrawLengths, PrefixStructure, SomeTokens
from simserve.workload.streams import Stream
from simserve.workload.trace import Dependencies, Prefixes, Trace

MOST_CALLS = 10_000
"""Maximum calls of a task, including its branches."""


@dataclass(config=STRICT)
class Agents(PrefixStructure):
    """A task is a sequence of steps, one model call each, with a tool in between; its context grows with each call.

    A task may fan out between two steps: branches of several calls each continue from the same context in parallel, and
    the next step waits for the last answer of each and has those answers in its prompt. `lengths` draws the new part of
    a call (the tool's output, or the instructions of a branch). Tasks begin with the arrival process, or by users.
    """

    steps: Whole
    """Calls of a task outside of branches: a number, [least, most], or lognormal {median, sigma, max}."""
    tool_s: Time
    """[s] Delay from the last awaited answer to a call: seconds, exponential {mean}, or lognormal {median, sigma,
    max}."""
    fan_out_frac: Annotated[float, Field(ge=0, le=1)] = 0.0
    """[share] Share of the gaps between steps at which the task fans out."""
    branches: Whole = 2
    """Branches of a fan-out, in parallel."""
    branch_calls: Whole = 1
    """Calls of a branch, in sequence."""
    system_tokens: SomeTokens = 0
    """[tokens] Length of the system prompt, tool descriptions included, that begins all tasks."""
    block_tokens: BlockTokens = 16
    """[tokens] Size of a shareable block; larger blocks run faster. The engine's may differ."""

    makes_sessions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        in_branches = most_of(self.branches) * most_of(self.branch_calls) if self.fan_out_frac else 0
        n_calls = most_of(self.steps) * (1 + in_branches)
        if n_calls > MOST_CALLS:
            raise ValueError(f"steps, branches and branch_calls must make at most {MOST_CALLS} calls, got {n_calls}")

    def draw(self, arrival_s: Floats, duration_s: float | None, lengths: DrawLengths, stream: Stream) -> Trace:
        """Draw the first calls, task after task; or all calls of the tasks that begin before duration_s."""
        threads, tasks = self._calls(len(arrival_s), None if duration_s is not None else len(arrival_s), stream)
        task = np.array(tasks, np.int64)
        n = len(task)
        drawn: Drawn = lengths(n)
        prompts, prefixes = threads.grown(drawn, self.system_tokens, self.block_tokens)
        return Trace(
            arrival_s[task],
            prompts,
            drawn.output_tokens,
            session_id=task.astype(np.str_),
            turn=np.arange(n) - np.searchsorted(task, task) + 1,
            prefixes=prefixes,
            dependencies=threads.dependencies(seconds(self.tool_s, n, stream("prefixes/tools"))),
            notes=drawn.notes,
        )

    def _calls(self, n_tasks: int, n_calls: int | None, stream: Stream) -> tuple["Threads", list[int]]:
        """Draw n_calls calls, or all of n_tasks tasks, and the task of each."""
        n_steps = whole_numbers(self.steps, n_tasks, stream("prefixes/steps"))
        if n_calls is not None:  # each step is at least one call
            n_steps = n_steps[: int(np.searchsorted(np.cumsum(n_steps), n_calls)) + 1]
        n_gaps = int(n_steps.sum())
        fans_out = (stream("prefixes/fan_out").random(n_gaps) < self.fan_out_frac).tolist()
        n_branches = whole_numbers(self.branches, n_gaps, stream("prefixes/branches"))
        n_most = int(n_branches[fans_out].sum())
        n_in_branch = iter(whole_numbers(self.branch_calls, n_most, stream("prefixes/branch_calls")).tolist())
        threads, tasks = Threads(), list[int]()
        gap = count()
        for task, n_steps_here in enumerate(n_steps.tolist()):
            main = threads.begin()
            awaited: list[int] = []
            for step in range(n_steps_here):
                call = threads.call(main, awaited)
                awaited, i = [call], next(gap)
                if fans_out[i] and step + 1 < n_steps_here:
                    awaited = [self._branch(threads, call, next(n_in_branch)) for _ in range(int(n_branches[i]))]
            tasks += [task] * (len(threads) - len(tasks))
            if n_calls is not None and len(tasks) >= n_calls:
                threads.cut(n_calls)
                return threads, tasks[:n_calls]
        return threads, tasks

    def _branch(self, threads: "Threads", fork: int, n_calls: int) -> int:
        """Add a branch that continues from a call; return its last call."""
        branch = threads.begin(fork)
        call = fork
        for _ in range(n_calls):
            call = threads.call(branch, [call])
        return call


class Threads:
    """Calls in an order in which each follows those it waits for; a thread is a chain of calls.

    A branch is a thread that begins with the context of a call of a main thread, its answer included. The prompt of a
    call contains the answers of the calls of other threads that it waits for.
    """

    def __init__(self) -> None:
        self._thread: list[int] = []
        """Thread of each call."""
        self._awaited: list[list[int]] = []
        """Calls that each call waits for."""
        self._fork: list[int | None] = []
        """Call that each thread continues from; None: a main thread."""

    def begin(self, fork: int | None = None) -> int:
        """Begin a new thread, from a call or, without one, from the system prompt."""
        self._fork.append(fork)
        return len(self._fork) - 1

    def call(self, thread: int, awaited: list[int]) -> int:
        """Add a call to a thread, sent after other calls are answered."""
        self._thread.append(thread)
        self._awaited.append(awaited)
        return len(self._thread) - 1

    def cut(self, n: int) -> None:
        """Keep the first n calls."""
        del self._thread[n:], self._awaited[n:]

    def __len__(self) -> int:
        return len(self._thread)

    def dependencies(self, think_s: Floats) -> Dependencies:
        """Return the dependencies of the calls, with think_s, `(n_calls,)`."""
        n_awaited = [len(awaited) for awaited in self._awaited]
        parents = np.array([parent for awaited in self._awaited for parent in awaited], np.int64)
        return Dependencies(parents, np.cumsum([0, *n_awaited]), think_s)

    def grown(self, drawn: Drawn, system_tokens: int, block_tokens: int) -> tuple[Ints, Prefixes]:
        """Return whole prompts, given new parts and answers, `(n_calls,)`, and what they share."""
        new, answers = drawn.prompt_tokens.tolist(), drawn.output_tokens.tolist()
        length: dict[int, int] = {}
        shared = [system_tokens] * len(self._fork)
        """Tokens of each thread that several of its calls, or a branch, share."""
        prompts: list[int] = []
        for call, (thread, awaited) in enumerate(zip(self._thread, self._awaited, strict=True)):
            fork = self._fork[thread]
            if thread not in length:
                length[thread] = system_tokens if fork is None else prompts[fork] + answers[fork]
                if fork is not None:
                    shared[self._thread[fork]] = max(shared[self._thread[fork]], length[thread])
            joined = sum(answers[other] for other in awaited if other != fork and self._thread[other] != thread)
            shared[thread] = length[thread]
            prompts.append(length[thread] + joined + new[call])
            length[thread] = prompts[-1] + answers[call]
        prompt_tokens = np.array(prompts, np.int64)
        after = prompt_tokens + drawn.output_tokens
        return prompt_tokens, self._prefixes(after, np.array(shared, np.int64), system_tokens, block_tokens)

    def _prefixes(self, after: Ints, shared: Ints, system_tokens: int, block_tokens: int) -> Prefixes:
        """Return the ids of each call: of the system prompt, its main thread and its branch.

        after: tokens of each call's prompt and answer, `(n_calls,)`.
        """
        thread = np.array(self._thread, np.int64)
        n_before = np.full(len(shared), system_tokens // block_tokens)  # ids of the context it continues from
        main = np.arange(len(shared))
        for branch in np.unique(thread).tolist():
            fork = self._fork[branch]
            if fork is not None:
                main[branch], n_before[branch] = self._thread[fork], after[fork] // block_tokens
        n_own = np.maximum(shared // block_tokens - n_before, 0)
        first_id = system_tokens // block_tokens + np.cumsum(n_own) - n_own
        n_ids = np.minimum(after, shared[thread]) // block_tokens
        n_system = np.full(len(thread), system_tokens // block_tokens)
        n_until_own = np.where(main[thread] == thread, n_ids, n_before[thread])
        first = np.stack([np.zeros_like(n_ids), first_id[main[thread]], first_id[thread]], axis=1)
        n_in_run = np.stack([n_system, n_until_own - n_system, n_ids - n_until_own], axis=1)
        return Prefixes(block_tokens, first.reshape(-1), n_in_run.reshape(-1), 3 * np.arange(len(thread) + 1))
