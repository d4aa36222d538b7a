"""docs/combinations.md lists every combination that a scenario refuses: each row is tried, each rule is in a row."""

import re
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import ScenarioError
from tests.scenario.rules_in_code import rules
from tests.scenario.test_not_together import (
    APART,
    KEEPS,
    LENGTHS,
    NGRAM,
    PUSH,
    SHARED,
    TIER,
    TURNS,
    USERS,
    scenario,
    separate,
)

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "docs" / "combinations.md").read_text(encoding="utf-8").partition("These combinations are refused")[2]
ROWS = [line.strip("|").split("|")[0].strip() for line in TABLE.splitlines() if line.startswith("| ")][1:]

Refused = tuple[str, dict[str, Any], list[dict[str, Any]], dict[str, Any]]
"""A rule of the code, and the workload, the pools and the cluster that break it."""

STATIC = {"scheduler": {"kind": "static"}}
TRTLLM = {"scheduler": {"kind": "trtllm", "capacity_scheduler_policy": "guaranteed_no_evict"}}
CLOSED = {"arrivals": None, "client": USERS}
ADMISSION = {"admission": {"kind": "queue_length", "max_outstanding": 4}}
BOTH = {"name": "b", "role": "both"}
OWN = {"classes": {"a": {"share": 1.0, "lengths": LENGTHS}}}
TRACE = {"trace": {"path": "t.csv"}, "arrivals": None, "lengths": None, "n_requests": None}
CACHES = {"enable_prefix_caching": True}
NOT_CACHING = {"enable_prefix_caching": False}
OF_SESSIONS = "keeps the requests of a session together, and this workload has no sessions"
UNUSED = "nothing would use host memory: requests are not swapped and prefixes are not offloaded"
NEVER_PREEMPTS = "this policy reserves all blocks at admission, so it never preempts"
PADDED = "{} pads whole batches, so its requests cannot get several tokens per step"
ITS_LENGTHS = "a trace brings its own lengths"


def tier(**keys: Any) -> dict[str, Any]:
    return {"host_tier": TIER | keys}


