"""Fleets that change by autoscalers and failures: starts, drains, budgets, and what a controller may see."""

import re
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve import Scenario, simulate
from simserve.errors import PolicyError
from simserve.metrics.results import Results
from simserve.report.page import render
from simserve.report.run_head import run_head
from simserve.report.run_view import RunView
from tests.effort import examples

FAST = {"process_s": 3, "compile_s": 2, "ready_probe_s": 1, "weights": {"from": "host_memory", "bytes_per_s": 1e15}}
"""A start of 6 s."""


def scenario(
    pool: dict[str, Any], rate_per_s: float = 4.0, n: int = 200, prompt_tokens: int = 200, **cluster: Any
) -> Scenario:
    """Return a load of equal requests on a pool."""
    return Scenario.from_dict(
        {
            "schema": "simserve/1",
            "model": "llama-3.1-8b",
            "gpu": "h100-sxm",
            "engine": "vllm",
            "cluster": {"pools": [{"name": "serve", **pool}], **cluster},
            "workload": {
                "arrivals": {"kind": "constant", "rate_per_s": rate_per_s},
                "lengths": {"kind": "fixed", "prompt_tokens": prompt_tokens, "output_tokens": 100},
                "n_requests": n,
            },
            "measure": {"replays": 0},
        }
    )


def steps(*pairs: tuple[float, int], **more: Any) -> dict[str, Any]:
    """Return an autoscaler by the clock."""
    return {"kind": "schedule", "steps": [{"at_s": at_s, "replicas": n} for at_s, n in pairs], **more}


def members(results: Results) -> pd.DataFrame:
    return results.members


def test_a_fleet_whose_autoscaler_never_acts_equals_the_fixed_one_to_the_bit() -> None:
    fixed = simulate(scenario({"replicas": 2}, 30.0, 600))
    never = simulate(scenario({"replicas": 2, "autoscaler": steps((0, 2))}, 30.0, 600))
    for name in ("requests", "steps", "timeseries"):
        pd.testing.assert_frame_equal(getattr(fixed, name), getattr(never, name))


def test_a_start_takes_the_sum_of_its_phases_and_a_drain_what_its_requests_take() -> None:
    table = members(simulate(scenario({"autoscaler": steps((10, 2), (30, 1)), "startup": {"provision_s": 4, **FAST}})))
    ordered_s = table["ordered_s"][1]
    assert 10 <= ordered_s <= 11.0001
    assert table["ready_s"][1] == pytest.approx(ordered_s + 10)
    assert table["draining_s"][1] == pytest.approx(ordered_s + 20)
    assert 0 < table["gone_s"][1] - table["draining_s"][1] < 2
    assert table["why"].tolist() == ["at the start", "schedule: 1 -> 2; schedule: 2 -> 1"]
    assert np.isnan(table["gone_s"][0])


def test_weights_take_their_bytes_by_the_rate_of_their_source() -> None:
    startup = {"process_s": 0, "compile_s": 0, "ready_probe_s": 0, "weights": {"from": "disk", "bytes_per_s": 1e9}}
    table = members(simulate(scenario({"autoscaler": steps((1, 2)), "startup": startup})))
    assert table["ready_s"][1] - table["ordered_s"][1] == pytest.approx(16.06, abs=0.2)  # 8.03e9 parameters in bf16


def test_gpus_are_kept_until_the_end_of_pre_stop() -> None:
    pool = {"autoscaler": steps((10, 2), (30, 1)), "startup": FAST, "shutdown": {"pre_stop_s": 15}}
    table = members(simulate(scenario(pool)))
    assert table["gone_s"][1] - table["draining_s"][1] == pytest.approx(15)


