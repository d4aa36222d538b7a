"""`simserve compare`: by how much one server differs from another, and whether chance alone might do that."""

from pathlib import Path
from typing import Annotated

import typer

from simserve.cli.run import AsJson

SIDE = "A scenario, a folder of results, or the JSON of `vllm bench serve`."


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help=SIDE, show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Likewise; held against A.", show_default=False)],
    replications: Annotated[
        int, typer.Option("--replications", min=2, max=1000, help="Runs of each of two scenarios, with as many seeds.")
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Compare two scenarios, results or benchmarks, measure by measure."""
    from simserve.cli import terminal
    from simserve.study.compare import compare as compare_sides
    from simserve.study.compare import read_side

    sides = read_side(a), read_side(b)
    with terminal.progress_bar() as bar:
        told = (lambda n, of: bar.show(f"run {n} of {of}")) if bar else None
        found = compare_sides(*sides, replications, told).as_data()
    if as_json:
        terminal.result_json(found)
    else:
        from simserve.report.comparison import sentence, table_rows

        terminal.result(f"{sentence(found)}\n\n{terminal.table(table_rows(found))}")
    terminal.warnings(found["warnings"])
