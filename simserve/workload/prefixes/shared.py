"""Shared system prompts: every prompt begins with one of a few texts."""

from typing import Annotated

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from simserve.tables.columns import Floats
from simserve.workload.amounts import picked, zipf_weights
from simserve.workload.lengths.base import STRICT, Tokens
from simserve.workload.prefixes.base import BlockTokens, DrawLengths, PrefixStructure, prefixed
from simserve.workload.streams import Stream
from simserve.workload.trace import Prefixes, Trace

MOST_PREFIXES = 10_000_000
Weight = Annotated[PositiveFloat, Field(allow_inf_nan=False)]


@dataclass(config=STRICT)
class Shared(PrefixStructure):
    """A prompt is one of n_prefixes system prompts, followed by a new part."""

    prefix_tokens: Tokens | Annotated[list[Tokens], Field(min_length=1)]
    """[tokens] Length of every system prompt, or a list with one length each (`vllm bench serve
    --random-prefix-len`)."""
    n_prefixes: Annotated[PositiveInt, Field(le=MOST_PREFIXES)] | None = None
    """Number of system prompts; null: the length of the lists, else one."""
    zipf_exponent: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Popularity of the i-th system prompt is `1 / i**zipf_exponent`; 0: uniform."""
    weights: Annotated[list[Weight], Field(min_length=1)] | None = None
    """Weight of each system prompt, instead of zipf_exponent; null: by zipf_exponent."""
    block_tokens: BlockTokens = 16
    """[tokens] Size of a shareable block; larger blocks run faster. The engine's may differ."""

    def __post_init__(self) -> None:
        lists = {"prefix_tokens": self.prefix_tokens, "weights": self.weights}
        sizes = {name: len(value) for name, value in lists.items() if isinstance(value, list)}
        if self.n_prefixes is not None:
            sizes["n_prefixes"] = self.n_prefixes
        if len(set(sizes.values())) > 1:
            got = " and ".join(f"{n} by {name}" for name, n in sizes.items())
            raise ValueError(f"must say the same number of prefixes everywhere, got {got}")
        if self.weights is not None and self.zipf_exponent:
            raise ValueError("is given by weights or by zipf_exponent, got both; leave one out")
        self._n = next(iter(sizes.values()), 1)

    def draw(self, arrival_s: Floats, duration_s: float | None, lengths: DrawLengths, stream: Stream) -> Trace:
        """Draw one system prompt per request, by weight."""
        weights = zipf_weights(self._n, self.zipf_exponent) if self.weights is None else np.array(self.weights)
        which = picked(weights, len(arrival_s), stream("prefixes/popularity"))
        tokens = np.broadcast_to(np.array(self.prefix_tokens), self._n)
        n_ids = tokens // self.block_tokens
        first_ids = np.cumsum(n_ids) - n_ids
        prefixes = Prefixes(self.block_tokens, first_ids[which], n_ids[which], np.arange(len(arrival_s) + 1))
        return prefixed(arrival_s, lengths(len(arrival_s)), tokens[which], prefixes)