@pytest.mark.parametrize(
    ("shutdown", "least_s", "why"),
    [
        ({"grace_s": 0.5}, 0.5, "its grace ended"),
        ({"pre_stop_s": 0.1, "timeout_s": 0.3, "grace_s": 0.5}, 0.4, "its server timed out"),
        ({"pre_stop_s": 0.1, "timeout_s": 45, "grace_s": 0.5}, 0.5, "its grace ended"),
        ({"drain": False}, 0.0, "it does not drain"),
    ],
)
def test_what_is_left_at_the_end_fails_and_is_counted(shutdown: dict[str, Any], least_s: float, why: str) -> None:
    pool = {"replicas": 2, "autoscaler": steps((10, 1)), "shutdown": shutdown}
    results = simulate(scenario(pool, 20.0, 400))
    table, failed = members(results), results.requests["status"] == "failed"
    assert table["gone_s"][1] - table["draining_s"][1] == pytest.approx(least_s)
    assert table["why"][1] == f"at the start; schedule: 2 -> 1; {why}"
    assert 0 < failed.sum() == results.summary["requests"]["failed"] < 20
    assert set(results.requests["replica"][failed]) == {1}
    assert (results.requests["status"] == "finished").sum() + failed.sum() == 400


def test_a_budget_of_gpus_is_shared_and_those_that_wait_take_what_becomes_free() -> None:
    """Pool b wants a second replica from 5 s on, and gets it when pool a gives one up."""
    own = {"replicas": 2, "autoscaler": steps((20, 1))}
    other = {"name": "b", "replicas": 1, "autoscaler": steps((5, 2)), "startup": FAST}
    both = scenario(own, gpu_budget=3).to_dict()
    both["cluster"]["pools"].append(other)
    table = members(simulate(Scenario.from_dict(both)))
    assert len(table) == 4
    assert table["pool"].tolist() == ["serve", "serve", "b", "b"]
    assert table["ordered_s"][3] == table["gone_s"][1] >= 20


def test_a_replica_that_drains_is_lost_with_its_node() -> None:
    failing = [{"what": "node", "at_s": 20.3, "member": 0, "recover": "none"}]
    pool = {"replicas": 3, "autoscaler": steps((20, 1), interval_s=0.1)}
    results = simulate(scenario(pool, 60.0, 1800, failures=failing, placement={"gpus_per_node": 2}))
    table = members(results)
    assert table["why"][1] == "at the start; schedule: 3 -> 1; a node failed"
    assert table["draining_s"][1] < table["gone_s"][1] == 30.3  # once it is detected


def test_ranks_that_share_nothing_are_one_replica() -> None:
    """A replica of a dense model in data parallel is two members, which come, count and go together."""
    pool = {"autoscaler": steps((5, 2), (12, 3), (30, 1)), "startup": FAST, "parallel": {"data": 2}}
    table = members(simulate(scenario(pool, gpu_budget=4)))
    assert len(table) == 4
    assert table["ready_s"][2] == table["ready_s"][3] == pytest.approx(table["ordered_s"][2] + 6, abs=1e-3)
    assert table["draining_s"][2] == table["draining_s"][3] == pytest.approx(30, abs=1.1)


def test_a_process_restarts_where_it_was_and_a_gpu_is_replaced_from_the_beginning() -> None:
    startup = {"provision_s": 20, **FAST}
    cases = {"process": 10 + 6, "gpu": 10 + 20 + 6}
    for what, later_s in cases.items():
        failing = [{"what": what, "at_s": 12.0, "member": 1, "detect_s": 10}]
        table = members(simulate(scenario({"replicas": 2, "startup": startup}, failures=failing)))
        assert table["gone_s"][1] == table["ordered_s"][2] == 22.0  # once it is known
        assert table["ready_s"][2] == pytest.approx(12 + later_s)
        assert table["why"][1] == f"at the start; a {what} failed"


