"""Shards: replicas served by processes of their own leave the same tables as in one, to the last bit."""

import os
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve import Results, Scenario, shards, simulate, simulation
from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.frontend import FrontEnd
from simserve.engine.host_tier import host_facts
from simserve.engine.offered import Offered
from simserve.engine.replica import Replica
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.tabulate import tabulate
from simserve.errors import PolicyError
from simserve.report.page import render
from simserve.routers.random import Random
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.base import Scheduler, StepPlan
from simserve.schedulers.chunked import Chunked
from simserve.shards import run_in_shards
from simserve.state.view import ReplicaView
from simserve.study import processes
from simserve.tables.columns import Categorical
from simserve.tables.files import plain
from simserve.tables.scratch import Scratch
from simserve.workload.load import offered_load
from simserve.workload.trace import Trace
from tests.agreement import own
from tests.cli.invoke import invoke
from tests.doubles import replica_setup, serve, trace
from tests.effort import examples
from tests.test_oracle_host_tier import offloading, swapping
from tests.test_oracle_speculation import speculating
from tests.worlds import caching, front_ends, grouped, ordered, setups, shared_prompts, tagged

CHAT: dict[str, Any] = {
    "schema": "simserve/1",
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "engine": "vllm",
    "cluster": {"router": "round_robin", "pools": [{"replicas": 3}]},
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 40},
        "lengths": {"kind": "profile", "name": "azure-conv-2023"},
        "n_requests": 300,
    },
    "slo": {"ttft_s": 0.5, "tpot_s": 0.05},
    "measure": {"replays": 0},
}
ROUTERS = [
    file.stem for file in (Path(simulation.__file__).parent / "routers").glob("[a-z]*.py") if file.stem != "base"
]
BLIND = {"round_robin", "random"}
"""Those that look at nothing."""


