"""Traffic: the sections and rules of classes, tenants and batch jobs, and of clients that wait, give up and retry."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from simserve.catalog.types import Count, Finite, Name, NotNegative, PluginSpec, Positive, Priority, Section, Share
from simserve.plugins.validation import Path, as_json, problems_of
from simserve.scenario.draft import Draft
from simserve.units import LONGEST_S
from simserve.workload.amounts import Time

ADMISSION: Path = ("cluster", "admission")


class Timeout(Section):
    """How long clients wait before they give up on a request."""

    ttft_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    """[s] Limit for the first token; null: none."""
    e2e_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    """[s] Limit for the whole answer; null: none."""
    then: Literal["end_session", "next_turn"] = "end_session"
    """What the client of a session does after its last attempt: it leaves (`end_session`), or goes on as if it had been
    answered (`next_turn`)."""


class Retries(Section):
    """How clients retry requests that were rejected or timed out. The defaults are those of OpenAI's client
    (_constants.py and _base_client.py)."""

    max_attempts: Annotated[int, Field(ge=2, le=1000)] = 3
    """Attempts in all, including the first."""
    backoff_s: Annotated[NotNegative, Field(le=86_400)] = 0.5
    """[s] Delay before the second attempt."""
    multiplier: Annotated[Finite, Field(ge=1, le=1000)] = 2.0
    """Factor between one delay and the next."""
    max_backoff_s: Annotated[NotNegative, Field(le=86_400)] = 8.0
    """[s] Upper bound of the delay."""
    jitter: Annotated[Finite, Field(ge=0, le=1)] = 0.25
    """[share] Largest share by which each delay is shortened at random."""
    budget_frac: Share | None = None
    """[share] Most retries of all clients, as a share of first attempts: each of these adds as much of a token to a
    bucket, and each retry takes one, else it gives up (Finagle's RetryBudget, 0.2 by default). null: no limit."""
    budget_burst: Annotated[int, Field(ge=1, le=10**6)] = 10
    """Most tokens of the bucket, which is full at first; both as in the example of gRPC's A6-client-retries.md."""


class TrafficClass(Section):
    """Requests of one class."""

    share: Share
    """[share] Share of all requests, or of all conversations; those of all classes sum to 1."""
    priority: Priority = 0
    """Priority for schedulers that use it; lower values go first."""
    lengths: PluginSpec | None = None
    """Lengths of this class; null: those of the workload."""


class Batch(Section):
    """Batch jobs next to the interactive load."""

    n_requests: Count
    """Requests of each job."""
    lengths: PluginSpec
    """Lengths of prompts and answers of the job."""
    at_s: NotNegative | Annotated[tuple[NotNegative, ...], Field(min_length=1)] = 0.0
    """[s] Start of the job; a list starts a job at each of these times."""
    over_s: NotNegative = 0.0
    """[s] Time over which a job's requests are sent evenly; 0 sends them all at once."""
    slo_class: Name = "batch"
    """Class of the requests, for `slo.classes`."""
    priority: Priority = 1
    """Priority of the requests; lower values go first."""
    tenant: Name | None = None
    """Tenant of the requests; null: none."""


class ClosedLoop(Section):
    """Clients that each wait for the answer before sending the next request."""

    kind: Literal["closed_loop"] = "closed_loop"
    """Kind of clients; only closed_loop."""
    concurrency: Count
    """Number of clients; each sends its next request, or begins its next session, when it is answered (`vllm bench
    serve --max-concurrency`)."""
    think_s: Time | None = None
    """[s] Think time from an answer to the client's next request, or between sessions; null: none."""


def check_shares(draft: Draft, shares: Mapping[str, float]) -> None:
    """Check that the shares of classes or tenants sum to one."""
    total = math.fsum(shares.values())
    if shares and not draft.touched() and abs(total - 1) > 1e-9:
        remedy = f"make the shares of {' and '.join(shares)} come to 1"
        draft.problem((), "shares must sum to one", round(total, 9), remedy)


def check_lengths(draft: Draft, classes: Mapping[str, TrafficClass], *, has_trace: bool, has_prefixes: bool) -> None:
    """Check that lengths of a class can be drawn for each request on its own."""
    for name, part in classes.items():
        if part.lengths is None:
            continue
        if has_trace:
            draft.problem((name, "lengths"), "a trace brings its own lengths", None, "leave it out")
        elif has_prefixes:
            rule = "with prefixes, lengths are drawn before requests get their class"
            draft.problem((name, "lengths"), rule, None, "leave it out, or leave out workload.prefixes")


def check_batch(draft: Draft, batch: Batch | None, duration_s: float | None) -> None:
    """Check that batch jobs end before the load."""
    if batch is None or draft.touched():
        return
    last_s = (max(batch.at_s) if isinstance(batch.at_s, tuple) else batch.at_s) + batch.over_s
    if duration_s is not None and last_s > duration_s:
        rule = f"at_s + over_s must be at most workload.duration_s, {duration_s:g}"
        draft.problem((), rule, last_s, "the load ends there")


def check_clients(
    draft: Draft, timeout: Timeout | None, retries: Retries | None, *, is_closed: bool, has_admission: bool
) -> None:
    """Check that timeouts, retries and admission do not contradict each other; clients of a closed loop wait."""
    _check_timeout(draft.below("timeout"), timeout)
    is_idle = retries is not None and timeout is None and not has_admission
    if is_idle and not (draft.touched("timeout") or draft.problems.touch(ADMISSION)):
        rule = "retries need requests that are rejected or time out"
        draft.problem(("retries",), rule, None, "give workload.timeout or cluster.admission, or leave it out")
    if not has_admission or not is_closed or draft.touched("retries"):
        return
    if retries is None or not retries.backoff_s:
        rule = "a closed-loop client that is rejected retries at once, endlessly"
        draft.root.problem(ADMISSION, rule, None, "give workload.retries with a backoff_s above 0")
    elif retries.budget_frac is not None:
        rule = "a closed-loop client without a token sends its next request at once, endlessly"
        draft.problem(("retries", "budget_frac"), rule, None, "leave it out, or leave out cluster.admission")


def _check_timeout(draft: Draft, timeout: Timeout | None) -> None:
    if timeout is None or draft.touched():
        return
    if timeout.ttft_s is None and timeout.e2e_s is None:
        draft.problem((), "needs ttft_s, e2e_s or both", None, "for example {ttft_s: 10, e2e_s: 60}")
    elif timeout.ttft_s is not None and timeout.e2e_s is not None and timeout.ttft_s >= timeout.e2e_s:
        rule = f"must be less than e2e_s, {timeout.e2e_s:g}, or it never applies"
        draft.problem(("ttft_s",), rule, timeout.ttft_s, "lower it, or leave it out")


def resolve_client(draft: Draft, client: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the checked closed loop."""
    if client is None:
        return None
    try:
        return ClosedLoop.model_validate_json(as_json(client), strict=True).model_dump(exclude_none=True)
    except ValidationError as error:
        draft.problems.extend(problems_of(error, client), draft.at)
        return dict(client)