def test_until_a_failure_is_known_routers_send_requests_to_what_failed() -> None:
    """Half of what arrives in the 10 s until then waits in the failed replica, and fails with it."""
    failing = [{"what": "process", "at_s": 12.0, "member": 1, "detect_s": 10}]
    requests = simulate(scenario({"replicas": 2}, failures=failing)).requests
    arrived = requests[(requests["arrival_s"] > 12) & (requests["arrival_s"] < 22)]
    lost = arrived["status"] == "failed"
    assert 0.45 < lost.mean() < 0.55
    assert (requests["status"][requests["arrival_s"] > 22] == "finished").all()


@pytest.mark.parametrize(("kind", "after_s"), [("warm", 10), ("cold", 10 + 6), (None, 10 + 20 + 6)])
def test_a_spare_takes_the_place_of_what_failed(kind: str | None, after_s: float) -> None:
    """A warm one at once, a cold one without provisioning; each that is used is replaced."""
    spares = {"spares": {kind: 1}} if kind else {}
    failing = [{"what": "gpu", "at_s": 12.0, "member": 1, "detect_s": 10}]
    pool = {"replicas": 2, "startup": {"provision_s": 20, **FAST}, **spares}
    table = members(simulate(scenario(pool, failures=failing)))
    assert table["ready_s"][2] == pytest.approx(12 + after_s)
    if kind:
        assert table["why"][2] == f"a {kind} spare; takes over after a gpu failure"
        assert table["ordered_s"].tolist() == [0, 0, 0, 22]
        assert table["why"][3] == f"a {kind} spare"
        assert table["ready_s"].isna().tolist() == [False, False, False, True]


def test_a_cold_spare_that_has_replaced_another_loads_once_it_is_needed() -> None:
    """It is there at 42 s, needed at 45, and ready 6 s later: not when it would be if it had loaded at 42."""
    failing = [{"what": "gpu", "at_s": at_s, "detect_s": 1} for at_s in (21.0, 44.0)]
    pool = {"startup": {"provision_s": 20, **FAST}, "spares": {"cold": 1}}
    table = members(simulate(scenario(pool, failures=failing)))
    assert table["ready_s"].tolist()[:3] == pytest.approx([0, 28, 51], abs=1e-3)


def test_a_process_restarts_as_the_spare_of_the_one_that_took_its_place() -> None:
    failing = [{"what": "process", "at_s": at_s, "detect_s": 1} for at_s in (12.0, 30.0)]
    startup = {"provision_s": 1000, **FAST}  # which a restart where it was does without
    table = members(simulate(scenario({"replicas": 1, "startup": startup, "spares": {"warm": 1}}, failures=failing)))
    assert table["ready_s"].tolist()[:3] == [0, 13, 31]
    assert table["why"][2] == "a warm spare; takes over after a process failure"


def test_a_node_takes_all_replicas_on_it_and_a_rack_all_its_nodes() -> None:
    placed = {"gpus_per_node": 2, "nodes_per_rack": 2}
    for what, n_gone in (("node", 2), ("rack", 4)):
        failing = [{"what": what, "at_s": 12.0, "member": 0, "recover": "none"}]
        results = simulate(scenario({"replicas": 5}, failures=failing, placement=placed))
        gone = members(results)["gone_s"].notna()
        assert gone.tolist() == [i < n_gone for i in range(5)]
        scaling = results.summary["scaling"]
        assert scaling["n_failures"] == n_gone
        assert scaling["n_scalings"] == 0


def test_requests_of_a_replica_that_fails_fail_or_are_sent_again_if_they_have_no_token() -> None:
    failing = [{"what": "process", "at_s": 10.0, "member": 0}]
    load: dict[str, Any] = {"rate_per_s": 16.0, "n": 400, "prompt_tokens": 6000}
    lost = simulate(scenario({"replicas": 2}, **load, failures=failing)).requests
    again = simulate(scenario({"replicas": 2}, **load, failures=failing, on_failure={"clients": "retry"})).requests
    n_lost, n_again = ((table["status"] == "failed").sum() for table in (lost, again))
    assert 0 < n_again < n_lost
    assert (again["status"] == "finished").sum() == 400 - n_again


