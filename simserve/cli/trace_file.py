"""What `run` and `report` share: `--timeline`, a trace of chosen requests and their replicas."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from simserve.report.trace.trace import Chosen

Timeline = Annotated[
    Path | None,
    typer.Option(
        "--timeline", metavar="FILE", help="Write a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."
    ),
]
TimelineRequests = Annotated[
    str,
    typer.Option("--timeline-requests", metavar="ID,..|slowest:N", help="Its requests: the slowest by TTFT and E2E."),
]
SLOWEST_20 = "slowest:20"


def check(timeline: Path | None, requests: str, directory: Path) -> "Chosen":
    """Whose requests are asked for. Raises OutputError for a file that cannot be, before anything is computed."""
    from simserve.errors import OutputError
    from simserve.report.trace.trace import Chosen

    if timeline is not None:
        if not timeline.absolute().parent.is_dir():
            raise OutputError(f"--timeline: must be in a folder that is there, got {timeline}; make the folder first")
        if timeline.is_dir():
            raise OutputError(f"--timeline: must be a file, got the folder {timeline}; name a file in it")
        if timeline.resolve().parent == directory.resolve():
            rule = "must not be in the folder of the results, which holds nothing else"
            raise OutputError(f"--timeline: {rule}, got {timeline}; put it beside {directory}")
    kind, _, number = requests.partition(":")
    if kind == "slowest" and number.isdecimal() and int(number) > 0:
        return Chosen(slowest=int(number))
    ids = tuple(each.strip() for each in requests.split(",") if each.strip())
    if kind == "slowest" or not ids:
        raise OutputError(f"--timeline-requests: must be ids or slowest:N, got {requests!r}; try {SLOWEST_20} or 12,40")
    return Chosen(ids=ids)
