"""The trace of a workload: its section and rules, and those of the sessions in it."""

import hashlib
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from simserve.catalog.types import Chance, Name, Positive, Section
from simserve.input_files import open_file
from simserve.scenario.draft import Draft
from simserve.units import LONGEST_S
from simserve.workload.amounts import in_order

MAX_GAP_S = 10.0
"""Longest time between requests of a session that others begin; as in AgentX."""


class TraceFile(Section):
    """A recorded load to replay."""

    path: str
    """Path of the file, looked up beside the scenario, then in the current directory."""
    format: Literal["auto", "azure", "mooncake", "burstgpt", "vllm", "simserve", "log", "prometheus", "weka"] = "auto"
    """Format of the file; `auto` finds it by the first lines."""
    columns: dict[Name, str] = {}
    """Columns of a log by ours, `{arrival_s: startTime}`, where their names do not tell."""
    rate_scale: Positive = 1.0
    """Factor on the speed of replay; 2 replays the file twice as fast."""
    spread: Literal["none", "uniform"] = "none"
    """`uniform`: requests with the same timestamp are spread over the time to the next one; `none`: they stay."""
    next_turn: Literal["after_arrival", "after_answer"] = "after_arrival"
    """When a session's next request is sent: as recorded (`after_arrival`), or after the answer and the recorded think
    time (`after_answer`): then arrivals or a client may begin the sessions, again and again."""
    max_gap_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    """[s] Longest time from one request of a session to the next; longer ones are cut. null: 10 where arrivals or a
    client begin the sessions, else no limit."""
    start_frac: Annotated[tuple[Chance, Chance], AfterValidator(in_order)] | None = None
    """[share] Bounds of where the first session of each user is taken up, drawn from its time; null: 0 to 1."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the file: a resolved scenario replays the same load, or reports that the file has changed; null: not
    checked."""


def resolve_trace(draft: Draft, trace: TraceFile | None, arrivals: object, client: object) -> TraceFile | None:
    """Return the trace with its absolute path and hash, and the rules for sessions that arrivals or a client begin."""
    if trace is None or draft.problems.knows((*draft.at, "path")):
        return trace
    _check_sessions(draft, trace, arrivals, client)
    if arrivals is not None or client is not None:
        start_frac = None if client is None else trace.start_frac or (0.0, 1.0)
        trace = trace.model_copy(update={"max_gap_s": trace.max_gap_s or MAX_GAP_S, "start_frac": start_frac})
    path = draft.find_file(trace.path)
    if path is None:
        draft.problem(("path",), "there is no such file", trace.path, f"looked in {draft.looked_in()}")
        return trace
    try:
        with open_file(path) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        draft.problem(("path",), f"cannot be read: {error.strerror}", trace.path)
        return trace
    if trace.sha256 is not None and trace.sha256 != sha256:
        remedy = "restore it, or remove this line to replay what is there now"
        draft.problem(("sha256",), f"the file {path.name} has changed: its SHA-256 is now {sha256}", None, remedy)
    draft.set_origin(("sha256",), "the file")
    return trace.model_copy(update={"path": str(path), "sha256": sha256})


def _check_sessions(draft: Draft, trace: TraceFile, arrivals: object, client: object) -> None:
    """Check the keys for sessions."""
    if draft.touched():
        return
    if trace.max_gap_s is not None and trace.next_turn == "after_arrival":
        rule = "is for turns that follow answers, and these come at their own times"
        draft.problem(("max_gap_s",), rule, trace.max_gap_s, "give next_turn: after_answer, or leave it out")
    if trace.start_frac is not None and client is None:
        rule = "is for the first sessions of users, and there are none"
        draft.problem(("start_frac",), rule, [*trace.start_frac], "give workload.client, or leave it out")
    for key, value, own in (("rate_scale", trace.rate_scale, 1.0), ("spread", trace.spread, "none")):
        if value != own and (arrivals is not None or client is not None):
            rule = "is for times of the trace, and others begin its sessions"
            draft.problem((key,), rule, value, "leave it out; give more arrivals or users")