def test_requests_that_migrate_go_on_after_a_failure_and_after_a_cut() -> None:
    """The pause lasts from the failure on, 10 s before it is known, and is their longest gap between tokens."""
    load: dict[str, Any] = {"rate_per_s": 16.0, "n": 400, "prompt_tokens": 600}
    how = {"clients": "retry", "migrate": "recompute"}
    fails = scenario({"replicas": 2}, **load, failures=[{"what": "process", "at_s": 10.0, "member": 0}], on_failure=how)
    cut = {"replicas": 2, "autoscaler": steps((10, 1)), "shutdown": {"drain": False}}
    for made, pause_s in ((fails, 10.0), (scenario(cut, **load, on_failure=how), 0.0)):
        table = simulate(made).requests
        moved = table[table["n_migrations"] > 0]
        assert (table["status"] == "finished").all() and len(moved) > 2
        assert (moved["max_itl_s"] > pause_s).all() and (moved["ttft_s"] < 5).all()
        assert (moved["n_failures"] == 1).all() and (moved["preempted_s"] > pause_s - 0.1).all()


def test_prefixes_in_host_memory_outlive_a_process_that_restarts_if_a_server_of_its_own_has_them() -> None:
    """Prompts share 64 tokens at least; the only process fails at 20.3 s and is back 16 s later."""
    found = {}
    for how in ("lost", "kept"):
        pool = {"startup": FAST, "enable_prefix_caching": True, "host_tier": {"bytes": 1e9}}
        failing = [{"what": "process", "at_s": 20.3}]
        made = scenario(pool, failures=failing, on_failure={"clients": "retry", "host_tier": how}).to_dict()
        made["workload"]["prefixes"] = {"kind": "conversations", "turns": [1, 1], "think_s": 1, "system_tokens": 64}
        table = simulate(Scenario.from_dict(made)).requests
        found[how] = table[(table["replica"] == 1) & (table["host_cached_tokens"] > 0)]
        assert (table["status"] == "finished").sum() > 150
    assert (len(found["lost"]), set(found["kept"]["host_cached_tokens"])) == (0, {64})


def test_failures_at_a_rate_strike_each_unit_as_often_as_they_say() -> None:
    """Lives are exponential: of 8 replicas of 2 GPUs over 2,000 s, one in 200 s a GPU and 20 s to come back."""
    failing = [{"what": "gpu", "mtbf_s": 400.0, "detect_s": 14.0}]
    pool = {"replicas": 8, "parallel": {"tensor": 2}, "startup": FAST}
    results = simulate(scenario(pool, 2.0, 4000, failures=failing))
    n_failures = results.summary["scaling"]["n_failures"]
    expected = 8 * 2000 / (200 + 20)
    assert n_failures == pytest.approx(expected, abs=4 * expected**0.5)


def test_without_any_replica_requests_wait_at_the_gateway_and_the_run_ends() -> None:
    pool = {"autoscaler": steps((10, 0), (40, 1)), "startup": FAST}
    results = simulate(scenario(pool, 1.0, 60))
    late = results.requests.query("arrival_s > 11 and arrival_s < 40")
    assert (results.requests["status"] == "finished").all()
    assert late["scheduled_s"].min() == pytest.approx(46, abs=1.1)
    never = simulate(scenario({"autoscaler": steps((10, 0), (2000, 0), (3000, 1), period_s=None)}, 1.0, 60))
    assert (never.requests["status"] == "finished").all()
    for_good = simulate(scenario({"autoscaler": steps((0.5, 1), (10, 0))}, 1.0, 60))
    unfinished = for_good.requests.query("status == 'unfinished'")
    assert set(unfinished["status_reason"]) == {"waits at the gateway: no replica is ready"}


