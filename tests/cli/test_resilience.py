"""`simserve resilience`: what failures cost, how many spares hold the goal, and what goes wrong."""

import json
import re
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simserve
from simserve.metrics.error_budget import MONTH_S, ErrorBudget, Threat, down_shares
from simserve.study.failures import threats_of
from simserve.tables.folder import RESILIENCE
from tests.cli.invoke import Outcome, invoke

START = {"provision_s": 20, "process_s": 2, "compile_s": 1, "ready_probe_s": 1, "weights": {"from": "host_memory"}}
DETECT_S = 2.0


def fleet(replicas: int, failures: Any, rate_per_s: float = 200, duration_s: float = 20, **pool: Any) -> dict[str, Any]:
    """Return a pool of which each replica serves more than 150 requests a second within the SLO, and less than 200."""
    return {
        "schema": "simserve/1",
        "name": "spared",
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "cluster": {
            "router": "least_outstanding",
            "pools": [{"name": "serve", "replicas": replicas, "startup": {**START}, **pool}],
            "failures": failures,
        },
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": rate_per_s},
            "lengths": {"kind": "uniform", "prompt_tokens": [100, 300], "output_tokens": [20, 40]},
            "duration_s": duration_s,
        },
        "slo": {"ttft_s": 0.3, "tpot_s": 0.02},
    }


def processes(mtbf_s: float) -> list[dict[str, Any]]:
    """Return failures of processes."""
    return [{"what": "process", "mtbf_s": mtbf_s, "detect_s": DETECT_S}]


def resilience(folder: Path, scenario: dict[str, Any], *arguments: object) -> Outcome:
    path = folder / "spared.json"
    path.write_text(json.dumps(scenario))
    return invoke("resilience", path, "--out", folder / "out", "--replications", 2, *arguments)


def test_one_replica_that_cannot_serve_the_load_needs_a_spare_that_serves(tmp_path: Path) -> None:
    outcome = resilience(tmp_path, fleet(1, processes(1e6)), "--spare", "0..1", "--json")
    answer = json.loads(outcome.out)
    assert outcome.exit_code == 0, outcome.err
    none, active, warm, cold, moved = answer["options"]
    assert [each["kind"] for each in answer["options"]] == ["none", "active", "warm", "cold", "active"]
    assert [each["migrate"] for each in answer["options"]] == [*["none"] * 4, "recompute"]
    assert moved["spare"] == 1 and moved["state_minutes"] == active["state_minutes"]
    assert [each["minutes"] for each in (none, warm, cold)] == pytest.approx([43_200] * 3)
    assert not none["holds"] and active["holds"] and answer["best"] == 1
    assert active["usd_per_hour"] == pytest.approx(4)
    assert answer["n_runs"] == 2 * 2 + 2 + 2
    transient, saved = answer["transients"]
    assert (transient["migrate"], saved["migrate"]) == ("none", "recompute")
    assert saved["lost"]["value"] < transient["lost"]["value"] and saved["missed"] != transient["missed"]
    assert transient["replicas"] == 2 and transient["missed"]["value"] > transient["lost"]["value"] > 0
    assert answer["budget_minutes"] == pytest.approx(432)
    back_s = transient["repair_s"]
    assert back_s == pytest.approx(DETECT_S + 4 + 16.06e9 / 2e10, abs=0.01)
    below = [each["time_frac"] for each in active["states"] if each["is_below"]]
    assert sum(below) == pytest.approx(1 - 1 / (1 + back_s / 1e6) ** 2, rel=1e-5)
    assert active["state_minutes"] == pytest.approx(43_200 * sum(below), rel=1e-5)
    assert active["margin"] > 10


