"""Fleets that change, as a scenario writes them: defaults, origins, and what is refused."""

from typing import Any

import pytest

from simserve import Scenario
from simserve.errors import ScenarioError
from simserve.study.fleet import with_replicas
from tests.cli.invoke import invoke

BASE: dict[str, Any] = {
    "schema": "simserve/1",
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 1},
        "lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 10},
        "n_requests": 10,
    },
}
HPA = {"kind": "hpa", "max_replicas": 4, "metrics": [{"metric": "num_requests_waiting", "target": 5}]}


def scenario(pool: dict[str, Any], **cluster: Any) -> Scenario:
    return Scenario.from_dict(BASE | {"cluster": {"pools": [pool], **cluster}})


def test_defaults_are_spelled_out_for_a_fleet_that_changes_alone() -> None:
    fixed, scaled = scenario({}), scenario({"autoscaler": HPA})
    assert fixed.cluster.pools[0].startup is None and fixed.cluster.scrape is None
    startup = scaled.cluster.pools[0].startup
    assert startup is not None and startup.compile_s == 39.0 and startup.weights.rate == 1.7e9
    assert scaled.cluster.scrape is not None and scaled.cluster.scrape.interval_s == 15
    assert scaled.origins["cluster.pools.0.autoscaler.interval_s"] == "default"
    assert Scenario.from_dict(scaled.to_dict()) == scaled
    assert "failures" not in fixed.to_yaml() and fixed.digest != scaled.digest


def test_a_roll_out_comes_back_from_yaml_and_leaves_the_size_of_its_pool_open() -> None:
    rolled = scenario(
        {"name": "a", "replicas": 2, "startup": {"compile_s": 5}}, rollout={"at_s": 9, "to": {"gpu": "b200"}}
    )
    assert Scenario.from_dict(rolled.to_dict()) == rolled
    assert [(each.name, each.n_replicas, each.gpu.name) for each in rolled.setups] == [
        ("a", 2, "h100-sxm"),
        ("a-new", 0, "b200-sxm"),
    ]
    assert [each.n_replicas for each in with_replicas(rolled, {0: 4}).setups] == [4, 0]


def test_a_grace_may_be_as_short_as_the_largest_decode_step_of_its_pool() -> None:
    small = {"autoscaler": HPA, "scheduler": {"max_num_seqs": 8}}
    assert scenario(small | {"shutdown": {"grace_s": 0.01}}).cluster.pools[0].shutdown is not None
    with pytest.raises(ScenarioError, match=r"within a decode step of 8 x 1,024 tokens, got 0.005"):
        scenario(small | {"shutdown": {"grace_s": 0.005}})
    assert scenario(small | {"shutdown": {"grace_s": 0.005, "drain": False}})


def test_times_may_be_drawn_and_come_back_from_yaml(tmp_path: Any) -> None:
    startup = {"provision_s": {"mean": 60}, "image_s": {"median": 80, "sigma": 0.3, "max": 300}}
    drawn = scenario({"autoscaler": HPA, "startup": startup})
    file = tmp_path / "s.yaml"
    file.write_text(drawn.to_yaml())
    assert invoke("explain", file).exit_code == 0
    assert Scenario.from_dict(drawn.to_dict()) == drawn