def test_a_policy_that_breaks_the_rule_is_named() -> None:
    for answer in ("-1", "2.5", "None"):
        with pytest.raises(PolicyError, match=r"desired_replicas.*whole number, 0 or more"):
            simulate(scenario({"autoscaler": {"kind": "tests.engine.odd_autoscalers:Answers", "answer": answer}}))
    with pytest.raises(PolicyError, match=r"desired_replicas.*ZeroDivisionError"):
        simulate(scenario({"autoscaler": "tests.engine.odd_autoscalers:Raises"}))


def test_a_controller_sees_nothing_that_was_not_scraped_and_that_late() -> None:
    from tests.engine import odd_autoscalers

    odd_autoscalers.SEEN.clear()
    pool = {"replicas": 2, "autoscaler": "tests.engine.odd_autoscalers:Watches"}
    simulate(scenario(pool, 30.0, 1500, scrape={"interval_s": 7, "delay_s": 4}))
    assert len(odd_autoscalers.SEEN) > 20
    instants = {at_s for _, seen in odd_autoscalers.SEEN for at_s, _ in seen}
    assert len({round(at_s % 7, 6) for at_s in instants}) == 1
    assert all(at_s <= now_s - 4 for now_s, seen in odd_autoscalers.SEEN for at_s, _ in seen)
    assert max(value for _, seen in odd_autoscalers.SEEN for _, value in seen) > 5


@settings(max_examples=examples(40))
@given(st.sampled_from((0.5, 3.0, 7.1, 20.0)), st.sampled_from((0.0, 1.0, 4.3, 30.0)), st.integers(0, 9))
def test_a_controller_sees_each_scrape_since_a_replica_serves_unchanged_and_nothing_else(
    interval_s: float, delay_s: float, seed: int
) -> None:
    from tests.engine import odd_autoscalers

    odd_autoscalers.REMEMBERED.clear()
    pool = {"replicas": 2, "autoscaler": "tests.engine.odd_autoscalers:Remembers", "startup": FAST}
    scrape = {"interval_s": interval_s, "delay_s": delay_s}
    ready_s = members(simulate(scenario(pool, 30.0, 1500, scrape=scrape).replace(seed=seed)))["ready_s"]
    values: dict[tuple[int, float], float] = {}
    stream = Random(f"scrape/{seed}")
    stream.random()  # the phase of decisions
    grid_s = interval_s * (stream.random() + np.arange(200))
    for now_s, member, seen in odd_autoscalers.REMEMBERED:
        due_s = grid_s[(grid_s >= (ready_s.get(member) or 0)) & (grid_s <= now_s - delay_s)]
        assert [*seen] == pytest.approx(due_s.tolist(), abs=1e-9)
        assert all(values.setdefault((member, at_s), value) == value for at_s, value in seen.items())
    assert len({member for member, _ in values}) >= 3 or delay_s > 4 or interval_s > 7


def test_a_fleet_that_was_too_small_says_so_instead_of_blaming_its_servers() -> None:
    pool = {"autoscaler": steps((5, 6)), "startup": FAST | {"provision_s": 40}, "scheduler": {"max_num_seqs": 16}}
    tight = scenario(pool, 60.0, 6000).to_dict() | {"slo": {"ttft_s": 0.5}}
    results = simulate(Scenario.from_dict(tight))
    assert results.summary["scaling"]["longest_below_s"] > 15
    assert "The fleet was too small for " in str(results._repr_html_()) + repr(results)


def test_the_page_names_each_instant_in_the_life_of_a_replica() -> None:
    page = render(simulate(scenario({"autoscaler": steps((5, 6)), "startup": FAST}, 4.0, 200)))
    head, first, *_ = page.split('id="fleet"', 1)[1].split("</table>")[0].split("<table")[1].split("<tr>")[1:]
    names = re.findall(r'scope="col">(\w+)<', head)
    assert names == ["Replica", "Ordered", "Called", "Ready", "Draining", "Gone"]
    assert len(re.findall("<td>", first)) == len(names) - 1