@pytest.fixture(autouse=True)
def any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve loads of any length in shards, whatever the threads of the test runner."""
    monkeypatch.setattr(simulation, "LEAST_SHARDED", 0)
    monkeypatch.setattr(simulation, "can_fork", lambda: True)


def world(pool: dict[str, Any] | None = None, load: dict[str, Any] | None = None, **changes: Any) -> Scenario:
    """Return CHAT with other keys of its pool, of its workload, and at the top."""
    cluster = {"router": "round_robin", "pools": [{"replicas": 3} | (pool or {})]}
    return Scenario.from_dict(CHAT | {"cluster": cluster, "workload": CHAT["workload"] | (load or {})} | changes)


def n_shards(scenario: Scenario, jobs: int = 2) -> int:
    """Return the number of shards of a scenario."""
    return simulation.n_shards(scenario, offered_load(scenario.workload, scenario.seed, scenario.base_dir), jobs)


def everything(results: Results) -> object:
    """Return all that a run gives but its wall time, exact where it is a number."""
    columns = {
        name: {key: asdict(each) if isinstance(each, Categorical) else each for key, each in table.items()}
        for name, table in results.columns.items()
    }
    return (
        plain(results.summary | {"wall_s": 0}),
        plain(results.vllm_bench),
        asdict(results.facts) | {"wall_s": 0},
        columns,
    )


def assert_same(one: object, other: object) -> None:
    """Check that values are equal to the bit, NaN included."""
    np.testing.assert_equal(other, one)


SMALL = {"num_gpu_blocks": 260, "max_model_len": 4096}
WORLDS: dict[str, Callable[[], Scenario]] = {
    "plain": world,
    "few blocks": lambda: world(SMALL),
    "rejected and cut": lambda: world({"max_model_len": 900}, {"max_tokens": 300}),
    "shared prefixes": lambda: world(SMALL, {"prefixes": {"kind": "shared", "n_prefixes": 3, "prefix_tokens": 100}}),
    "conversations": lambda: world(
        SMALL, {"prefixes": {"kind": "conversations", "turns": 3, "think_s": 2.0, "next_turn": "after_arrival"}}
    ),
    "speculation": lambda: world({"speculation": {"kind": "ngram", "tokens": 3, "acceptance": 0.6}}),
    "classes": lambda: world(
        SMALL | {"scheduler": {"kind": "chunked", "policy": "priority"}},
        {"classes": {"a": {"share": 0.5, "priority": 0}, "b": {"share": 0.5, "priority": 1}}},
    ),
    "tenants": lambda: world(
        SMALL | {"scheduler": {"kind": "chunked", "policy": "vtc"}}, {"tenants": {"a": 0.5, "b": 0.5}}
    ),
    "swaps": lambda: world(SMALL | {"host_tier": {"bytes": 5e9}}),
    "lockstep": lambda: world(
        {"replicas": 2, "parallel": {"tensor": 1, "data": 2, "expert": 2}}, model="qwen3-30b-a3b"
    ),
    "pipeline": lambda: world({"parallel": {"pipeline": 2}}),
    "whole answers": lambda: world({"scheduler": {"kind": "static", "batch_size": 8, "stream": False}}),
    "unfinished": lambda: world(SMALL, {"drain_limit_s": 1.0}),
    "windows": lambda: world(SMALL | {"num_gpu_blocks": 3000}, model="gpt-oss-20b"),
    "batch": lambda: world(
        None, {"batch": {"n_requests": 30, "lengths": {"kind": "fixed", "prompt_tokens": 99, "output_tokens": 9}}}
    ),
    "delayed views": lambda: Scenario.from_dict(CHAT | {"cluster": CHAT["cluster"] | {"views": {"refresh_s": 0.5}}}),
    "two pools": lambda: Scenario.from_dict(
        CHAT
        | {
            "cluster": {
                "router": "random",
                "pools": [{"name": "a", "replicas": 2}, {"name": "b", "replicas": 1, "gpu": "a100-sxm"}],
            }
        }
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_shards_leave_what_one_process_leaves(name: str) -> None:
    scenario = WORLDS[name]()
    assert n_shards(scenario) == 2
    one, two = simulate(scenario), simulate(scenario, jobs=2)
    assert_same(everything(one), everything(two))


def test_the_worlds_have_what_they_are_for() -> None:
    of = {name: simulate(WORLDS[name](), jobs=2).summary for name in ("few blocks", "rejected and cut", "unfinished")}
    assert of["few blocks"]["preemptions"]["n"] > 10
    assert of["rejected and cut"]["requests"]["rejected"] > 10
    assert of["unfinished"]["requests"]["unfinished"] > 10


def test_files_and_page_are_the_same(tmp_path: Path) -> None:
    scenario = world(SMALL)
    for name, jobs in (("one", 1), ("two", 3)):
        results = simulate(scenario, jobs=jobs)
        results.put(wall_s=0.0)
        results.write(tmp_path / name, report=render)
    files = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert {"requests.parquet", "steps.parquet", "summary.json", "report.html"} <= set(files)
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


@pytest.mark.parametrize("router", ROUTERS)
def test_only_routers_that_look_at_nothing_have_shards(router: str) -> None:
    load = {"prefixes": {"kind": "conversations", "turns": 3, "think_s": 2.0, "next_turn": "after_arrival"}}
    scenario = world(SMALL, load)
    scenario = Scenario.from_dict(scenario.to_dict() | {"cluster": scenario.to_dict()["cluster"] | {"router": router}})
    assert n_shards(scenario) == (2 if router in BLIND else 1)
    assert_same(everything(simulate(scenario)), everything(simulate(scenario, jobs=2)))


CLUSTER = CHAT["cluster"]
ALIKE: dict[str, tuple[str, dict[str, Any]]] = {
    "one replica": ("there is only one replica", {"cluster": CLUSTER | {"pools": [{"replicas": 1}]}}),
    "router": ("the router least_kv looks at loads or requests", {"cluster": CLUSTER | {"router": "least_kv"}}),
    "admission": (
        "the admission policy queue_length looks at all replicas",
        {"cluster": CLUSTER | {"admission": {"kind": "queue_length", "max_waiting": 9}}},
    ),
    "timeout": ("clients give up or retry", {"workload": CHAT["workload"] | {"timeout": {"e2e_s": 9}}}),
    "store": (
        "the replicas of pool serve share host memory",
        {
            "cluster": {
                "router": "random",
                "pools": [{"name": "serve", "replicas": 2, "host_tier": {"bytes": 1e10, "scope": "pool"}}],
            }
        },
    ),
    "closed loop": (
        "clients send requests after answers",
        {
            "workload": {
                "client": {"kind": "closed_loop", "concurrency": 4},
                "lengths": CHAT["workload"]["lengths"],
                "n_requests": 40,
            }
        },
    ),
    "sessions": (
        "clients send requests after answers",
        {"workload": CHAT["workload"] | {"prefixes": {"kind": "agents", "steps": 3, "tool_s": 1.0}}},
    ),
    "roles": (
        "prefill replicas hand over to decode replicas",
        {
            "cluster": {
                "router": "random",
                "pools": [
                    {"name": "p", "role": "prefill", "replicas": 2},
                    {"name": "d", "role": "decode", "replicas": 2},
                ],
                "kv_link": {"bytes_per_s": 5e10},
            }
        },
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_replicas_that_influence_each_other_have_one_process_and_a_reason(name: str) -> None:
    reason, changes = ALIKE[name]
    scenario = Scenario.from_dict(CHAT | changes)
    assert scenario.why_one_process() == reason
    assert n_shards(scenario) == 1


def test_short_loads_and_single_jobs_have_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert n_shards(world(), jobs=1) == 1
    assert n_shards(world(), jobs=8) == 3  # a replica each
    monkeypatch.setattr(simulation, "LEAST_SHARDED", 301)
    assert n_shards(world()) == 1


# -- random clusters ---------------------------------------------------------------------------------------------------


def of_both(result: list[ReplicaSetup]) -> bool:
    """Return whether all replicas serve all."""
    return all(setup.role == "both" for setup in result)


PLAIN = setups() | ordered(setups()) | caching().filter(of_both) | ordered(caching().filter(of_both))
OWN_TIERS = (swapping() | offloading().filter(of_both)).map(
    lambda result: [replace(each, host_tier=each.host_tier and replace(each.host_tier, store=None)) for each in result]
)
REPLICAS = (PLAIN | grouped(PLAIN) | speculating(PLAIN) | OWN_TIERS).map(
    lambda all_: all_ if len(all_) > 1 else all_ * 2
)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    REPLICAS,
    st.sampled_from((RoundRobin, Random)),
    tagged(shared_prompts(4)),
    front_ends(),
    st.none() | st.integers(0, 10**8),
    st.integers(2, 3),
)
def test_shards_of_random_clusters_leave_the_same_records(
    setups: list[ReplicaSetup], router: Any, load: Trace, front_end: FrontEnd, drain_limit_ps: int | None, n: int
) -> None:
    one = Cluster(own(setups), router(), Offered(load), 7, front_end)
    run_cluster(one, drain_limit_ps)
    several = sharing(own(setups), router(), Offered(load), front_end)
    run_in_shards(several, min(n, len(setups)), drain_limit_ps)
    assert_same(records(one), records(several))


def sharing(setups: list[ReplicaSetup], router: Any, offered: Offered, front_end: FrontEnd | None = None) -> Cluster:
    """Return a cluster whose arrays other processes may write."""
    scratch = Scratch()
    scratch.is_shared = True
    return Cluster(setups, router, offered, 7, front_end, scratch=scratch)


def records(cluster: Cluster) -> object:
    """Return the tables of a run and what else is read of it."""
    tables = asdict(tabulate(cluster, np.zeros(len(cluster.replicas), np.int32), ("serve",)))
    ranks = [(rank.pool.least_free_blocks, rank.decode.drafting_ps) for rank in cluster.replicas]
    return tables, ranks, host_facts([rank.tier for rank in cluster.replicas], [1.0] * len(cluster.replicas))


def test_preemptions_of_one_instant_are_in_the_order_of_the_replicas() -> None:
    times = np.repeat(np.arange(12) * 0.01, 3)  # three replicas do the same at the same time
    load = trace(times.tolist(), [40] * 36, [60] * 36)
    replicas = [replica_setup(n_blocks=20)] * 3
    one = serve(own(replicas), load)
    several = sharing(own(replicas), RoundRobin(), Offered(load))
    run_in_shards(several, 2)
    assert_same(records(one), records(several))
    pauses = several.recorder.pauses()
    assert len(pauses) > 10
    assert (pauses["request_id"][:3] % 3).tolist() == [0, 1, 2]


def test_a_deadlock_of_one_shard_is_none_while_another_runs_on() -> None:
    class Lazy(Scheduler):
        def plan(self, view: ReplicaView) -> StepPlan:
            return StepPlan(blocked_by="seats")

    load = trace([0.0, 0.0, 0.1, 0.1], [9] * 4, [5, 5, 900, 900])
    for drain_limit_ps in (None, 10**10, 10**14):
        replicas = [replica_setup(Lazy()), replica_setup()]
        one = serve(own(replicas), load, drain_limit_ps=drain_limit_ps)
        several = sharing(own(replicas), RoundRobin(), Offered(load))
        run_in_shards(several, 2, drain_limit_ps)
        assert_same(records(one), records(several))
        assert any("deadlock" in reason for reason in several.recorder.reasons) == (drain_limit_ps != 10**10)


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kill the process of the second shard when it has served all, as often as a file has bytes."""
    file, original = tmp_path / "deaths", shards._RankState.of

    def answer_or_die(rank: Replica) -> Any:
        if rank.id == 1 and file.stat().st_size:
            os.truncate(file, file.stat().st_size - 1)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(rank)

    monkeypatch.setattr(shards._RankState, "of", answer_or_die)
    return file


