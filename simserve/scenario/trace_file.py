"""The trace section: a recorded load, its path and its hash."""

import hashlib
from typing import Annotated, Literal

from pydantic import Field

from simserve.catalog.types import Name, Positive, Section
from simserve.input_files import open_file
from simserve.scenario.draft import Draft


class TraceFile(Section):
    """A recorded load to replay."""

    path: str
    """Path of the file, looked up beside the scenario, then in the current directory."""
    format: Literal["auto", "azure", "mooncake", "burstgpt", "vllm", "simserve", "log", "prometheus"] = "auto"
    """Format of the file; `auto` finds it by the first lines."""
    columns: dict[Name, str] = {}
    """Columns of a log by ours, `{arrival_s: startTime}`, where their names do not tell."""
    rate_scale: Positive = 1.0
    """Factor on the speed of replay; 2 replays the file twice as fast."""
    spread: Literal["none", "uniform"] = "none"
    """`uniform`: requests with the same timestamp are spread over the time to the next one; `none`: they stay."""
    next_turn: Literal["after_arrival", "after_answer"] = "after_arrival"
    """When a session's next request is sent: as recorded (`after_arrival`), or after the answer and the recorded think
    time (`after_answer`)."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the file: a resolved scenario replays the same load, or reports that the file has changed; null: not
    checked."""


def resolve_trace(draft: Draft, trace: TraceFile | None) -> TraceFile | None:
    """Return the trace with its absolute path and hash."""
    if trace is None or draft.problems.knows((*draft.at, "path")):
        return trace
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
