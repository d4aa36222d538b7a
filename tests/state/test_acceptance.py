"""Accepted proposals: at the given rates, from streams that nothing else affects."""

import math
from itertools import accumulate
from operator import mul
from random import Random

import numpy as np
import pytest

from simserve.scenario.proposals import SpeculationSetup
from simserve.state.acceptance import Acceptance, _mixed

GAMMA, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def mixed(state: int) -> int:
    """Return the SplitMix64 output for a state, one at a time."""
    state = (state + GAMMA) & MASK
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
    return state ^ state >> 31


def tokens(acceptance: Acceptance, row: int, n_tokens: int, first_step: int = 0) -> list[int]:
    """Return the tokens of each step until n_tokens are produced."""
    before = acceptance.tokens_before(row, first_step, n_tokens)
    each: list[int] = np.diff(before[: int(before.searchsorted(n_tokens)) + 1]).tolist()
    return each


@pytest.mark.parametrize(("rate", "k"), [(0.8, 4), (0.5, 2), (0.9, 8), (0.3, 1)])
def test_tokens_a_step_are_those_of_leviathan(rate: float, k: int) -> None:
    acceptance = Acceptance((rate,) * k, seed=3)
    theory = (1 - rate ** (k + 1)) / (1 - rate)  # Leviathan et al., ICML '23, equation 1
    assert SpeculationSetup("ngram", (rate,) * k, 0.0).tokens_per_step == pytest.approx(theory)
    each = np.array([n for row in range(200) for n in tokens(acceptance, row, 500)])
    assert each.mean() == pytest.approx(theory, abs=4 * each.std() / math.sqrt(len(each)))


def test_each_position_has_its_own_rate_given_those_before_it() -> None:
    acceptance = Acceptance((0.9, 0.5, 0.2))
    each = np.array([n for row in range(300) for n in tokens(acceptance, row, 300)])
    for position, rate in enumerate((0.9, 0.5, 0.2), 1):
        reached = each >= position
        share = (each[reached] > position).mean()
        assert share == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / reached.sum()))


def test_certainty_gives_all_or_one() -> None:
    assert tokens(Acceptance((1.0, 1.0)), 5, 9) == [3, 3, 3]
    assert tokens(Acceptance((0.0, 1.0)), 5, 3) == [1, 1, 1]
    assert tokens(Acceptance(()), 5, 3) == [1, 1, 1]


def test_a_stream_depends_on_seed_and_row_alone() -> None:
    asked_before = Acceptance((0.7,) * 3, seed=1)
    for row in (900, 3, 64, 65):
        asked_before.tokens_before(row, 0, 5000)
    fresh = Acceptance((0.7,) * 3, seed=1)
    assert tokens(asked_before, 65, 400) == tokens(fresh, 65, 400)
    assert tokens(fresh, 65, 400) != tokens(fresh, 66, 400)
    assert tokens(fresh, 65, 400) != tokens(Acceptance((0.7,) * 3, seed=2), 65, 400)


def test_who_was_preempted_goes_on_where_it_was() -> None:
    acceptance = Acceptance((0.7,) * 3, seed=1)
    whole = tokens(acceptance, 7, 300)
    assert tokens(acceptance, 7, 100, first_step=20) == whole[20 : 20 + len(tokens(acceptance, 7, 100, 20))]


def test_the_draws_are_those_of_splitmix64() -> None:
    first_two = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]  # from seed 0
    assert _mixed(np.array([0, GAMMA], np.uint64)).tolist() == first_two
    assert [mixed(0), mixed(GAMMA)] == first_two


@pytest.mark.parametrize("seed", range(12))
def test_tokens_before_each_step_are_those_of_single_draws(seed: int) -> None:
    rng = Random(seed)
    acceptance = Acceptance(tuple(rng.random() for _ in range(rng.randint(0, 3))), seed)
    if seed % 2:  # so it draws too few at first
        acceptance.__dict__["_mean_tokens"] = 40.0
    for _ in range(12):
        row, first = rng.randrange(3000), rng.choice([0, 0, rng.randint(1, 300)])
        n_tokens = rng.choice([rng.randint(1, 60), rng.randint(1, 900)])
        before = acceptance.tokens_before(row, first, n_tokens).tolist()
        expected = [0]
        while len(expected) < len(before):
            draw = mixed(mixed(mixed(seed) + row * GAMMA) + (first + len(expected) - 1) * GAMMA) / 2**64
            reached = list(accumulate(acceptance.rates, mul))
            expected.append(expected[-1] + 1 + sum(draw < share for share in reached))
        assert before == expected
        assert before[-1] >= n_tokens
    assert len(acceptance._groups) <= 32
