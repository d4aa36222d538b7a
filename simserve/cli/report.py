"""`simserve report`: rebuild the page of an earlier run from its tables."""

from pathlib import Path
from typing import Annotated

import typer

from simserve.cli import trace_file


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of an earlier run.")],
    timeline: trace_file.Timeline = None,
    timeline_requests: trace_file.TimelineRequests = trace_file.SLOWEST_20,
) -> None:
    """Rebuild the page of an earlier run."""
    from simserve import load_results
    from simserve.cli import terminal
    from simserve.errors import InvariantError, OutputError
    from simserve.report.page import render
    from simserve.tables.files import replace_text

    traces = trace_file.wanted(timeline, timeline_requests, directory)
    results = load_results(directory)
    try:
        drawn = [each.draw(results) for each in traces]
    except InvariantError as error:  # a law that a run holds, and edited tables need not
        rule = "steps and spans must be those of one run"
        raise OutputError(f"{directory}: {rule}, got others ({error.law}); run the command again") from None
    text = render(results)
    for each in drawn:
        each.write()
        terminal.warnings(each.left_out)
    page = directory / "report.html"
    replace_text(page, text)
    terminal.result(str(page))