@pytest.mark.parametrize(
    ("pool", "cluster", "message"),
    [
        ({"replicas": 4, "autoscaler": HPA}, {"gpu_budget": 3}, "cluster.gpu_budget: must hold the 4 GPUs"),
        (
            {"autoscaler": HPA | {"min_replicas": 9}},
            {},
            "min_replicas must be at most max_replicas, got 9 > 4; swap them",
        ),
        (
            {"replicas": 1, "autoscaler": HPA | {"min_replicas": 3}},
            {"gpu_budget": 2},
            "cluster.gpu_budget: must hold the 3 GPUs",
        ),
        ({"autoscaler": HPA | {"metrics": [{"metric": "queue", "target": 5}]}}, {}, "unknown metric 'queue'"),
        (
            {"autoscaler": HPA, "shutdown": {"grace_s": 0.001}},
            {},
            "shutdown.grace_s: must be at least 0.0325 s, as less ends within a decode step of 432 x 1,024 tokens",
        ),
        (
            {"autoscaler": HPA, "shutdown": {"pre_stop_s": 45}},
            {},
            "shutdown.grace_s: must be at least pre_stop_s, 45 s",
        ),
        ({}, {"on_failure": {"host_tier": "kept"}}, "on_failure.host_tier: needs host memory of a replica's own"),
        (
            {"host_tier": {"bytes": 1e9}},
            {"on_failure": {"host_tier": "kept"}, "failures": [{"what": "node", "at_s": 1}]},
            "other failures take the machine, got 'kept'; add a host_tier and such failures",
        ),
        ({"scheduler": "static"}, {"on_failure": {"migrate": "recompute"}}, "before the whole answer in pool"),
        (
            {},
            {"on_failure": {"migrate": "with_kv"}},
            "cluster.on_failure.migrate: needs the link that keys and values cross, got 'with_kv'; give "
            "cluster.kv_link: {bytes_per_s: 50.0e9}",
        ),
        (
            {},
            {"on_failure": {"migrate": "with_kv"}, "kv_link": {"bytes_per_s": 1e9, "how": "push"}},
            "cluster.kv_link.how: needs pools with roles, as requests that leave have all their keys and values, got "
            "'push'; leave how and transfer out",
        ),
        (
            {"scheduler": "static"},
            {"on_failure": {"migrate": "with_kv"}, "kv_link": {"bytes_per_s": 1e9}},
            "pools.0.scheduler: a with_kv pool exchanges requests one at a time, and static runs whole batches",
        ),
        ({}, {"rollout": {"at_s": 9, "pool": "x"}}, "rollout.pool: must be one of the pools, got x; use"),
        ({}, {"rollout": {"at_s": 9, "max_surge": 0}}, "rollout.max_surge: with max_unavailable: 0 replaces nothing"),
        (
            {"replicas": 4},
            {"gpu_budget": 4, "rollout": {"at_s": 9}},
            "gpu_budget: must hold the 5 GPUs that the roll-out begins with, 1 of them beyond the others, got 4",
        ),
        (
            {"replicas": 4},
            {"gpu_budget": 5, "rollout": {"at_s": 9, "canary": {"traffic_frac": 0.5, "for_s": 9}}},
            "gpu_budget: must hold the 6 GPUs that the roll-out begins with, 2 of them beyond the others, got 5",
        ),
        ({}, {"rollout": {"at_s": 9, "to": {"replicas": 4}}}, "rollout.to.replicas: stays that of pool"),
        ({}, {"rollout": {"at_s": 9, "canary": {"for_s": 9}}}, "rollout.canary: must have share, of the replicas, or"),
        (
            {},
            {"rollout": {"at_s": 9, "canary": [{"traffic_frac": 2, "for_s": 9}]}},
            "canary.0.traffic_frac: must be at",
        ),
        (
            {},
            {"rollout": {"at_s": 9, "canary": [{"traffic_frac": 0.2, "for_s": 9}, {"share": 0.2, "for_s": 9}]}},
            "rollout.canary: gives some of its steps a traffic_frac, and others none; give it to all",
        ),
        ({}, {"rollout": {"at_s": 9, "to": {"gpu": "h900"}}}, "rollout.to.gpu: "),
        ({}, {"failures": [{"what": "node"}]}, "failures.0: needs either at_s or mtbf_s"),
        ({}, {"failures": [{"what": "gpu", "at_s": 1, "pool": "x"}]}, "there is no such pool, got x"),
        ({}, {"failures": [{"what": "gpu", "mtbf_s": 1e6, "member": 1}]}, "is for one failure, at at_s"),
        ({}, {"failures": [{"what": "process", "mtbf_s": 50}]}, "standing, which start in 85 s or more, got 50"),
        ({}, {"failures": [{"what": "drain", "at_s": 1, "notice_s": 9}]}, "0.notice_s: is for what: spot, got 9"),
        ({}, {"failures": [{"what": "gpu", "at_s": 1, "repair_s": 9}]}, "GPUs that fail out of cluster.gpu_budget"),
        ({}, {"failures": [{"what": "process", "at_s": 1, "repair_s": 9}], "gpu_budget": 9}, "0.repair_s: keeps GPUs"),
        (
            {},
            {"failures": [{"what": "fire", "at_s": 1}]},
            "failures.0: must have one of 'process', 'gpu', 'node', 'rack'",
        ),
        (
            {},
            {"failures": [{"what": "slow", "at_s": 1, "detect_s": 3}]},
            "failures.0.detect_s: unknown key; leave it out, as slow",
        ),
        (
            {},
            {"failures": [{"what": "slow", "at_s": 1, "recover": "none"}]},
            "failures.0.recover: unknown key; leave it out, as slow",
        ),
        ({}, {"failures": [{"what": "node", "at_s": 1, "for_s": 3}]}, "failures.0.for_s: unknown key"),
        ({}, {"failures": [{"what": "slow", "at_s": 1, "sped_frac": 1}]}, "did you mean speed_frac?"),
        ({}, {"failures": [{"what": "node", "at_s": 1, "detekt_s": 1}]}, "did you mean detect_s?"),
        (
            {},
            {"failures": [{"what": "slow", "at_s": 1, "speed_frac": 0}]},
            "must be at least 0.001, as a replica that st",
        ),
        ({}, {"failures": [{"what": "slow", "at_s": 1, "speed_frac": 2}]}, "failures.0.speed_frac: must be at most 1"),
        (
            {},
            {"failures": [{"what": "link", "at_s": 1}]},
            "failures.0.what: needs a prefill and a decode pool: else keys",
        ),
        ({"startup": {"weights": {"from": "tape"}}}, {}, "must be one of disk, network or host_memory"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place_and_a_remedy(
    pool: dict[str, Any], cluster: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(pool, **cluster)
    assert message in str(error.value).replace("'x'", "x")


PLANNER: dict[str, Any] = {"kind": "dynamo_planner", "pools": {"prefill": "p", "decode": "d"}}


def pair(
    planner: dict[str, Any], prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None
) -> Scenario:
    """Return a prefill and a decode pool that a planner scales."""
    pools = [{"name": "p", "role": "prefill"} | (prefill or {}), {"name": "d", "role": "decode"} | (decode or {})]
    return Scenario.from_dict(BASE | {"cluster": {"pools": pools, "autoscaler": planner}})


def test_a_planner_of_two_pools_is_spelled_out_and_both_pools_have_it() -> None:
    made = pair(PLANNER | {"max_gpu_budget": 6}, {"parallel": {"tensor": 2}})
    assert made.cluster.changes and made.cluster.scrape is not None and made.cluster.pools[0].startup is not None
    assert made.origins["cluster.autoscaler.max_gpu_budget"] == "explicit"
    assert made.origins["cluster.autoscaler.load_adjustment_interval_s"] == "default"
    assert "load_adjustment_interval_s: 5" in made.to_yaml()
    assert made.setups[0].autoscaler is made.setups[1].autoscaler
    assert [setup.most_replicas for setup in made.setups] == [3, 6]
    assert Scenario.from_dict(made.to_dict()) == made
    assert made.digest != pair(PLANNER).digest


@pytest.mark.parametrize(
    ("planner", "prefill", "message"),
    [
        (
            {"optimization_target": "sla"},
            {},
            "optimization_target: must be one of throughput, latency or load, got 'sla'",
        ),
        (
            {"load_predictor": "prophet"},
            {},
            "cluster.autoscaler.load_predictor: must be one of constant, kalman or arima",
        ),
        (
            {"pools": {"prefill": "x", "decode": "d"}},
            {},
            "autoscaler.pools.prefill: there is no such pool, got x; use p",
        ),
        (
            {"pools": {"prefill": "d", "decode": "p"}},
            {},
            "pools.prefill: must be a pool with role: prefill, got 'd'; its",
        ),
        ({}, {"autoscaler": HPA}, "cluster.pools.0.autoscaler: cluster.autoscaler scales this pool, too; leave one"),
        ({"max_gpu_budget": 4}, {"parallel": {"tensor": 4}}, "must hold min_endpoint replicas, of 5 GPUs, got 4"),
        (
            {"pools": None},
            {},
            "cluster.autoscaler: must name the pools that it scales; move it to cluster.pools.0.auto",
        ),
        ({"kind": "hpa", **HPA, "pools": 3}, {}, "cluster.autoscaler.pools: unknown argument"),
        (
            {"optimization_target": "load"},
            {},
            "load needs prefill_scale_up_queue_tokens and prefill_scale_down_queue_to",
        ),
        ({"max_gpu_budget": 0}, {}, "cluster.autoscaler.max_gpu_budget: must be at least 1"),
    ],
)
def test_a_planner_that_cannot_scale_its_pools_is_refused(
    planner: dict[str, Any], prefill: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError) as error:
        pair(PLANNER | planner, prefill)
    assert message in str(error.value).replace("'x'", "x")


def test_a_pool_of_its_own_needs_no_names_and_has_a_budget_for_its_replicas() -> None:
    with pytest.raises(ScenarioError, match=r"0\.autoscaler\.pools: is for cluster.autoscaler, which scales several"):
        pair({}, {"autoscaler": PLANNER})
    large = {"autoscaler": {"kind": "dynamo_planner", "max_gpu_budget": 2}, "parallel": {"tensor": 4}}
    with pytest.raises(ScenarioError, match=r"max_gpu_budget must hold min_endpoint replicas, of 4 GPUs, got 2"):
        scenario(large)


@pytest.mark.parametrize(
    "command", [["capacity", "--replicas", "p"], ["autoscale", "--policy", "own"], ["autoscale", "--signals"]]
)
def test_commands_about_one_pool_name_what_scales_several(command: list[str], tmp_path: Any) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(Scenario.from_dict(pair(PLANNER).to_dict() | {"slo": {"ttft_s": 1}}).to_yaml())
    outcome = invoke(command[0], file, *command[1:], "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    assert "cluster.autoscaler: " in outcome.err and "--set cluster.autoscaler=null" in outcome.err


def test_a_command_that_looks_for_a_number_of_replicas_names_what_decides_it(tmp_path: Any) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(Scenario.from_dict(scenario({"autoscaler": HPA}).to_dict() | {"slo": {"ttft_s": 1}}).to_yaml())
    outcome = invoke("capacity", file, "--replicas", "serve", "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    assert "cluster.pools.0.autoscaler: changes the number of replicas" in outcome.err
    assert "or use simserve autoscale" in outcome.err


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ({"member": 1}, "failures.0.member: is no part of a link, which is that of a pool, got 1; give pool"),
        ({"speed_frac": 0}, "failures.0.for_s: is needed, as nothing arrives over a link that stays down; give it"),
        ({"pool": "b"}, "failures.0.what: needs a prefill and a decode pool: else keys and values stay on the GPUs"),
    ],
)
def test_a_link_that_cannot_fail_so_is_refused(failure: dict[str, Any], message: str) -> None:
    roles = [{"name": role[0], "role": role} for role in ("prefill", "decode", "both")]
    cluster = {"disaggregate": {"kind": "prompt_length", "min_prompt_tokens": 9}}
    data = BASE | {"cluster": {"pools": roles, **cluster, "failures": [{"what": "link", "at_s": 1, **failure}]}}
    with pytest.raises(ScenarioError) as refused:
        Scenario.from_dict(data)
    assert message in str(refused.value)


def test_passing_failures_come_back_from_yaml() -> None:
    slow = scenario({}, failures=[{"what": "slow", "at_s": 5, "for_s": 3}, {"what": "gpu", "at_s": 4}])
    assert [each.what for each in slow.cluster.failures or ()] == ["slow", "gpu"]
    assert Scenario.from_dict(slow.to_dict()) == slow
