"""Documents: prompts begin with a text of a corpus, and some texts are asked about again and again."""

from typing import Annotated

import numpy as np
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from simserve.tables.columns import Floats
from simserve.workload.amounts import Whole, picked, whole_numbers, zipf_weights
from simserve.workload.lengths.base import STRICT
from simserve.workload.prefixes.base import BlockTokens, DrawLengths, PrefixStructure, SomeTokens, prefixed, runs_of_two
from simserve.workload.streams import Stream
from simserve.workload.trace import Trace

MOST_DOCUMENTS = 10_000_000


@dataclass(config=STRICT)
class Documents(PrefixStructure):
    """A prompt is a document of a corpus, followed by a new part, the question."""

    n_documents: Annotated[PositiveInt, Field(le=MOST_DOCUMENTS)]
    """Documents of the corpus."""
    document_tokens: Whole
    """[tokens] Length of a document: a number, [least, most], or lognormal {median, sigma, max}."""
    zipf_exponent: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Popularity of the i-th document is `1 / i**zipf_exponent`; 0: uniform."""
    system_tokens: SomeTokens = 0
    """[tokens] Length of a system prompt before every document."""
    block_tokens: BlockTokens = 16
    """[tokens] Size of a shareable block; larger blocks run faster. The engine's may differ."""

    def draw(self, arrival_s: Floats, duration_s: float | None, lengths: DrawLengths, stream: Stream) -> Trace:
        """Draw one document per request; its length is drawn once, with the corpus."""
        weights = zipf_weights(self.n_documents, self.zipf_exponent)
        which = picked(weights, len(arrival_s), stream("prefixes/popularity"))
        drawn = whole_numbers(self.document_tokens, self.n_documents, stream("prefixes/document_tokens"))
        tokens = self.system_tokens + drawn
        n_ids = tokens // self.block_tokens
        n_system = self.system_tokens // self.block_tokens
        own_first_ids = n_system + np.cumsum(n_ids - n_system) - (n_ids - n_system)
        prefixes = runs_of_two(self.block_tokens, self.system_tokens, own_first_ids[which], n_ids[which])
        return prefixed(arrival_s, lengths(len(arrival_s)), tokens[which], prefixes)
