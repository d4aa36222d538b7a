"""Prefix structures: what prompts begin with, before the new part whose length `lengths` draws."""

from collections.abc import Callable
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from simserve.workload.lengths.base import Drawn
from simserve.workload.streams import Stream
from simserve.workload.trace import MOST_TOKENS, Prefixes, Trace

STRICT = ConfigDict(extra="forbid")
"""For the pydantic dataclass of a structure: its fields are its YAML, and unknown ones are mistakes."""

BlockTokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
"""Tokens of a block that prompts can share: those of the engine's blocks, or a multiple. Larger ones run quicker."""

SomeTokens = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
"""A number of tokens, perhaps none."""

Ints = NDArray[np.int64]
DrawLengths = Callable[[int], Drawn]
"""Lengths of so many requests: new part and answer. The first n are the first n of any more."""


class PrefixStructure:
    """What is before the new part of a prompt, and which prompts have it in common.

    It draws from streams of its own, whose names begin with "prefixes/", so that arrivals and lengths stay what they
    are without it. Its first n requests are the first n of its first m > n, with the same ids if it needs no arrivals.
    """

    needs_arrivals: ClassVar[bool] = False
    """It says when requests come, so a closed loop cannot have it; said by the class, or by an object in `__init__`."""
    makes_sessions: ClassVar[bool] = False
    """Its requests have a session_id."""

    def draw(
        self, arrival_s: NDArray[np.float64], duration_s: float | None, lengths: DrawLengths, stream: Stream
    ) -> Trace:
        """Requests with their whole prompts and their prefixes.

        As many as there are instants; or, of a structure that says when requests come, all before duration_s if that
        is given.
        """
        raise NotImplementedError


def prepended(arrival_s: NDArray[np.float64], drawn: Drawn, before: Ints, prefixes: Prefixes) -> Trace:
    """Requests whose prompts begin with so many tokens each, `(n,)`."""
    prompts = before + drawn.prompt_tokens
    return Trace(arrival_s, prompts, drawn.output_tokens, prefixes=prefixes, notes=drawn.notes)


def runs_of_two(block_tokens: int, system_tokens: int, own_first_ids: Ints, n_ids: Ints) -> Prefixes:
    """Chains that begin with the ids 0, 1, ... of one system prompt's whole blocks and go on with ids of their own.

    own_first_ids: the first id after those of the system prompt, n_ids: how many ids in all, `(n_requests,)` each.
    """
    n_system = np.minimum(n_ids, system_tokens // block_tokens)
    first_ids = np.stack([np.zeros_like(own_first_ids), own_first_ids], axis=1).reshape(-1)
    both = np.stack([n_system, n_ids - n_system], axis=1).reshape(-1)
    return Prefixes(block_tokens, first_ids, both, 2 * np.arange(len(n_ids) + 1))