def test_the_fewest_spares_are_told_a_no_is_exit_code_1_and_a_study_resumes(tmp_path: Path) -> None:
    first = resilience(tmp_path, fleet(2, processes(2e4)), "--spare", "0..1", "--goal", "0.999")
    assert first.exit_code == 1
    assert first.out.startswith("No spares hold the error budget: With ")
    assert "14 runs." in first.out
    assert re.search(r" a month\. With migrate: recompute these are [\d.]+\.", first.out.replace("\n", " "))
    assert re.search(r"\n  \S.* spares?, migrate: recompute ", first.out)
    assert {file.name for file in (tmp_path / "out").iterdir()} == RESILIENCE.files
    before = (tmp_path / "out" / "resilience.jsonl").read_bytes()
    again = resilience(tmp_path, fleet(2, processes(2e4)), "--spare", "0..1", "--goal", "0.999")
    assert again.out == first.out and (tmp_path / "out" / "resilience.jsonl").read_bytes() == before
    answer = json.loads((tmp_path / "out" / "resilience.json").read_text())
    alone, three, warm, moved = answer["transients"]  # with spares, as they may feel a failure less
    assert [(each["replicas"], each["warm"]) for each in (alone, three, warm)] == [(2, 0), (3, 0), (2, 1)]
    assert alone["missed"]["value"] > warm["missed"]["value"] > three["missed"]["value"]
    assert warm["repair_s"] == DETECT_S
    chosen = min(answer["options"][:-1], key=lambda each: each["minutes"])
    last = answer["options"][-1]
    assert [last[key] for key in ("spare", "kind")] == [chosen[key] for key in ("spare", "kind")]
    assert moved["migrate"] == last["migrate"] == "recompute"


def test_where_requests_migrate_they_are_compared_with_those_that_do_not() -> None:
    scenario = fleet(2, processes(2e4))
    scenario["cluster"]["on_failure"] = {"migrate": "recompute"}
    answer = simserve.resilience(scenario, spare=0, replications=2)
    assert [each.migrate for each in answer.options] == ["recompute", "none"]
    other = simserve.resilience(fleet(2, processes(2e4)), spare=0, replications=2)
    for ours, theirs in zip(answer.options, reversed(other.options), strict=True):
        assert ours.facts() == theirs.facts() | {"margin": ours.margin}


def test_where_clients_have_no_tokens_before_the_answer_nothing_migrates() -> None:
    answer = simserve.resilience(fleet(2, processes(2e4), scheduler={"kind": "static", "batch_size": 8}), spare=0,
                                 replications=2)  # fmt: skip
    assert [each.migrate for each in answer.options] == ["none"]
    gray = simserve.resilience(fleet(2, slow(mtbf_s=2e4, for_s=4)), spare=0, replications=2)
    assert [each.migrate for each in gray.options] == ["none"]


def test_python_gives_the_same_answer(tmp_path: Path) -> None:
    scenario = fleet(2, None, rate_per_s=100, duration_s=10)
    outcome = resilience(tmp_path, scenario, "--spare", 0, "--what", "process,node", "--json")
    answer = simserve.resilience(scenario, spare=0, kinds=["process", "node"], replications=2)
    assert answer.facts() == json.loads(outcome.out)
    assert "No spares needed" in repr(answer) and len(answer.to_frame()) == 2
    assert [each.what for each in answer.transients] == ["process", "node"] * 2
    assert [each.n_lost for each in answer.transients] == [1, 2] * 2  # both are on one node
    assert "Llama 3" in answer.transients[1].source
    assert [each.replicas for each in answer.fleets] == [1, 2]
    assert any("transients are cut short" in warning for warning in answer.warnings)


def test_a_pool_with_an_autoscaler_compares_warm_spares_by_transients_alone(tmp_path: Path) -> None:
    policy = {"kind": "schedule", "steps": [{"at_s": 5, "replicas": 2}]}
    outcome = resilience(tmp_path, fleet(1, processes(4e4), 50, autoscaler=policy), "--spare", "0..1")
    answer = json.loads((tmp_path / "out" / "resilience.json").read_text())
    assert answer["is_scaled"] and answer["n_runs"] == 2 + 2 + 2
    none, warm, moved = answer["options"]
    assert [each["kind"] for each in (none, warm)] == ["none", "warm"] and moved["migrate"] == "recompute"
    bare, _ = answer["transients"]
    for option in (none, warm):  # the autoscaler replaces it in the run: no time with fewer replicas is added
        assert [(each["serving"], each["time_frac"]) for each in option["states"]] == [(1, 1)]
        assert option["minutes"] == option["transient_minutes"]
    assert none["minutes"] == pytest.approx(bare["failures"] * bare["below_s"]["value"] / 60)
    assert outcome.exit_code == (answer["best"] is None)


