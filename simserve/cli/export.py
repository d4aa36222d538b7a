"""Commands on folders of results: `simserve report` rebuilds the page of a run, `simserve export` makes a workbook with
live formulas and charts, or CSV files."""

from pathlib import Path
from typing import Annotated

import typer

from simserve.cli import terminal, trace_file


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of an earlier run.")],
    timeline: trace_file.Timeline = None,
    timeline_requests: trace_file.TimelineRequests = trace_file.SLOWEST_20,
) -> None:
    """Rebuild the page of an earlier run."""
    from simserve import load_results
    from simserve.errors import InvariantError, OutputError
    from simserve.report.page import render
    from simserve.report.trace.trace import trace
    from simserve.tables.files import replace_text

    traces = trace_file.wanted(timeline, timeline_requests, directory)
    results = load_results(directory)
    try:
        drawn = {file: trace(results, chosen) for file, chosen in traces.items()}
    except InvariantError as error:  # a law that a run holds, and edited tables need not
        rule = "steps and spans must be those of one run"
        raise OutputError(f"{directory}: {rule}, got others ({error.law}); run the command again") from None
    text = render(results)
    trace_file.write(drawn)
    terminal.warnings(each.cut for each in drawn.values() if each.cut)
    page = directory / "report.html"
    replace_text(page, text)
    terminal.result(str(page))


def export(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Folders that run, capacity, compare, sweep or plan wrote.", show_default=False
        ),
    ],
    xlsx: Annotated[
        Path | None, typer.Option("--xlsx", metavar="FILE", help="Write a workbook: capacity.xlsx.", show_default=False)
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FOLDER", help="Write a CSV file a sheet.", show_default=False)
    ] = None,
) -> None:
    """Put results into one spreadsheet: percentiles, capacity curve, fleets, and costs that follow your prices."""
    from simserve.metrics.result_folder import read_result_folders
    from simserve.report.spreadsheet.exported import sheets_of
    from simserve.report.spreadsheet.sheets import csv_files
    from simserve.tables.files import replace_file
    from simserve.tables.folder import EXPORT, check_folder, check_workbook_file, result_folder

    if xlsx is None and csv is None:
        raise typer.BadParameter("give --xlsx FILE, --csv FOLDER, or both")
    if xlsx is not None:
        check_workbook_file(xlsx)
    if csv is not None:
        check_folder(csv, EXPORT)
    sheets = sheets_of(read_result_folders(directories))
    written = []
    if xlsx is not None:
        from simserve.report.spreadsheet.workbook import workbook

        replace_file(xlsx, workbook(sheets))
        written.append(f"{xlsx}: {', '.join(sheet.name for sheet in sheets)}")
    if csv is not None:
        files = csv_files(sheets)
        with result_folder(csv, EXPORT) as extra:
            for name, text in files.items():
                (extra / name).write_text(text, encoding="utf-8")
        written.append(f"{csv}/: {', '.join(files)}")
    for line in written:
        terminal.result(line)
