"""Streams: one named random stream per purpose, so that a change to one never affects another."""

from collections.abc import Callable
from zlib import crc32

import numpy as np

Stream = Callable[[str], np.random.Generator]
"""Maps a purpose to a fresh generator; two calls give the same draws."""


def streams(seed: int) -> Stream:
    """Return the named streams of a seed: equal seeds and purposes give equal draws, in any process."""

    def stream(purpose: str) -> np.random.Generator:
        return np.random.default_rng([seed, crc32(purpose.encode())])

    return stream
