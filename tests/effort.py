"""How much the tests try: a tenth of the random cases by default, all of them under --thorough, or a slice of these."""

import math
import zlib
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, settings

FULL_EXAMPLES = 100
"""What hypothesis itself tries where a test names no number."""
QUICK_FRAC = 0.1
N_SLICES = 10
"""Parts, as many as .ci/run counts, of the tests that try more under --thorough."""

proved: Counter[str] = Counter()
"""What the running test has held so far, by law; conftest.py empties it before each test."""


def set_effort(is_thorough: bool) -> None:
    """Choose how many examples run. No deadline, as machines are shared, and drawing whole clusters is slow."""
    settings.register_profile(
        "simserve",
        max_examples=FULL_EXAMPLES if is_thorough else int(FULL_EXAMPLES * QUICK_FRAC),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("simserve")


def is_thorough() -> bool:
    """Return whether the tests were started with --thorough."""
    return settings().max_examples == FULL_EXAMPLES


def examples(n: int) -> int:
    """Return how many of n random examples run now."""
    return n if is_thorough() else max(5, int(n * QUICK_FRAC))


def runs(n: int, quick: int) -> int:
    """Return how many runs a statistical test makes: n, or the quick number, for which its bounds hold too."""
    return n if is_thorough() else quick


def wider(n: int, full: int) -> float:
    """Return how much wider a statistical bound is for n draws than for the full number: by the root of the ratio."""
    return math.sqrt(full / n)


def tries_more(test: pytest.Item) -> bool:
    """Return whether --thorough tries more of a test: it is marked so, draws cases, or its module asks how many."""
    module = getattr(test, "module", None)
    asks = any(getattr(module, each.__name__, None) is each for each in (is_thorough, examples, runs))
    return asks or test.get_closest_marker("thorough") is not None or hasattr(getattr(test, "obj", None), "hypothesis")


def in_slice(place: int, tests: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the tests of a slice. A test's own name says in which one it is, so that other tests do not move it."""
    return [test for test in tests if tries_more(test) and zlib.crc32(test.nodeid.encode()) % N_SLICES + 1 == place]