def rolled(rollout: dict[str, Any], pool: dict[str, Any], **cluster: Any) -> pd.DataFrame:
    """Return the lives of a roll-out at 12 s, with the times since then."""
    load = scenario({"startup": FAST, **pool}, 4.0, 400, rollout={"at_s": 12, **rollout}, **cluster)
    table = members(simulate(load))
    times = ["ordered_s", "ready_s", "draining_s", "gone_s"]
    return table.assign(**{name: table[name] - 12 for name in times})


@pytest.mark.parametrize(
    ("limits", "ordered_s", "draining_s"),
    [
        ({}, [0, 6, 12], [6, 12, 18]),
        ({"max_surge": 0, "max_unavailable": 1}, [0, 6, 12], [0, 6, 12]),
        ({"max_surge": 3}, [0, 0, 0], [6, 6, 6]),
        ({"max_surge": 0, "max_unavailable": 3}, [0, 0, 0], [0, 0, 0]),
    ],
)
def test_a_roll_out_keeps_to_its_surge_and_to_what_may_be_missing(
    limits: dict[str, int], ordered_s: list[float], draining_s: list[float]
) -> None:
    table = rolled({"to": {"engine": {"version": "0.19"}}, **limits}, {"replicas": 3})
    old, new = table[table["pool"] == "serve"], table[table["pool"] == "serve-new"]
    assert (len(old), len(new)) == (3, 3)
    assert new["ordered_s"].tolist() == pytest.approx(ordered_s, abs=2)
    assert sorted(old["draining_s"]) == pytest.approx(draining_s, abs=2)
    assert (new["ready_s"] - new["ordered_s"]).tolist() == pytest.approx([6] * 3, abs=1e-3)
    assert old["gone_s"].notna().all() and new["gone_s"].isna().all()
    assert set(new["why"]) == {"rolled out"}
    assert set(old["why"]) == {"at the start; rolled out"}


def test_a_canary_stays_for_a_while_before_the_rest_follows() -> None:
    table = rolled({"to": {"gpu": "h200-sxm"}, "canary": {"share": 0.4, "for_s": 20}, "max_surge": 2}, {"replicas": 5})
    new = table[table["pool"] == "serve-new"]
    assert new["ordered_s"].tolist()[:2] == [0, 0]  # two of five
    assert new["ordered_s"].tolist()[2] == pytest.approx(6 + 20)
    assert len(new) == 5


@pytest.mark.parametrize("router", ["least_outstanding", "round_robin", "power_of_two"])
def test_a_canary_has_its_share_of_the_traffic_step_by_step(router: str) -> None:
    """The canary gets a tenth of the requests for 40 s and half of them for as long; the old version keeps both of its
    replicas meanwhile. After the last step routers see all alike."""
    steps = [{"traffic_frac": 0.1, "for_s": 40}, {"traffic_frac": 0.5, "for_s": 40}]
    load = scenario({"startup": FAST, "replicas": 2}, 60.0, 7500, router=router, rollout={"at_s": 12, "canary": steps})
    results = simulate(load)
    table, requests = members(results), results.requests
    old, new = table[table["pool"] == "serve"], table[table["pool"] == "serve-new"]
    assert new["ordered_s"].tolist() == pytest.approx([12, 98], abs=2)
    assert sorted(old["draining_s"]) == pytest.approx([98, 104.6], abs=0.1)
    is_new, at_s = requests["replica"].isin(new["replica"]), requests["arrival_s"]

    def frac(start_s: float, end_s: float) -> float:
        return float(is_new[(at_s > start_s) & (at_s < end_s)].mean())

    versions = results.summary["versions"]
    both = (at_s >= new["ready_s"].min()) & (at_s < old["draining_s"].max()) & requests["in_window"]
    arrived = {name: own["requests"]["arrived"] for name, own in versions.items()}
    assert arrived == {"serve": int((both & ~is_new).sum()), "serve-new": int((both & is_new).sum())}
    of_new = requests["ttft_s"][both & is_new]
    assert versions["serve-new"]["ttft_s"]["p50"] == pytest.approx(of_new.quantile(0.5), rel=0.02)
    assert frac(0, 18) == 0.0
    assert frac(18.5, 57.5) == pytest.approx(0.1, abs=4 * (0.1 * 0.9 / 2340) ** 0.5)
    assert frac(58.5, 97.5) == pytest.approx(0.5, abs=4 * (0.25 / 2340) ** 0.5)
    assert frac(106, 125) == 1.0


