"""What `run` and `report` share: `--timeline`, a trace of chosen requests and their replicas."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from simserve.metrics.results import Results
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


@dataclass(frozen=True)
class TraceRequest:
    """A trace that is wanted."""

    file: Path
    chosen: "Chosen"

    def draw(self, results: "Results") -> "PendingTrace":
        """Raises OutputError where no such requests are in the run."""
        from simserve.report.trace.trace import trace

        drawn = trace(results, self.chosen)
        return PendingTrace(self.file, drawn.text, [drawn.cut] if drawn.cut else [])


@dataclass(frozen=True)
class PendingTrace:
    """A trace that is not written yet."""

    file: Path
    text: str
    left_out: list[str]
    """To be said."""

    def write(self) -> None:
        """Raises OutputError."""
        from simserve.tables.files import replace_text

        replace_text(self.file, self.text)


def wanted(timeline: Path | None, requests: str, directory: Path) -> list[TraceRequest]:
    """One, or none. Raises OutputError for what cannot be, before anything is computed."""
    from simserve.errors import OutputError

    if timeline is None:
        if requests != SLOWEST_20:
            rule = "needs a trace to draw them in"
            raise OutputError(f"--timeline-requests: {rule}, got {requests} alone; add --timeline FILE")
        return []
    _check_file(timeline, directory)
    return [TraceRequest(timeline, _chosen(requests))]


def _check_file(timeline: Path, directory: Path) -> None:
    from simserve.errors import OutputError

    if not timeline.absolute().parent.is_dir():
        raise OutputError(f"--timeline: must be in a folder that is there, got {timeline}; make the folder first")
    if timeline.is_dir():
        raise OutputError(f"--timeline: must be a file, got the folder {timeline}; name a file in it")
    if timeline.resolve().parent == directory.resolve():
        rule = "must not be in the folder of the results, which holds nothing else"
        raise OutputError(f"--timeline: {rule}, got {timeline}; put it beside {directory}")


def _chosen(requests: str) -> "Chosen":
    """Whose requests are meant. Raises OutputError."""
    from simserve.errors import OutputError
    from simserve.report.trace.trace import Chosen

    kind, _, number = requests.partition(":")
    if kind == "slowest" and number.isdecimal() and int(number) > 0:
        return Chosen(slowest=int(number))
    ids = tuple(each.strip() for each in requests.split(",") if each.strip())
    if kind == "slowest" or not ids:
        raise OutputError(f"--timeline-requests: must be ids or slowest:N, got {requests!r}; try {SLOWEST_20} or 12,40")
    return Chosen(ids=ids)