def test_a_scaled_pool_keeps_its_own_spares_and_others_say_that_they_are_left_out() -> None:
    policy = {"kind": "schedule", "steps": [{"at_s": 5, "replicas": 2}]}
    scenario = fleet(2, processes(1e6), 200, autoscaler=policy, spares={"warm": 1})
    spared = simserve.resilience(scenario, replications=2)
    bare = simserve.resilience(scenario, replications=2, **{"cluster.pools.0.spares": None})  # type: ignore[arg-type]
    (covered,), (alone, *_) = spared.transients, bare.transients
    assert spared.options == [] and spared.n_runs == 4 and "Transients alone" in repr(spared)
    assert (covered.warm, covered.repair_s, alone.warm) == (1, DETECT_S, 0)
    assert (covered.missed.value or 0.0) < (alone.missed.value or 0.0)
    assert not spared.warnings
    compared = simserve.resilience(scenario, spare=0, replications=2, autoscaler=None)
    assert compared.warnings == ["the pool's own spares are left out, as the study compares numbers of them"]


def test_without_a_number_of_seeds_three_kinds_and_two_spares_take_at_most_40_runs() -> None:
    answer = simserve.resilience(fleet(2, None, 20, 4), spare="0..2")
    assert answer.n_runs == 40
    assert {each.n_seeds for each in answer.transients} == {4}
    assert [each.migrate for each in answer.transients] == [*["none"] * 3, *["recompute"] * 3]