def test_a_canary_that_fails_leaves_all_requests_to_the_old_version() -> None:
    failing = [{"what": "process", "at_s": 30, "member": 2, "detect_s": 1}]
    canary = {"traffic_frac": 0.3, "for_s": 60}
    load = scenario(
        {"startup": FAST, "replicas": 2}, 60.0, 3000, rollout={"at_s": 12, "canary": canary}, failures=failing
    )
    results = simulate(load)
    requests, new = results.requests, members(results)["pool"] == "serve-new"
    at_s = requests["arrival_s"]
    is_new = requests["replica"].isin(members(results).loc[new, "replica"])
    assert 0.2 < is_new[(at_s > 18) & (at_s < 30)].mean() < 0.4
    assert not is_new[(at_s > 31) & (at_s < 36)].any()
    assert 0.2 < is_new[(at_s > 38) & (at_s < 48)].mean() < 0.4


def test_spares_and_failures_follow_a_roll_out() -> None:
    """Spares are exchanged at its end, and what fails later is replaced by the new version."""
    failing = [{"what": "gpu", "at_s": 40, "detect_s": 1}]
    table = rolled({}, {"replicas": 2, "spares": {"warm": 1}}, failures=failing)
    assert table["pool"].tolist() == ["serve"] * 3 + ["serve-new"] * 4
    assert table["why"][2] == "a warm spare; rolled out"
    spare = table[table["why"].str.contains("takes over")]
    assert spare["pool"].tolist() == ["serve-new"] and spare["ready_s"].tolist() == pytest.approx([29])


def test_a_roll_out_is_no_scaling_and_says_how_long_it_took() -> None:
    results = simulate(scenario({"replicas": 2, "startup": FAST}, 4.0, 200, rollout={"at_s": 12}))
    scaling = results.summary["scaling"]
    assert (scaling["n_scalings"], scaling["n_reversals"]) == (0, 0)
    assert scaling["rollout_s"] == pytest.approx(14, abs=2)


@pytest.mark.parametrize(
    ("at_s", "more"),
    [
        (45, {}),  # the second of two is replaced when the load ends, after 50 s
        (12, {"canary": {"traffic_frac": 0.5, "for_s": 900}}),
        (12, {"canary": {"share": 0.5, "for_s": 900}}),
    ],
)
def test_a_roll_out_that_does_not_end_in_the_run_took_no_time_but_says_so(at_s: float, more: dict[str, Any]) -> None:
    load = scenario({"replicas": 2, "startup": FAST}, 4.0, 200, rollout={"at_s": at_s, **more}).to_dict()
    results = simulate(Scenario.from_dict(load | {"slo": {"ttft_s": 0.5}}))
    scaling = results.summary["scaling"]
    assert scaling["rollout_s"] is None and scaling["rollout_attained_frac"] > 0.9
    warning = f"the roll-out of {at_s} s had not ended when the run did: make the load longer"
    assert warning in results.summary["warnings"]
    page = render(results).replace("\u00a0", " ")
    assert "The roll-out has not ended: 100% of requests that arrived since it began met the SLO." in page
    assert warning[1:] in page and "roll-out has not ended" in str(run_head(RunView(results.figures)).brief)
