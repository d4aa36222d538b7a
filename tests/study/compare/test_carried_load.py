"""Which of two scenarios carries more load, on servers whose p99 goodput is known."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve import Scenario, load_scenario, simulate
from simserve.errors import NoArrivals
from simserve.metrics.answers.comparison import LoadDecision
from simserve.metrics.decision import DEFAULT_EFFORT, Effort
from simserve.metrics.tails import Sample, Tail
from simserve.study.check import side as side_module
from simserve.study.compare import carried_load as module
from simserve.study.compare.carried_load import SideCosts, carried_load, why_not
from simserve.study.fleet import at_scale
from simserve.study.run_seeds import Run
from simserve.study.uncertainty import run_with_replays
from tests.cli.scenarios import write_scenario
from tests.summaries import summary_of

RATE_PER_S = 8.0
"""The rate of both scenarios, of which capacities are multiples."""

N_ARRIVED = 2_000
LOOP = {
    "client": {"kind": "closed_loop", "concurrency": 4},
    "n_requests": 40,
    "lengths": {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8},
}


class Servers:
    """A stand-in for simulations: each server misses 1% at its capacity, and each seed is as hard for both."""

    def __init__(self, noise: float = 0.0, **capacities: float) -> None:
        self.capacities = capacities
        self.noise = noise

    def each_run(self, _: object, scenarios: Sequence[Scenario], seeds: Sequence[int]) -> list[list[Run]]:
        return [[self.run(each, seed) for seed in seeds] for each in scenarios]

    def run(self, scenario: Scenario, seed: int) -> Run:
        assert scenario.workload.arrivals is not None
        rate = scenario.workload.arrivals["rate_per_s"]
        capacity = RATE_PER_S * self.capacities[scenario.name]
        own = np.random.default_rng([seed, len(scenario.name)]).normal(0, self.noise)  # of each side
        shared = np.random.default_rng(seed).normal(0, 0.5)
        odds = np.exp(17 * np.log(rate / capacity) + shared + own) / 99
        met = N_ARRIVED - min(N_ARRIVED, round(N_ARRIVED * odds / (1 + odds)))
        summary = {
            "slo_attainment": {
                "n_met": met,
                "n_arrived": N_ARRIVED,
                "by_slo": {"ttft_s": 1.0, "tpot_s": met / N_ARRIVED},
            },
            "offered_per_s": rate,
            "requests": {"arrived": N_ARRIVED, "finished": N_ARRIVED},
            "trust": {"saturated": False},
        }
        ratios = np.ones((N_ARRIVED, 2)) * [0.5, 0.9]
        ratios[met:, 1] = 2.0
        tail = Tail(("ttft_s", "tpot_s"), N_ARRIVED, ratios, np.arange(N_ARRIVED), N_ARRIVED - met)
        return Run(summary_of(summary), Sample({None: tail}, float(N_ARRIVED), "steady", 0.0))


def decided(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    servers: Servers,
    n_seeds: int = 32,
    effort: Effort = DEFAULT_EFFORT,
    **of_b: Any,
) -> LoadDecision:
    monkeypatch.setattr(side_module, "each_run", servers.each_run)
    a = load_scenario(write_scenario(folder, name="a"))
    b = load_scenario(write_scenario(folder, name="bb", **of_b))
    result = carried_load(a, b, n_seeds, effort)
    assert isinstance(result, LoadDecision)
    return result


def ends(decision: LoadDecision) -> tuple[float, float]:
    """Return the interval of a decision that has one."""
    assert decision.low_frac is not None and decision.high_frac is not None
    return decision.low_frac, decision.high_frac


@pytest.mark.parametrize("more", [-0.6, -0.08, 0.08, 1.5])
def test_the_side_with_the_higher_p99_goodput_is_found_near_and_far(
    more: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = decided(tmp_path, monkeypatch, Servers(0.1, a=1.3, bb=1.3 * (1 + more)))
    assert result.outcome == ("better" if more > 0 else "worse")
    assert result.more_frac == pytest.approx(more, abs=0.02)
    low, high = ends(result)
    assert low <= more <= high
    assert result.a.goodput_per_s == pytest.approx(1.3 * RATE_PER_S, rel=0.05)
    assert result.more_frac is not None and result.a.goodput_per_s is not None
    assert result.b.goodput_per_s == pytest.approx(result.a.goodput_per_s * (1 + result.more_frac))
    assert (result.a.fails_first, result.n_seeds) == ("tpot_s", 32)


def test_the_same_server_is_no_change_and_a_like_one_is_tied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = decided(tmp_path, monkeypatch, Servers(a=0.9, bb=0.9))
    assert (same.outcome, same.more_frac, ends(same)) == ("same", 0.0, (0.0, 0.0))
    tied = decided(tmp_path, monkeypatch, Servers(0.3, a=0.9, bb=0.9))
    assert tied.outcome == "unclear"
    low, high = ends(tied)
    assert low < 0 < high


def test_rates_of_their_own_do_not_count_as_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B asks for three times the rate of the same server."""
    workload = {"arrivals": {"kind": "poisson", "rate_per_s": 3 * RATE_PER_S}, "n_requests": 40}
    lengths = {"lengths": {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8}}
    result = decided(tmp_path, monkeypatch, Servers(a=1.0, bb=1.0), workload=workload | lengths)
    assert result.more_frac == pytest.approx(0.0, abs=0.001)
    assert result.a.goodput_per_s == pytest.approx(result.b.goodput_per_s, rel=1e-3)