@pytest.mark.parametrize(
    ("failures", "arguments", "message"),
    [
        (None, ["--pool", "x"], "command line --pool: there is no such pool, got x; use serve"),
        (None, ["--spare", "2..1"], "command line --spare: a range goes upwards, to a number of spares"),
        (None, ["--spare", "few"], "command line --spare: must be a number of spares, or a range LO..HI, got few; for"),
        (None, ["--spare", "0..99"], "got 0..99; for example 0..2; at most 20"),
        (None, ["--spare", "-1"], "must be a number of spares, or a range LO..HI, got -1"),
        (None, ["--what", "fan"], "command line --what: there is no such kind of failure, got fan; use process, gpu"),
        (None, ["--what", "rack"], "cluster.failures: has no rate of a rack, and no default; give the scenario"),
        (None, ["--set", "slo={}"], "needs an SLO, got none; give one, such as slo: {ttft_s: 0.5, tpot_s: 0.05}"),
        (None, ["--goal", "7"], "--goal: must be a share from"),
        (None, ["--set", "cluster.gpu_budget=3"], "gpu_budget=3: must hold the 4 GPUs of the replicas at"),
        ([{"what": "process", "mtbf_s": 1e6, "recover": "none"}], [],
         "cluster.failures: leaves nothing standing in the long run, as no replica comes back, got recover: none"),
        ([{"what": "process", "mtbf_s": 50, "detect_s": 60}], [],
         "cluster.failures: must leave most replicas standing, got rates at which 56% are down or slow; raise mtbf_s"),
        ([{"what": "slow", "mtbf_s": 1e6}], [],
         "cluster.failures: leaves all replicas slow in the long run, as none is as fast again, got for_s: null; give"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_runs(
    tmp_path: Path, failures: Any, arguments: list[str], message: str
) -> None:
    outcome = resilience(tmp_path, fleet(2, failures), *arguments)
    assert outcome.exit_code == 2
    assert message in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("n", "rate_per_s", "repair_s"), [(1, 1e-3, 10.0), (5, 1e-3, 100.0), (300, 1e-2, 90.0)])
def test_replicas_that_fail_on_their_own_are_down_as_a_binomial_says(
    n: int, rate_per_s: float, repair_s: float
) -> None:
    down = rate_per_s * repair_s / (1 + rate_per_s * repair_s)
    exact = [comb(n, j) * down**j * (1 - down) ** (n - j) for j in range(n + 1)]
    assert down_shares(n, [(1, rate_per_s * repair_s)]) == pytest.approx(exact, rel=1e-9, abs=1e-300)
    two = [(1, rate_per_s / 4 * repair_s / 2), (1, rate_per_s * 3 / 4 * repair_s * 7 / 6)]
    assert down_shares(n, two) == pytest.approx(exact, rel=1e-9, abs=1e-300)  # by their mean repair


def test_groups_that_fail_together_are_down_together() -> None:
    assert down_shares(4, [(2, 0.25)]) == pytest.approx([0.8**2, 0, 2 * 0.8 * 0.2, 0, 0.2**2])
    assert down_shares(3, [(2, 0.25)]) == pytest.approx([0.8**2, 0.16, 0.16, 0.2**2])  # one is on a node of its own
    assert down_shares(3, [(8, 0.1), (3, 0.15)]) == pytest.approx([0.8, 0, 0, 0.2])
    both = down_shares(2, [(1, 1 / 9), (2, 0.25)])  # single ones fail on a node that is up
    assert both == pytest.approx([0.8 * 0.81, 0.8 * 0.18, 0.2 + 0.8 * 0.01])
    assert down_shares(3, []) == [1, 0, 0, 0]


def test_until_a_spare_has_taken_over_counts_once() -> None:
    node = Threat("node", 1e6, "", per_s=1e-6, n_lost=2, detect_s=30, start_s=70, new_s=900)
    budget = ErrorBudget(4, [node], {}, 0.99, requests_per_s=1, usd_per_hour=1)
    active, warm, cold = ({each.serving: each.time_frac for each in one.states} for one in budget.options([1]))
    one_node, up = 1 - 1 / (1 + 1e-3), 1 / (1 + 1e-3)  # five replicas are on three nodes
    assert active[3] == pytest.approx(2 * one_node * up**2)
    for shares, gap_s in ((warm, 30), (cold, 100)):  # the spare replaces one of two replicas after the gap
        gap = node.of(4)[1] * gap_s / MONTH_S
        assert sum(shares.values()) == pytest.approx(1)
        assert 1 - shares[4] == pytest.approx(1 - up**2)
        assert shares[3] == pytest.approx(2 * one_node * up**2 - gap)
        assert shares[2] == pytest.approx(gap + 2 * one_node**2 * up, rel=0.02)


def test_rates_and_repairs_are_those_of_the_hardware_that_a_replica_has() -> None:
    failures = [{"what": "node", "at_s": 3}, {"what": "node", "mtbf_s": 8e6, "detect_s": 30}]
    scenario = simserve.Scenario.from_dict(fleet(4, failures, parallel={"tensor": 4}))
    (node,) = threats_of(scenario, 0, [])
    assert (node.n_lost, node.per_s, node.mtbf_s, node.source) == (2, 1 / 8e6, 8e6, "the scenario")
    assert [*node.of(4)] == pytest.approx([2, 2 * 30 * 86_400 / 8e6])
    assert node.new_s == 20 and node.repair_s == pytest.approx(30 + 20 + node.start_s)
    process, gpu = threats_of(scenario, 0, ["process", "gpu"])
    assert process.new_s == 0 and process.per_s == pytest.approx(1 / (176 * 86_400))
    assert gpu.per_s == pytest.approx(4 / (4_465 * 86_400)) and gpu.n_lost == 1


def test_failures_of_one_kind_add_up_and_those_of_other_pools_do_not_count() -> None:
    rates = [("serve", 3e6), (None, 6e6), ("other", 1e6)]
    failures: list[dict[str, Any]] = [{"what": "process", "mtbf_s": mtbf_s, "pool": name} for name, mtbf_s in rates]
    given = fleet(1, [*failures, {"what": "gpu", "mtbf_s": 5e6}, {"what": "spot", "mtbf_s": 1e6}])
    given["cluster"]["pools"].append({"name": "other", "replicas": 1})
    process, gpu = threats_of(simserve.Scenario.from_dict(given), 0, [])
    assert (process.what, gpu.what) == ("process", "gpu")
    assert process.mtbf_s == pytest.approx(2e6) and gpu.mtbf_s == 5e6


def slow(**given: float) -> list[dict[str, Any]]:
    """Return gray failures that leave a tenth of the speed."""
    return [{"what": "slow", "speed_frac": 0.1, **given}]


def test_a_slow_replica_costs_minutes_by_its_share_of_time_and_leaves_no_replica_down(tmp_path: Path) -> None:
    outcome = resilience(tmp_path, fleet(2, slow(mtbf_s=2e4, for_s=4)), "--spare", "0..1", "--json")
    answer = json.loads(outcome.out)
    one = answer["transients"][0]
    assert (one["what"], one["n_lost"], one["speed_frac"], one["repair_s"], one["mtbf_s"]) == ("slow", 0, 0.1, 4, 2e4)
    assert one["failures"] == pytest.approx(2 * MONTH_S / 2e4)
    assert one["missed"]["value"] > 10 and one["lost"]["value"] == 0 < one["below_s"]["value"]
    none, _, warm, cold = answer["options"]
    for option in (none, warm, cold):  # nothing takes over, as nothing is known to have failed
        assert [(each["serving"], each["time_frac"]) for each in option["states"]] == [(2, 1)]
        assert option["minutes"] == option["transient_minutes"]
    assert none["minutes"] == pytest.approx(one["failures"] * one["below_s"]["value"] / 60)
    alone = simserve.resilience(fleet(2, slow(mtbf_s=2e4, for_s=4)), spare=0, replications=2)
    assert alone.transients[0].facts() == one


def test_a_slow_replica_without_a_rate_has_that_of_a_process_and_says_what_is_assumed(tmp_path: Path) -> None:
    outcome = resilience(tmp_path, fleet(2, None), "--spare", "0", "--what", "process,slow")
    assert outcome.exit_code == 0, outcome.err
    page = (tmp_path / "out" / "report.html").read_text().replace("\xa0", " ")
    assert "once in 176 days; for 600 s at 50% of its speed; assumed: as often as a process fails" in page
    process, gray, _ = json.loads((tmp_path / "out" / "resilience.json").read_text())["transients"]
    assert (gray["mtbf_s"], gray["repair_s"], gray["speed_frac"]) == (process["mtbf_s"], 600, 0.5)
    assert "a gray failure takes 600 s and the load 20 s, so that half of it is slow, times 60" in outcome.err
    assert re.search(r"\n  slow, 50\.0% +0\.34 +600 s ", outcome.out)
    scenario = simserve.Scenario.from_dict(fleet(2, slow(at_s=3, for_s=7)))
    assert [(each.what, each.repair_s, each.mtbf_s) for each in threats_of(scenario, 0, [])] == [
        ("slow", 7, 176 * 86_400)
    ]
    assert [each.what for each in threats_of(simserve.Scenario.from_dict(fleet(2, None)), 0, [])] == [
        "process", "gpu", "node",
    ]  # fmt: skip


def test_a_gray_failure_that_is_longer_than_half_the_load_costs_as_much_more() -> None:
    short, long = (
        simserve.resilience(fleet(2, slow(mtbf_s=1e6, for_s=for_s)), spare=0, replications=2).transients[0]
        for for_s in (10, 1000)
    )
    factor = (long.missed.value or 0.0) / (short.missed.value or 0.0)
    assert factor == pytest.approx(100, rel=0.1)
    assert (long.below_s.value or 0.0) == pytest.approx(1010, abs=1)  # an interval of 20 s, and 99 times half of it


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("failure", "tensor", "at_once"), [("process", 1, 1), ("node", 4, 2)], ids=["alone", "two of a node"]
)
def test_simulated_replicas_are_down_for_the_shares_of_the_model(failure: str, tensor: int, at_once: int) -> None:
    failures = [{"what": failure, "mtbf_s": 60.0 * tensor, "detect_s": DETECT_S}]
    scenario = simserve.Scenario.from_dict(fleet(4, failures, 4, 40_000, parallel={"tensor": tensor}))
    members = simserve.simulate(scenario).members
    end_s = 40_000.0
    starts = members["ready_s"].fillna(end_s).clip(upper=end_s).to_numpy()
    ends = (members["gone_s"] - DETECT_S).fillna(end_s).clip(upper=end_s).to_numpy()  # gone once that is known
    served = ends > starts
    at_s = np.concatenate([starts[served], ends[served], [0.0, end_s]])
    change = np.concatenate([np.ones(served.sum()), -np.ones(served.sum()), [0, 0]])
    order = np.lexsort((-change, at_s))
    up, lasts_s = np.cumsum(change[order])[:-1], np.diff(at_s[order])
    shares = [lasts_s[up == 4 - j].sum() / end_s for j in range(5)]
    (threat,) = threats_of(scenario, 0, [])
    assert threat.n_lost == at_once
    expected = down_shares(4, [(at_once, threat.odds)])
    n_failures = 4 / at_once * end_s / threat.mtbf_s
    assert shares == pytest.approx(expected, abs=4 * (expected[at_once] / n_failures) ** 0.5)
    assert shares[at_once] == pytest.approx(expected[at_once], rel=3 * n_failures**-0.5)
