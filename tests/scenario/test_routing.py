"""Routers and what they see, in a scenario: what resolves to what, and what is a mistake."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simserve.errors import TraceError
from simserve.routers.prefix_affinity import PrefixAffinity
from simserve.routers.weighted import Weighted
from simserve.scenario import Scenario
from simserve.simulation import simulate

Load = Callable[..., Scenario]
MessagesOf = Callable[..., list[str]]

TWO = "cluster={router: least_outstanding, pools: [{replicas: 2}]}"
CONVERSATIONS = "workload.prefixes={kind: conversations, turns: 3, think_s: 2}"


def test_without_views_routers_see_what_is_true(load: Load) -> None:
    scenario = load()
    assert scenario.cluster.views is None
    assert "views" not in scenario.to_yaml()


def test_views_are_as_old_as_they_are_said_to_be_and_count_no_sends_unless_told(load: Load) -> None:
    scenario = load(load().to_yaml(), "cluster.views.refresh_s=0.05")
    views = scenario.cluster.views
    assert views is not None
    assert (views.refresh_s, views.counts_own_sends) == (0.05, False)
    assert load(scenario.to_yaml()) == scenario


def test_what_routers_see_changes_a_run_and_its_digest(load: Load, small: str) -> None:
    now, late = load(small, TWO), load(small, TWO, "cluster.views.refresh_s=5")
    assert now.digest != late.digest
    result = [simulate(scenario).summary["routing"]["outstanding_std"] for scenario in (now, late)]
    assert result[1] > 2 * result[0]


def test_weights_and_the_index_are_arguments_of_a_router(load: Load, small: str) -> None:
    weighted = load(small, "cluster.router={kind: weighted, kv: 0.5, index: exact}").build_router()
    assert isinstance(weighted, Weighted)
    assert (weighted.queue, weighted.kv, weighted.prefix, weighted.session) == (2.0, 0.5, 3.0, 0.0)
    affine = load(small, "cluster.router={kind: prefix_affinity, index: own_sends, index_tokens: 1000}").build_router()
    assert isinstance(affine, PrefixAffinity)
    assert affine.index_tokens == 1000


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cluster.views={}", "cluster.views.refresh_s: is missing"),
        ("cluster.views.refresh_s=0", "refresh_s=0: must be at least"),
        ("cluster.views.refresh_s=50000", "refresh_s=50000: must be at most 3600"),
        ("cluster.views={refresh_ms: 50}", "refresh_ms: unknown key"),
        ("cluster.refresh-metrics-interval=0.05", "unknown key; use cluster.views.refresh_s"),
        ("cluster.refresh_s=0.05", "unknown key; use cluster.views.refresh_s"),
        (
            "cluster.router={kind: weighted, queue: 0, kv: 0, prefix: 0}",
            "a weight must be more than 0, got none; give queue, outstanding, kv, prefix or session",
        ),
        ("cluster.router={kind: weighted, kv: -1}", "kv: must be at least 0, got -1"),
        ("cluster.router={kind: weighted, queues: 1}", "queues: unknown argument; did you mean queue?"),
        ("cluster.router={kind: weighted, index: guess}", "index: must be one of exact or own_sends, got 'guess'"),
        (
            "cluster.router={kind: prefix_affinity, index_tokens: 9}",
            "index_tokens is for index: own_sends, got 9; leave it out",
        ),
        (
            "cluster.router=session_affinity",
            "keeps the requests of a session together, and this workload has no sessions, got 'session_affinity'; "
            "give workload.prefixes: {kind: conversations, ...} or agents, or a trace with a session_id",
        ),
        (
            "cluster.router={kind: weighted, session: 2}",
            "session: 2}: cluster.router.session: keeps the requests of a session together, and this workload has no "
            "sessions, got 2; give workload.prefixes",
        ),
    ],
)
def test_what_makes_no_sense_is_a_mistake(messages_of: MessagesOf, small: str, override: str, message: str) -> None:
    sentence = messages_of(small, override)
    assert any(message in each for each in sentence), sentence


def test_the_decode_router_needs_sessions_too(messages_of: MessagesOf, small: str) -> None:
    pools = "cluster.pools=[{name: p, role: prefill}, {name: d, role: decode}]"
    (message,) = messages_of(small, pools, "cluster.decode_router=session_affinity")
    assert "cluster.decode_router=session_affinity" in message
    assert "this workload has no sessions" in message


def test_prompts_that_only_share_a_beginning_are_no_sessions(messages_of: MessagesOf, small: str) -> None:
    shared = "workload.prefixes={kind: shared, n_prefixes: 3, prefix_tokens: 64}"
    (message,) = messages_of(small, shared, "cluster.router=session_affinity")
    assert "this workload has no sessions" in message


def test_conversations_are_kept_together(load: Load, small: str) -> None:
    runs = [
        simulate(load(small, TWO, CONVERSATIONS, f"cluster.router={router}")).summary["routing"]
        for router in ("session_affinity", "{kind: weighted, session: 100}", "least_outstanding")
    ]
    kept = [result["session_kept_frac"] for result in runs]
    assert kept[:2] == [1.0, 1.0]
    assert kept[2] < 0.8


def test_a_trace_without_sessions_is_found_out_before_the_run(load: Load, tmp_path: Path) -> None:
    Path(tmp_path, "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,10,5\n", encoding="utf-8")
    text = "schema: simserve/1\nmodel: llama-3.1-8b\ngpu: h100-sxm\nworkload:\n  trace: {path: t.csv}\n"
    scenario = load(text, TWO, "cluster.router=session_affinity")
    rule = r"cluster\.router: keeps .* no column session_id, got 'session_affinity'; add the column, or use prefix"
    with pytest.raises(TraceError, match=rule):
        simulate(scenario)
    with_sessions = "arrival_s,prompt_tokens,output_tokens,session_id\n" + "".join(
        f"{i * 0.1},10,50,{name}\n" for i, name in enumerate(["a", "b", "a", ""])
    )
    Path(tmp_path, "t.csv").write_text(with_sessions, encoding="utf-8")
    served = simulate(load(text, TWO, "cluster.router=session_affinity")).requests
    assert np.array(served["replica"])[:3].tolist() == [0, 1, 0]
