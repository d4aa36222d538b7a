"""Streams: one named source of chance a purpose, so that a change to one never moves another."""

from collections.abc import Callable
from zlib import crc32

import numpy as np

Stream = Callable[[str], np.random.Generator]
"""Purpose to a generator at its start; asking twice gives the same draws twice."""


def streams(seed: int) -> Stream:
    """The named streams of a seed: equal seeds and purposes give equal draws, in any process."""

    def stream(purpose: str) -> np.random.Generator:
        return np.random.default_rng([seed, crc32(purpose.encode())])

    return stream
