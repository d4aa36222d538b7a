"""The option `--timeline` of `run` and `report`: a trace of chosen requests and their replicas."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from simserve.report.trace.trace import Chosen, DrawnTrace

Timeline = Annotated[
    Path | None, typer.Option("--timeline", metavar="FILE", help="Write a trace file for Perfetto (ui.perfetto.dev).")
]
TimelineRequests = Annotated[
    str,
    typer.Option(
        "--timeline-requests", metavar="ID,..|slowest:N", help="Requests to draw (ids, or the slowest by TTFT and E2E)."
    ),
]
SLOWEST_20 = "slowest:20"


def wanted(timeline: Path | None, requests: str, directory: Path) -> "dict[Path, Chosen]":
    """Return the requests to draw by the file for them, if any. Raises OutputError for bad options, before the run."""
    from simserve.errors import OutputError

    if timeline is None:
        if requests != SLOWEST_20:
            rule = "needs --timeline"
            raise OutputError(f"--timeline-requests: {rule}, got {requests} alone; add --timeline FILE")
        return {}
    if not timeline.absolute().parent.is_dir():
        raise OutputError(f"--timeline: must be in an existing folder, got {timeline}; create the folder first")
    if timeline.is_dir():
        raise OutputError(f"--timeline: must be a file, got the folder {timeline}; name a file in it")
    if timeline.resolve().parent == directory.resolve():
        rule = "must not be in the folder of the results"
        raise OutputError(f"--timeline: {rule}, got {timeline}; put it next to {directory}")
    return {timeline: _chosen(requests)}


def write(drawn: "Mapping[Path, DrawnTrace]") -> None:
    """Write traces, each into its file. Raises OutputError."""
    from simserve.tables.files import replace_text

    for file, each in drawn.items():
        replace_text(file, each.text)


def _chosen(requests: str) -> "Chosen":
    """Parse the requests to draw. Raises OutputError."""
    from simserve.errors import OutputError
    from simserve.report.trace.trace import Chosen

    kind, _, number = requests.partition(":")
    if kind == "slowest" and number.isdecimal() and int(number) > 0:
        return Chosen(slowest=int(number))
    ids = tuple(each.strip() for each in requests.split(",") if each.strip())
    if kind == "slowest" or not ids:
        raise OutputError(f"--timeline-requests: must be ids or slowest:N, got {requests!r}; try {SLOWEST_20} or 12,40")
    return Chosen(ids=ids)