@pytest.mark.parametrize("name", ["few blocks", "rejected and cut"])
def test_the_shard_of_a_killed_process_is_tried_once_more(deaths: Path, name: str) -> None:
    one = simulate(WORLDS[name]())
    deaths.write_bytes(b"1")
    assert_same(everything(one), everything(simulate(WORLDS[name](), jobs=2)))
    assert not deaths.stat().st_size


def test_a_run_ends_with_its_reason_and_without_files_if_a_process_is_killed_again(
    deaths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths.write_bytes(b"12")
    monkeypatch.setattr(processes, "cpu_count", lambda: 2)
    file = tmp_path / "chat.yaml"
    file.write_text(yaml.safe_dump(CHAT))
    outcome = invoke("run", file, "--out", tmp_path / "result", "--jobs", 2)
    assert outcome.exit_code == 2
    assert "run: the process of replica 1 must not be killed, got killed twice" in outcome.err
    assert "give --jobs 1" in outcome.err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["chat.yaml", "deaths"]


def test_an_error_is_that_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Chunked.plan

    def plan(self: Chunked, view: ReplicaView) -> StepPlan:
        if view.now_ps > 3 * 10**12:
            raise ValueError(view.now_ps)
        return original(self, view)

    monkeypatch.setattr(Chunked, "plan", plan)
    monkeypatch.setattr(Chunked, "rows_planner", lambda self: None)
    errors = []
    for jobs in (1, 2):
        with pytest.raises(PolicyError) as error:
            simulate(world(), jobs=jobs)
        errors.append(str(error.value))
    assert errors[0] == errors[1]