REFUSED: dict[str, list[Refused]] = {
    "speculation × `static`, `dynamic`": [
        (PADDED, {}, [{"speculation": NGRAM, "scheduler": {"kind": kind}}], {}) for kind in ("static", "dynamic")
    ],
    "`ngram` × async scheduling": [
        (
            "{} proposes from tokens on the host, so no step is planned ahead",
            {},
            [{"speculation": NGRAM, "engine": {"name": "vllm", "async_scheduling": True}}],
            {},
        )
    ],
    "host memory that swaps × policies that reserve, or prefill pools": [
        (NEVER_PREEMPTS, {}, [tier(preemption="swap") | STATIC], {}),
        (NEVER_PREEMPTS, {}, [tier(preemption="swap") | TRTLLM], {}),
        ("prefill pools do not decode", {}, separate(tier(preemption="swap"), {}), {}),
    ],
    "host memory that swaps × `scope: pool`": [
        (
            "a store that replicas share holds prefixes; a swapped request is of use to its own replica only",
            {},
            [tier(preemption="swap", scope="pool") | CACHES],
            {},
        )
    ],
    "host memory without swaps × without offloaded prefixes": [
        (UNUSED, {}, [tier(preemption="recompute") | NOT_CACHING], {}),
        (UNUSED, {}, [tier(preemption="recompute", offload_prefixes=False) | CACHES], {}),
        (UNUSED, {}, [tier(scope="pool") | NOT_CACHING], {}),
        (UNUSED, {}, [tier() | STATIC], {}),
        (UNUSED, {}, separate(tier() | NOT_CACHING, {}), {}),
    ],
    "`offload_prefixes` × pools without a prefix cache": [
        ("this pool caches no prefixes", {}, [tier(offload_prefixes=True) | NOT_CACHING], {})
    ],
    "`disk`, `reads` × host memory without offloaded prefixes": [
        ("is for prefixes, and none are offloaded", {}, [tier(**key) | NOT_CACHING], {})
        for key in ({"disk": {"bytes": 1e12, "bytes_per_s": 5e9}}, {"reads": "overlap"})
    ],
    "prefix caching × `static`, `dynamic`, `continuous`": [
        (
            "this policy gives each request memory in one piece, so prefixes are not shared there",
            {},
            [CACHES | {"scheduler": {"kind": kind}}],
            {},
        )
        for kind in ("static", "dynamic", "continuous")
    ],
    "`parallel.balance` × pools without ranks in lockstep": [
        (
            "is for data-parallel ranks that step together, and this pool has none",
            {},
            [{"parallel": {"data": 2, "balance": {"timeout_iters": 2, "batching_wait_iters": 0}}}],
            {},
        )
    ],
    "`static`, `dynamic`, policies that reserve × roles, `migrate: with_kv`": [
        ("a {} pool exchanges requests one at a time, and {} runs whole batches", {}, separate(STATIC, {}), {}),
        (
            "a {} pool holds a prompt or an answer, and this policy reserves blocks for both",
            {},
            separate({}, TRTLLM),
            {},
        ),
    ],
    "prefill pools × decode pools of another model": [
        (
            "prefill and decode pools must run the same model, as the KV cache of one serves the other",
            {},
            separate({}, {"model": "qwen3-32b"}),
            {},
        )
    ],
    "`transfer: by_chunk`, `by_layer` × `how: pull`": [
        (
            "a pull transfers the whole KV cache of a prompt after its prefill",
            {},
            APART,
            {"kv_link": {"bytes_per_s": 1e9, "how": "pull", "transfer": transfer}},
        )
        for transfer in ("by_chunk", "by_layer")
    ],
    "`kv_link`, `decode_router`, `disaggregate` × pools of role `both` alone": [
        ("is for pools with role prefill and decode", {}, [{}], cluster)
        for cluster in (PUSH, KEEPS, {"decode_router": {"kind": "round_robin"}})
    ],
    "pools of role `both` × prefill pools with `always`": [
        (
            "a role: both pool needs requests that are not disaggregated, and all are",
            {},
            [*APART, BOTH],
            {"disaggregate": {"kind": "always"}},
        )
    ],
    "`mixed` × pools of role `both`": [("never sends requests to a role: both pool", {}, [*APART, BOTH], KEEPS)],
    "`session_affinity`, and `weighted` with `session` × loads without sessions": [
        (OF_SESSIONS, {}, [{"replicas": 2}], {"router": "session_affinity"}),
        (OF_SESSIONS, {}, [{"replicas": 2}], {"router": {"kind": "weighted", "session": 1.0}}),
    ],
    "admission × closed loops without `workload.retries.backoff_s` above 0": [
        ("a closed-loop client that is rejected retries at once, endlessly", CLOSED, [{}], ADMISSION)
    ],
    "admission × closed loops with `workload.retries.budget_frac`": [
        (
            "a closed-loop client without a token sends its next request at once, endlessly",
            CLOSED | {"retries": {"budget_frac": 0.1}},
            [{}],
            ADMISSION,
        )
    ],
    "retries × neither timeouts nor admission": [
        ("retries need requests that are rejected or time out", {"retries": {"max_attempts": 2}}, [{}], {})
    ],
    "`conversations` with `next_turn: after_arrival` × closed loops": [
        (
            "needs arrivals, as it sets arrival times; closed-loop clients send when they are answered",
            CLOSED | {"prefixes": TURNS | {"next_turn": "after_arrival"}},
            [{}],
            {},
        )
    ],
    "`lengths` of a class × `prefixes`": [
        ("with prefixes, lengths are drawn before requests get their class", OWN | {"prefixes": SHARED}, [{}], {})
    ],
    "a trace × `lengths`, `prefixes`, `lengths` of a class": [
        (ITS_LENGTHS, TRACE | {"lengths": LENGTHS}, [{}], {}),
        (ITS_LENGTHS, TRACE | OWN, [{}], {}),
        ("a trace brings its own prefixes", TRACE | {"prefixes": SHARED}, [{}], {}),
    ],
}
"""What breaks each row of the page."""

