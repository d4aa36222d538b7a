"""The reference says of each column when it is null: each claim is read and held against runs of all mechanisms."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest

from simserve import Results, Scenario, simulate
from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Offered, Patience
from simserve.engine.tabulate import tabulate
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from tests.agreement import request_table
from tests.doubles import MS, LineCost, replica_setup, trace
from tests.oracle_fleet import Change, Script
from tests.tables.test_outputs_page import section
from tests.test_outputs_reference import items

JOB_TOKENS = 77
"""Prompts of the batch job, and of no other request."""

Table = Literal["requests", "steps", "spans"]
TABLES: tuple[Table, ...] = ("requests", "steps", "spans")

LENGTHS = {"kind": "uniform", "prompt_tokens": [100, 3000], "output_tokens": [1, 40]}
LONG = {"kind": "uniform", "prompt_tokens": [100, 400], "output_tokens": [50, 250]}
JOB = {"n_requests": 5, "lengths": {"kind": "fixed", "prompt_tokens": JOB_TOKENS, "output_tokens": 9}}
TURNS = {"kind": "conversations", "turns": 3, "think_s": 0.1, "next_turn": "after_answer"}
LIMITS = {"timeout": {"ttft_s": 0.5, "e2e_s": 1.0}, "retries": {"max_attempts": 2}}
APART: list[dict[str, Any]] = [{"name": "p", "role": "prefill", "max_model_len": 2900}, {"name": "d", "role": "decode"}]
SWAPS = {"num_gpu_blocks": 400, "max_model_len": 4000, "host_tier": {"bytes": 64e9, "preemption": "swap"}}
FEW = {"num_gpu_blocks": 250, "max_model_len": 4000, "scheduler": {"kind": "chunked", "max_num_seqs": 8}}
KEEPS = {"kind": "mixed", "max_prefill_waiting": 2, "max_decode_kv_frac": 0.5}
SHARED = {"kind": "shared", "n_prefixes": 2, "prefix_tokens": 500}
SPECULATES: dict[str, Any] = {
    "speculation": {"kind": "ngram", "tokens": 3, "acceptance": 0.5},
    "parallel": {"pipeline": 2},
    "enable_prefix_caching": True,
    "host_tier": {"bytes": 4e9},
}
STATIC = {"scheduler": {"kind": "static", "batch_size": 8}}


@dataclass(frozen=True)
class Run:
    """A run, and what its load has: columns of its requests, and of those of its batch job."""

    results: Results
    given: tuple[str, ...] = ()
    of_jobs: tuple[str, ...] = ()
    is_split: bool = False
    """Decode replicas compute prompts too."""

    @cached_property
    def requests(self) -> pd.DataFrame:
        """The table of requests, with the role of each request's replica and its number of spans."""
        table, facts = self.results.requests, self.results.facts
        roles = np.array([facts.pools[pool].role for pool in facts.replica_pool])[table.replica.fillna(0).astype(int)]
        n_spans = self.results.spans.groupby("request_id").size().reindex(table.index, fill_value=0)
        return table.assign(decoded_elsewhere=(roles == "decode") & table.replica.notna(), n_spans=n_spans)


def simulated(
    workload: dict[str, Any], *pools: dict[str, Any], how: dict[str, Any] | None = None, **cluster: Any
) -> Results:
    load = {"arrivals": {"kind": "poisson", "rate_per_s": 40}, "lengths": LENGTHS, "n_requests": 100} | workload
    cluster |= {"pools": [*pools]} | ({"kv_link": {"bytes_per_s": 2e9} | how} if how else {})
    data = {"schema": "simserve/1", "model": "llama-3.1-8b", "gpu": "h100-sxm", "cluster": cluster, "workload": load}
    slo = {"slo": {"ttft_s": 1}} if how else {}
    return simulate(Scenario.from_dict(data | slo | {"measure": {"replays": 0, "warmup_s": 0}}))


