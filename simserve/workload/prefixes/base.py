"""Prefix structures: the shared beginnings of prompts, before the new part that `lengths` draws."""

from collections.abc import Callable
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from simserve.tables.columns import Floats, Ints
from simserve.workload.lengths.base import Drawn
from simserve.workload.streams import Stream
from simserve.workload.trace import MOST_TOKENS, Prefixes, Trace

BlockTokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
"""Tokens per shareable block. Larger blocks run faster; the engine's may have another size."""

SomeTokens = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
"""A number of tokens, possibly zero."""

DrawLengths = Callable[[int], Drawn]
"""Draws the lengths of n requests: new part and output. The first n are a prefix of any more."""


class PrefixStructure:
    """The part of a prompt before its new part, and the prompts that share it.

    It draws from streams of its own, named "prefixes/...", so that arrivals and lengths stay the same with or without
    it. Its first n requests are a prefix of its first m > n, with the same ids if it needs no arrivals.
    """

    needs_arrivals: ClassVar[bool] = False
    """It sets arrival times, so a closed loop cannot use it; a class attribute, or set in `__init__`."""
    makes_sessions: ClassVar[bool] = False
    """Its requests have a session_id."""

    def draw(self, arrival_s: Floats, duration_s: float | None, lengths: DrawLengths, stream: Stream) -> Trace:
        """Return requests with whole prompts and prefixes. One per instant; or, for a structure that sets arrival
        times, all before duration_s if that is given."""
        raise NotImplementedError


def prefixed(arrival_s: Floats, drawn: Drawn, before: Ints, prefixes: Prefixes) -> Trace:
    """Return requests with `before` tokens ahead of each prompt, `(n,)`."""
    prompts = before + drawn.prompt_tokens
    return Trace(arrival_s, prompts, drawn.output_tokens, prefixes=prefixes, notes=drawn.notes)


def runs_of_two(block_tokens: int, system_tokens: int, own_first_ids: Ints, n_ids: Ints) -> Prefixes:
    """Return chains of a system prompt's ids 0, 1, ..., followed by ids of their own.

    own_first_ids: the first id after the system prompt, n_ids: the number of ids in all, `(n_requests,)` each.
    """
    n_system = np.minimum(n_ids, system_tokens // block_tokens)
    first_ids = np.stack([np.zeros_like(own_first_ids), own_first_ids], axis=1).reshape(-1)
    both = np.stack([n_system, n_ids - n_system], axis=1).reshape(-1)
    return Prefixes(block_tokens, first_ids, both, 2 * np.arange(len(n_ids) + 1))
