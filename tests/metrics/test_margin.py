"""The margin of r: an order statistic, with the noise of its sections and the error of its costs."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.metrics.cost_error import Pair, cost_error, server_errors
from simserve.metrics.decision import Decision, Effort
from simserve.metrics.goal import CAP, LOOKS
from simserve.metrics.margin import Margin, margin_of
from simserve.metrics.tails import MOST_KEPT, Sample, Tail, from_groups, in_groups, n_allowed, pooled, tails_of
from simserve.tables.columns import Categorical
from tests.effort import examples

GOAL = 0.99

FACTS = SimpleNamespace(slo={"ttft_s": 1.0}, slo_classes={})
"""All that tails need of the facts of a run."""


def tail(*ratios: Any, limits: tuple[str, ...] = ("ttft_s",)) -> Tail:
    """Return a tail with a column of ratios a limit."""
    columns = np.stack(ratios, axis=1)
    n_missed = int((columns > 1).any(axis=1).sum())
    return Tail(limits, len(columns), columns, np.arange(len(columns)), n_missed)


def sample(*ratios: Any, **changes: object) -> Sample:
    limits = ("ttft_s", "tpot_s")[: len(ratios)]
    return replace(Sample({None: tail(*ratios, limits=limits)}, 1000.0, "steady", 0.0), **changes)  # type: ignore[arg-type]


def runs(n_runs: int, r: float, spread: float = 0.05, n: int = 2000, seed: int = 0) -> list[Sample]:
    """Return runs with exponential ratios whose p99 is r, and differs from run to run."""
    rng = np.random.default_rng(seed)
    scale = r / math.log(100)
    return [sample(rng.exponential(scale * math.exp(spread * rng.normal()), n)) for _ in range(n_runs)]


@given(st.integers(1, 5000), st.sampled_from([0.5, 0.9, 0.99, 0.999]), st.integers(0, 2**32))
@settings(max_examples=examples(100))
def test_r_is_at_most_one_just_where_the_share_of_the_goal_meets_every_limit(n: int, goal: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = np.zeros(n), np.full(n, 0.5)
    n_missed = int(rng.integers(0, min(n, 2 * n_allowed(n, goal) + 2) + 1))
    missed = rng.permutation(n)[:n_missed]
    first[missed[::2]], second[missed[1::2]] = 1.0000001, np.inf
    both = tail(first, second, limits=("ttft_s", "tpot_s"))
    assert (both.r(goal) <= 1) == (n_missed / n <= 1 - goal + 1e-12)
    assert both.n_missed == n_missed


def test_exactly_the_goal_is_met_and_one_request_more_is_not() -> None:
    exact = np.concatenate([np.full(990, 1.0), np.full(10, 1.5)])
    assert tail(exact).r(GOAL) == 1.0
    exact[0] = 1.2
    assert tail(exact).r(GOAL) == 1.2


def test_what_never_came_counts_as_sixteen_times_its_limit() -> None:
    assert tail(np.full(50, np.inf)).r(GOAL) == CAP
    assert Decision([sample(np.full(5000, np.inf))], GOAL).word == "misses"


@given(st.integers(0, 2**32), st.floats(0.2, 5.0), st.floats(0.2, 5.0))
@settings(max_examples=examples(50))
def test_the_rows_that_may_decide_decide_whatever_factors_multiply_their_latencies(
    seed: int, wait: float, step: float
) -> None:
    rng = np.random.default_rng(seed)
    whole = tail(rng.exponential(1.0, 3000), rng.exponential(1.0, 3000), limits=("ttft_s", "tpot_s"))
    factors = {"ttft_s": wait, "tpot_s": step}
    assert whole.beyond(GOAL).r(GOAL, factors) == whole.r(GOAL, factors)
    assert len(whole.beyond(GOAL).ratios) <= 2 * 33


def test_runs_are_pooled_as_if_they_were_one() -> None:
    parts = runs(5, 0.8)
    together = pooled(parts)
    everything = np.concatenate([part.tails[None].ratios[:, 0] for part in parts])
    assert together.r(GOAL) == np.quantile(everything, GOAL, method="inverted_cdf")
    assert together.tails[None].n == 10_000
    assert [part.r(GOAL) for part in together.sections(5)] == [part.r(GOAL) for part in parts]


def test_more_runs_have_less_noise_and_the_same_cost_error() -> None:
    few, many = runs(8, 0.7), runs(32, 0.7)
    pairs = [
        Pair(run, sample(run.tails[None].ratios[:, 0] * f))
        for run, f in zip(few, np.linspace(0.8, 1.25, 8), strict=True)
    ]
    margins = [margin_of(each, GOAL, pairs, {"ttft_s": 0.2}) for each in (few, many)]
    assert margins[1].noise_sd < 0.7 * margins[0].noise_sd
    assert margins[0].cost_sd == margins[1].cost_sd > 0.1
    assert all(each.points.std() == pytest.approx(0.2, rel=0.05) for each in margins)


def test_the_error_of_costs_is_that_of_the_draws_without_the_noise_of_the_pairs() -> None:
    rng = np.random.default_rng(3)
    few = runs(400, 0.7, n=1000)
    shifts = 0.2 * rng.normal(size=400)
    noisy = [
        Pair(run, sample(run.tails[None].ratios[:, 0] * np.exp(shift + 0.5 * rng.normal(size=1000))))
        for run, shift in zip(few, shifts, strict=True)
    ]
    assert cost_error(noisy, GOAL)[0] == pytest.approx(0.2, rel=0.2)
    raw = np.std([math.log(pair.drawn.r(GOAL) / pair.nominal.r(GOAL)) for pair in noisy])
    assert raw > 0.21  # with that noise


def test_a_saturated_draw_has_no_ratio() -> None:
    few = runs(8, 0.7)
    same = [Pair(run, run) for run in few]
    one = replace(same[0], drawn=replace(same[0].nominal, queue="growing"))
    late = replace(same[1], drawn=sample(np.full(2000, np.inf)))
    assert cost_error([one, late, *same[2:]], GOAL) == (0.0, 5)


def test_errors_of_servers_move_their_own_limit_alone() -> None:
    rng = np.random.default_rng(5)
    waits, steps = rng.exponential(0.15, 5000), rng.exponential(0.02, 5000)
    both = sample(waits, steps)
    assert server_errors(both, GOAL, {"ttft_s": 0.3}).std() == pytest.approx(0.3, rel=0.05)
    assert server_errors(both, GOAL, {"tpot_s": 0.3}).std() == 0.0
    assert server_errors(both, GOAL, {}).tolist() == [0.0]


def test_a_margin_without_any_error_is_sure() -> None:
    assert Margin(math.log(0.9), 0.0, 7).probability() == 1.0
    assert Margin(math.log(1.1), 0.0, 7).probability() == 0.0
    assert Margin(0.0, 0.0, 7).probability() == 1.0  # exactly met
    assert list(Margin(math.log(0.9), 0.0, 7).interval(0.95)) == pytest.approx([0.9, 0.9])


def test_the_interval_is_that_of_its_probability() -> None:
    points = np.quantile(np.random.default_rng(1).normal(0.0, 0.3, 10_000), (np.arange(101) + 0.5) / 101)
    for each in (Margin(-0.3, 0.1, 7), Margin(-0.3, 0.1, 7, 0.2, 6, points)):
        low, high = each.interval(0.95)
        assert each.probability(math.log(low)) == pytest.approx(0.025, abs=1e-3)
        assert each.probability(math.log(high)) == pytest.approx(0.975, abs=1e-3)


@pytest.mark.parametrize("r", [0.3, 0.6, 0.85])
def test_no_miss_in_ten_seeds_well_below_the_limit_is_never_an_edge_by_noise(r: float) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        ten = [sample(rng.uniform(0.0, r, 1000)) for _ in range(10)]
        assert Decision(ten, GOAL).word == "meets"


def test_more_load_is_never_a_better_word() -> None:
    order = ["meets", "likely_meets", "edge", "likely_misses", "misses"]
    words = [Decision(runs(8, r, seed=1), GOAL).word for r in np.linspace(0.5, 1.6, 45)]
    assert [order.index(word) for word in words] == sorted(order.index(word) for word in words)
    assert set(words) == set(order)  # each word can be said


def test_the_class_with_the_least_margin_decides_and_is_named() -> None:
    rng = np.random.default_rng(2)
    each = [
        Sample({"chat": tail(rng.uniform(0, 0.5, 2000)), "batch": tail(rng.uniform(0, 0.9, 500))}, 900.0, "steady", 0.0)
        for _ in range(8)
    ]
    facts = Decision(each, GOAL).facts()
    assert (facts.slo_class, facts.word) == ("batch", "meets")
    assert facts.r == pytest.approx(0.9, abs=0.02)
    assert facts.n_requests == 4000


def test_a_long_run_is_divided_and_a_short_one_has_the_error_of_its_effective_size() -> None:
    rng = np.random.default_rng(4)
    long = sample(rng.exponential(0.6 / math.log(100), 60_000), n_effective=5000.0)
    assert Decision([long], GOAL).word == "meets"
    assert Decision([long], GOAL).margin.n_free == 19
    short = sample(rng.exponential(0.7 / math.log(100), 300), n_effective=15.0)
    alone = Decision([short], GOAL)
    assert alone.word != "meets" and alone.edge_by == "load"


def test_what_decides_is_named() -> None:
    few = runs(LOOKS[0], 0.7)
    assert Decision(few, GOAL).edge_by is None
    costly = Decision(few, GOAL, server_sd={"ttft_s": 0.7})
    assert (costly.word, costly.edge_by) == ("edge", "cost")
    assert Decision(runs(8, 1.0, spread=0.2), GOAL).edge_by == "noise"
    one_bad = [*runs(7, 0.2), sample(np.random.default_rng(0).exponential(0.6, 2000))]
    assert Decision(one_bad, GOAL).edge_by == "load"


def test_a_queue_that_grows_or_may_grow_bounds_the_probability() -> None:
    few = runs(8, 0.5)
    assert Decision([replace(run, queue="growing") for run in few], GOAL).word == "saturated"
    beyond = Decision(few, GOAL, beyond_frac=0.4)
    assert (beyond.word, beyond.edge_by, beyond.probability) == ("edge", "cost", 0.6)
    at_capacity = Decision([replace(run, queue="critical") for run in few], GOAL)
    assert (at_capacity.word, at_capacity.edge_by) == ("edge", "load")


def test_the_break_even_is_the_factor_at_which_the_slo_is_just_met() -> None:
    facts = Decision(runs(8, 0.5), GOAL).facts()
    assert facts.break_even is not None and facts.r is not None
    assert facts.break_even == pytest.approx(1 / facts.r, rel=1e-3)
    never = Decision([sample(np.full(3000, 0.1), np.full(3000, 1.2))], GOAL).facts()
    assert never.first_limit == "tpot_s"
    assert never.break_even == pytest.approx(1 / 1.2, rel=1e-3)


def test_confidence_moves_the_outer_words() -> None:
    few = runs(8, 0.8)
    by_cost = {"ttft_s": 0.15}
    assert Decision(few, GOAL, server_sd=by_cost).word == "likely_meets"
    assert Decision(few, GOAL, server_sd=by_cost, confidence=0.85).word == "meets"


@given(st.integers(1, 3000), st.integers(0, 2**32), st.sampled_from([0.5, 0.9, 0.99]))
@settings(max_examples=examples(50), deadline=None)
def test_groups_say_of_runs_what_their_requests_say(n: int, seed: int, goal: float) -> None:
    rng = np.random.default_rng(seed)
    whole = [tail(rng.exponential(0.3, n)) for _ in range(3)]
    groups = [in_groups(None, each) for each in whole]
    again = [from_groups(each.counts, each.r) for each in groups]
    assert [(each.n, each.n_missed) for each in again] == [(each.n, each.n_missed) for each in whole]
    one, other = (pooled([Sample({None: each}, 9.0, "steady", 0.0) for each in some]) for some in (whole, again))
    assert other.r(goal) == pytest.approx(one.r(goal), rel=0.03, abs=1e-5)
    assert (other.r(goal) <= 1) == (one.r(goal) <= 1)


@pytest.mark.parametrize("limit_s", [1e-60, 5e-324])
def test_a_limit_below_the_tick_of_the_clock_is_missed_by_a_number(limit_s: float) -> None:
    columns: dict[str, object] = {"in_window": np.ones(2, np.bool_), "ttft_s": np.array([0.5, 7e6]), "slo_class": None}
    columns["status"] = Categorical(np.zeros(2, np.int32), ("finished",))
    (tail,) = tails_of(columns, SimpleNamespace(slo={"ttft_s": limit_s}, slo_classes={}), None).values()  # type: ignore[arg-type]
    assert tail.ratios[:, 0].tolist() == pytest.approx([5e11, 7e18])


def test_a_long_run_keeps_its_highest_ratios_and_counts_all_requests() -> None:
    n = 3 * MOST_KEPT
    r = np.random.default_rng(6).exponential(0.2, n)
    columns: dict[str, object] = {"in_window": np.ones(n, np.bool_), "ttft_s": r, "slo_class": None}
    columns["status"] = Categorical(np.zeros(n, np.int32), ("finished",))
    (kept,) = tails_of(columns, FACTS, None).values()  # type: ignore[arg-type]
    assert (kept.n, len(kept.ratios) < n / 2) == (n, True)
    counts, values = in_groups(None, kept).counts, in_groups(None, kept).r
    assert from_groups(counts, values).r(0.5) == pytest.approx(np.quantile(r, 0.5), rel=0.03)
    for goal in (0.9, 0.99, 0.999):
        assert kept.r(goal) == pytest.approx(np.quantile(r, goal, method="inverted_cdf"))
        halves = [np.quantile(half, goal, method="inverted_cdf") for half in np.array_split(r, 2)]
        assert [half.r(goal) for half in kept.sections(2)] == pytest.approx(halves)
    assert sum(in_groups(None, kept).counts) == n


@pytest.mark.parametrize("p90", [0.30, 0.44, 0.45, 0.6])
def test_a_tail_heavier_than_exponential_is_never_sure_beyond_its_sample(p90: float) -> None:
    values = np.concatenate([np.full(2000 - 240, 0.1), np.full(200, p90), np.full(40, 0.88)])
    decision = Decision([sample(np.random.default_rng(0).permutation(values), n_effective=70.0)], GOAL)
    assert decision.margin.noise_sd > 0.1
    assert decision.word != "meets" or 2 * p90 > 0.88


@pytest.mark.parametrize("n", [1, 10, 20])
def test_one_miss_of_a_few_requests_decides_nothing(n: int) -> None:
    values = np.full(n, 0.6)
    values[0] = 1.05
    assert Decision([sample(values, n_effective=float(n))], GOAL).word in ("edge", "likely_misses", "likely_meets")


@pytest.mark.parametrize(("n", "attained_frac"), [(8, 0.9), (40, 0.95)])
def test_a_few_requests_seldom_meet_by_chance(n: int, attained_frac: float) -> None:
    """Eight requests, of which 90% truly meet the SLO, cannot say that 99% do."""
    rng, scale = np.random.default_rng(7), 1.3 / math.log(100)
    limit = scale * -math.log(1 - attained_frac)
    words = [Decision([sample(rng.exponential(scale, n) / limit, n_effective=float(n))], GOAL).word for _ in range(200)]
    assert words.count("meets") <= 4


def test_a_goal_above_99_is_not_bounded_as_if_it_were_99() -> None:
    rng = np.random.default_rng(8)
    scale = 1.2 / math.log(10_000)
    words = [Decision([sample(rng.exponential(scale, 500), n_effective=500.0)], 0.9999).word for _ in range(100)]
    assert words.count("meets") <= 3


@pytest.mark.parametrize("r", [0.7, 1.2])
def test_a_single_run_and_its_groups_have_one_word(r: float) -> None:
    rng = np.random.default_rng(9)
    run = sample(rng.exponential(r / math.log(100), 10_000), n_effective=5000.0)
    groups = in_groups(None, run.tails[None])
    again = replace(run, tails={None: from_groups(groups.counts, groups.r)}, is_ordered=False)
    assert Decision([again], GOAL).word == Decision([run], GOAL).word in ("meets", "misses")


def test_two_draws_know_little_of_the_error_of_costs() -> None:
    few = runs(8, 0.7)
    pairs = [Pair(run, sample(run.tails[None].ratios[:, 0] * by)) for run, by in zip(few, (1.9, 0.6), strict=False)]
    decision = Decision(few, GOAL, pairs)
    assert decision.margin.cost_sd > 0.5
    assert decision.word != "meets"


def test_what_is_corrected_for_the_load_is_corrected_everywhere() -> None:
    rng = np.random.default_rng(10)
    offs = rng.normal(0.08, 0.05, 32)
    many = [replace(sample(rng.exponential(0.8 * math.exp(3 * x) / math.log(100), 4000)), off_frac=x) for x in offs]
    facts = Decision(many, GOAL).facts()
    assert facts.r is not None and facts.break_even is not None
    assert facts.r < pooled(many).r(GOAL)
    assert max(facts.r_by_limit.values()) == pytest.approx(facts.r)
    assert facts.break_even == pytest.approx(1 / facts.r, rel=1e-3)


@pytest.mark.parametrize("beyond_frac", [None, 0.0, 0.02, 0.6])
def test_a_queue_at_capacity_never_meets(beyond_frac: float | None) -> None:
    at_capacity = [replace(run, queue="critical") for run in runs(8, 0.5)]
    assert Decision(at_capacity, GOAL, beyond_frac=beyond_frac).word in ("edge", "likely_misses")


@pytest.mark.parametrize("most_runs", [8, 16, 32, 1024])
def test_a_decision_is_looked_at_three_times_at_most(most_runs: int) -> None:
    looks = Effort(most_runs).looks()
    assert (looks[0], looks[-1], len(looks) <= 3) == (8, most_runs, True)
    assert Effort().looks() == list(LOOKS)