@pytest.mark.parametrize(
    ("a", "b", "outcome", "holds"),
    [
        (1e-4, 1.0, "better", (False, None)),
        (1.0, 1e-4, "worse", (None, False)),
        (1.0, 1e4, "better", (None, True)),
        (1e4, 1e-4, "worse", (True, False)),
        (1e-4, 1e-4, "unclear", (False, False)),
        (1e4, 1e4, "unclear", (True, True)),
    ],
)
def test_a_side_that_never_or_always_meets_the_slo_decides(
    a: float, b: float, outcome: str, holds: tuple[bool | None, bool | None], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    result = decided(tmp_path, monkeypatch, Servers(a=a, bb=b))
    assert (result.outcome, (result.a.holds_every_load, result.b.holds_every_load)) == (outcome, holds)
    assert (result.more_frac, result.low_frac, result.high_frac) == (None, None, None)


def test_a_load_without_randomness_has_a_difference_but_no_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = decided(tmp_path, monkeypatch, Servers(a=1.0, bb=1.2), n_seeds=1)
    assert (result.outcome, result.low_frac, result.high_frac, result.n_seeds) == ("unclear", None, None, 1)
    assert result.more_frac == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(("cost_sd", "outcome", "edge_by"), [(0.01, "better", None), (0.2, "unclear", "cost")])
def test_a_side_that_carries_more_by_noise_is_tied_where_cost_error_leaves_that_unsure(
    cost_sd: float, outcome: str, edge_by: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SideCosts, "of", lambda *_: True)
    monkeypatch.setattr(module, "with_costs", lambda noise, *_: replace(noise, cost_sd=cost_sd, n_cost_free=7))
    result = decided(tmp_path, monkeypatch, Servers(0.1, a=1.0, bb=1.2))
    assert (result.outcome, result.edge_by) == (outcome, edge_by)
    assert result.total is not None and result.probability is not None
    low, high = (end or 0.0 for end in result.total)
    assert low < ends(result)[0] < 0.2 < ends(result)[1] < high
    assert (low > 0) == (result.probability > 0.975) == (outcome == "better")


@pytest.mark.parametrize(
    ("effort", "outcome"),
    [(Effort(), "unclear"), (Effort(confidence=0.76), "better"), (Effort(by="noise"), "better")],
)
def test_by_noise_costs_count_as_exact_and_a_lower_confidence_leaves_less_unsure(
    effort: Effort, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SideCosts, "of", lambda *_: True)
    monkeypatch.setattr(module, "with_costs", lambda noise, *_: replace(noise, cost_sd=0.13, n_cost_free=7))
    result = decided(tmp_path, monkeypatch, Servers(0.1, a=1.0, bb=1.2), effort=effort)
    assert (result.outcome, result.edge_by) == (outcome, "cost" if outcome == "unclear" else None)
    assert (result.total is None) == (effort.by == "noise")


def test_draws_of_costs_run_on_both_sides_and_cancel_between_fleets_of_one_server(tmp_path: Path) -> None:
    load = (
        "workload.arrivals.rate_per_s=400",
        "workload.n_requests=1000",
        "measure.replays=8",
        "slo={ttft_s: 0.05, tpot_s: 0.012}",
    )
    one = load_scenario(write_scenario(tmp_path), overrides=load)
    result = carried_load(
        one, load_scenario(tmp_path / "tiny.yaml", overrides=(*load, "cluster.pools.0.replicas=2")), 8
    )
    assert isinstance(result, LoadDecision)
    assert result.outcome == "better" and result.total is not None and result.more_frac is not None
    low, high = (end or 0.0 for end in result.total)
    assert 0.5 < low < ends(result)[0] < result.more_frac < ends(result)[1] < high < 2.0


def test_what_has_no_load_to_decide_by_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario(write_scenario(tmp_path))
    assert why_not(scenario, scenario) is None
    assert why_not(scenario, load_scenario(write_scenario(tmp_path, slo={}))) == module.NO_SLO
    assert why_not(load_scenario(write_scenario(tmp_path, workload=LOOP)), scenario) == module.NO_RATE

    def none(*_: object) -> list[list[Run]]:
        raise NoArrivals("workload.arrivals: got none")

    monkeypatch.setattr(side_module, "each_run", none)
    assert carried_load(scenario, scenario, 32) == module.NO_ARRIVALS


@pytest.mark.parametrize(("ttft_s", "tpot_s", "limit"), [(0.5, 0.009, "tpot_s"), (0.3, 0.012, "ttft_s")])
def test_the_limit_that_fails_first_is_the_one_that_a_run_names_at_that_load(
    ttft_s: float, tpot_s: float, limit: str, tmp_path: Path
) -> None:
    """As many miss TTFT as TPOT in the first case, four long prompts each, but the p99 of TPOT is nearer its limit."""
    rows = (f"{n / 10},{16_000 if n % 150 == 70 else 100},40\n" for n in range(600))
    (tmp_path / "mine.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{''.join(rows)}")
    trace, slo = {"path": "mine.csv", "format": "simserve"}, {"ttft_s": ttft_s, "tpot_s": tpot_s}
    scenario = load_scenario(write_scenario(tmp_path, workload={"trace": trace}, slo=slo))
    decision = carried_load(scenario, scenario, 1)
    assert isinstance(decision, LoadDecision)
    assert decision.a.last_per_s is not None
    scale = decision.a.last_per_s / simulate(scenario).summary["offered_per_s"]
    run = run_with_replays(at_scale(scenario, scale)).summary["decision"]
    assert decision.a.fails_first == decision.b.fails_first == run["first_limit"] == limit