def failing() -> Results:
    """Lose a decode replica while prompts are computed for it, and send again what has no token."""
    setup = replica_setup(Chunked(max_num_batched_tokens=40, max_num_seqs=9), LineCost(step=MS, token=MS // 20))
    roles = [replace(setup, role=role) for role in ("prefill", "decode", "decode")]
    changes = [Change(60 * MS, "fail", 1), Change(90 * MS, "resend", 1), Change(120 * MS, "join", 1)]
    load = trace([0.004 * i for i in range(60)], [60] * 60, [20] * 60)
    how = Disaggregation(RoundRobin(), LinkSpec(1e-6, MS, n_layers=4), is_pushed=True)
    offered, script = Offered(load, patience=Patience(e2e_ps=400 * MS)), Script(changes, roles)
    cluster = Cluster(roles, RoundRobin(), offered, 0, disaggregation=how, control=script)
    run_cluster(cluster, MS)
    ranks = len(cluster.replicas)
    run = tabulate(cluster, np.arange(ranks, dtype=np.int32), tuple(f"p{i}" for i in range(ranks)))
    return Results.from_run(run, request_table(cluster, how)[1], "")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs of all that makes a column null, or a request end otherwise."""
    file = tmp_path_factory.mktemp("load") / "trace.csv"
    lines = [f"{0.1 * i:.1f},200,9,20,chat-{i % 3},{i // 3 + 1}" for i in range(12)]
    file.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,max_tokens,session_id,turn", *lines]))
    recorded = {"trace": {"path": str(file)}, "arrivals": None, "lengths": None, "n_requests": None, "batch": JOB}
    classes = {"chat": {"share": 0.5}, "code": {"share": 0.5}}
    chats = {"prefixes": TURNS, "batch": JOB, "tenants": {"a": 0.5, "b": 0.5}, "classes": classes, **LIMITS}
    turns = ("session_id", "turn", "session_requests", "slo_class", "tenant")
    return {
        "plain": Run(simulated({"max_tokens": 30}, {}), ("max_tokens",)),
        "gives_up": Run(simulated(LIMITS, FEW)),
        "static": Run(simulated({"timeout": {"e2e_s": 2.0}}, STATIC)),
        "chats": Run(simulated(chats, {}), turns, ("slo_class", "session_requests")),
        "replays": Run(simulated(recorded, {}), ("max_tokens", "session_id", "turn"), ("slo_class",)),
        "swaps": Run(simulated({"lengths": LONG}, SWAPS)),
        "pull": Run(simulated({"drain_limit_s": 0.2}, *APART, how={"how": "pull"})),
        "push": Run(simulated(LIMITS, *APART, how={"how": "push"})),
        "by_layer": Run(simulated(LIMITS, *APART, how={"how": "push", "transfer": "by_layer"})),
        "keeps": Run(simulated(LIMITS, *APART, how={"how": "pull"}, disaggregate=KEEPS), is_split=True),
        "speculates": Run(simulated({"prefixes": SHARED}, SPECULATES)),
        "fails": Run(failing()),
    }


def status(run: Run, *names: str) -> Any:
    return run.requests.status.isin(names)


def lacks(run: Run, column: str) -> Any:
    """Return which requests lack a column of the load."""
    is_job = run.requests.prompt_tokens == JOB_TOKENS
    return (is_job & (column not in run.of_jobs)) | (~is_job & (column not in run.given))


def never_came(run: Run, column: str) -> Any:
    """Return which clients never had a first or a last token; not known of those in transfer at the end of the run."""
    if column == "finish_s" or not run.results.facts.pools[0].streamed:
        return ~status(run, "finished")
    join_s = run.results.spans.groupby("request_id").join_s.min().reindex(run.requests.index)
    is_late = join_s + run.results.facts.respond_s > run.requests.gave_up_s.fillna(np.inf)
    return (join_s.isna() | is_late).astype("boolean").mask(status(run, "unfinished") & join_s.isna())


def never_handed_off(run: Run, _: str) -> Any:
    """Return which requests are not on a decode replica; not known of those there whose prompt may be its own."""
    is_here = run.requests.decoded_elsewhere
    return (~is_here).astype("boolean").mask(is_here & run.requests.transfer_s.eq(0) & run.is_split)


def never_computed(run: Run, _: str) -> Any:
    """Return which requests had no step; not known where steps were lost, or the run ended before they did."""
    had_none = ~status(run, "finished") & run.requests.wasted_tokens.eq(0)
    return had_none.astype("boolean").mask(status(run, "failed", "unfinished"))


def nothing_to_report(run: Run, _: str) -> Any:
    """Return which requests were answered as asked; not known of answers as long as their limit."""
    return status(run, "finished").astype("boolean").mask(run.requests.output_tokens == run.requests.max_tokens)


def nothing_waits(run: Run, _: str) -> Any:
    """Return the steps without a queue; not known of others."""
    is_empty = run.results.steps.queue_len.eq(0)
    return is_empty.astype("boolean").mask(~is_empty)


CLAIMS: dict[str, Callable[[Run, str], Any]] = {
    "if it set none": lacks,
    "if the request has none": lacks,
    "unless requests wait for other answers": lacks,
    "when there is nothing to report": nothing_to_report,
    "if it never ran": lambda run, _: run.requests.scheduled_s.isna(),
    "if it never did": never_came,
    "unless it was handed off": never_handed_off,
    "if none did": never_computed,
    "where `scheduled_s` is": lambda run, _: run.requests.scheduled_s.isna(),
    "where `first_token_s` is": lambda run, _: run.requests.first_token_s.isna(),
    "where `finish_s` is": lambda run, _: run.requests.finish_s.isna(),
    "for one output token or an unfinished request": lambda run, _: (
        run.requests.output_tokens.eq(1) | ~status(run, "finished")
    ),
    "without an SLO": lambda run, _: pd.Series(not run.results.facts.slo, run.requests.index),
    "otherwise": lambda run, _: ~status(run, "timed_out", "failed"),
    "unless it finished": lambda run, _: ~status(run, "finished"),
    "if nothing did": nothing_waits,
}
"""What the page says after "null", and the rows of a run in which a column then is null; NA where that is not known."""


def claims() -> list[tuple[Table, str, str | None]]:
    """Return each column, and what the page says about its nulls; None: nothing, so that it has none."""
    result: list[tuple[Table, str, str | None]] = []
    for table in TABLES:
        for column, (_, _, meaning) in items(f"{table}.parquet").items():
            assert meaning.count("null") <= 1, f"{column}: one claim a row"
            claim = re.search(r"\bnull (.*?)(?: \(|[;.]|$)", meaning)
            result.append((table, column, claim and claim[1]))
    return result


@pytest.mark.parametrize(("table", "column", "claim"), claims())
def test_a_column_is_null_where_the_page_says_so_and_nowhere_else(
    table: Table, column: str, claim: str | None, runs: dict[str, Run]
) -> None:
    for name, run in runs.items():
        is_null = getattr(run.results, table)[column].isna()
        if claim is None:
            assert not is_null.any(), (name, column)
        else:
            expected = pd.Series(CLAIMS[claim](run, column)).astype("boolean")
            wrong = is_null.index[(is_null.astype("boolean") != expected).fillna(False)]
            assert wrong.empty, (name, column, claim, run.requests.loc[wrong[:3]].T.to_string())


def test_each_claim_is_tried_both_ways(runs: dict[str, Run]) -> None:
    """Some rows are null and some are not, in one run or another, so that no claim holds for want of cases."""
    for table, column, claim in claims():
        is_null = pd.concat([getattr(run.results, table)[column].isna() for run in runs.values()])
        assert claim is None or 0 < is_null.sum() < len(is_null), column
    ends = pd.concat([run.requests.status.astype(str) for run in runs.values()])
    assert set(ends) == {"finished", "rejected", "timed_out", "failed", "unfinished"}


@pytest.mark.parametrize("name", ["plain", "gives_up", "swaps", "pull", "push", "keeps", "speculates", "fails"])
def test_spans_are_those_of_prefills_and_of_returns_from_host_memory(name: str, runs: dict[str, Run]) -> None:
    """Each decode step gives its requests a token in a span, or as the first token after a return."""
    assert "one per return from host memory" in section("spans.parquet")
    requests, steps, spans = runs[name].requests, runs[name].results.steps, runs[name].results.spans
    n_returns = spans.request_id.duplicated().sum() if name == "swaps" else 0
    assert (n_returns > 20) == (name == "swaps") and (requests.n_swaps.sum() > 20) == (name == "swaps")
    in_spans = (spans.last_step - spans.first_step + 1).sum()
    assert (steps.decode_requests * steps.n_steps).sum() == in_spans + n_returns


def test_a_request_in_transfer_when_the_run_ends_has_no_span(runs: dict[str, Run]) -> None:
    assert "on its way to a decode replica when the run ends has no row yet" in section("spans.parquet")
    for name, run in runs.items():
        without = run.requests[run.requests.first_token_s.notna() & run.requests.n_spans.eq(0)]
        assert set(without.status) == ({"unfinished"} if name == "pull" else set()), name
        assert without.prefill_replica.notna().all()
