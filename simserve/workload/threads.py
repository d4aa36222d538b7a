"""Threads: contexts that grow from call to call, branch, and are joined again."""

import numpy as np

from simserve.tables.columns import Floats, Ints
from simserve.workload.dependencies import Dependencies
from simserve.workload.lengths.base import Drawn
from simserve.workload.trace import Prefixes


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
        """Return the tokens of each thread that several of its calls, or a branch, share."""
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