ALONE = {
    "{} proposes with a layer like those that attend, and {} has none",
    "a pool with a role keeps its model, as its KV cache serves the other",
    "a step verifies {} tokens of each of {}, {}, and {} is {}",
    "a {} pool needs a {} pool",
    "at_s + over_s must be at most workload.duration_s, {}",
    "cannot be read: {}",
    "cluster.autoscaler scales this pool, too",
    "give warmup_s or warmup_requests, not both",
    "is for cluster.autoscaler, which scales several pools",
    "is for draft_model or eagle, not {}",
    "is for the first sessions of users, and there are none",
    "is for times of the trace, and others begin its sessions",
    "is for turns that follow answers, and these come at their own times",
    "is missing",
    "is required for draft_model",
    "is sharded as its target is: parallel.tensor must divide its {} heads",
    "mtp needs a layer that predicts further tokens, and {} has none",
    "multiplies blocks with scales, as cards with a rate for fp4 do, and {} has none",
    "must be a pool with role: {}",
    "must be at most the {} tokens of the draft model {}",
    "must be less than e2e_s, {}, or it never applies",
    "must be less than workload.n_requests, {}",
    "must be less than {}",
    "must be one of the pools",
    "must be one rate, or one for each of the {} tokens",
    "must be smaller than its target {}; their weights take {}",
    "must be text",
    "must be {}, as {} is of that kind",
    "must differ from other pools' names",
    "must differ from the pools' names",
    "must divide {}, {}: the GPUs of a replica share the experts",
    "must end",
    "must have the hidden size of {}, {}, as a head reads its layers",
    "must have {}, which verifies its proposals, not {}",
    "must hold a block of {} tokens, {} bytes of all its GPUs",
    "must hold a block of {} tokens{}, {} bytes of each GPU",
    "must name the pools that it scales",
    "needs a target",
    "needs exactly one of arrivals, trace and client",
    "needs exactly one of arrivals, trace and client, and has {}",
    "needs experts in mxfp4; those in int4 run by Marlin anyway",
    "needs ttft_s, e2e_s or both",
    "no request is of this class",
    "one replay gives no interval",
    "shares must sum to one",
    "stays that of pool {} in a roll-out",
    "the file {} has changed: its SHA-256 is now {}",
    "the load ends by duration_s or by n_requests, not both",
    "the time to launch a kernel under engine {} is not known",
    "has nothing to hide: no rank exchanges tokens with others by DeepEP or all_to_all",
    "there is no such file",
    "there is no such pool",
    "with max_unavailable: 0 replaces nothing",
    "gives some of its steps a traffic_frac, and others none",
    "{} has links of kind {}; only those on PCIe choose peer access (switch) or host",
    "{} has no experts",
}
"""Rules about one key, several ways to say one thing, a model or a card: no mechanisms that do not go together."""


def test_each_rule_of_the_code_is_in_a_row_of_the_page_or_is_about_one_thing_alone() -> None:
    in_rows = {rule for several in REFUSED.values() for rule, *_ in several}
    assert {*rules()} == in_rows | ALONE
    assert not in_rows & ALONE


def test_each_row_of_the_page_is_tried() -> None:
    assert [*REFUSED] == ROWS


@pytest.mark.parametrize(
    "refused", [refused for several in REFUSED.values() for refused in several], ids=lambda refused: refused[0]
)
def test_a_combination_of_the_page_is_refused_by_its_rule(refused: Refused) -> None:
    rule, workload, pools, cluster = refused
    with pytest.raises(ScenarioError) as error:
        scenario(workload, *pools, **cluster)
    pattern = re.escape(rule).replace(r"\{\}", ".*")
    assert any(re.fullmatch(pattern, problem.rule) for problem in error.value.problems), str(error.value)
