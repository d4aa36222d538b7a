"""`simserve resilience`: what failures cost, and the spares that a pool needs; an interrupted study resumes."""

from pathlib import Path
from typing import Annotated

import typer

from simserve.cli.options import (
    NO,
    AllowPlugin,
    AsJson,
    Assignments,
    Goal,
    Jobs,
    Opens,
    Place,
    Quiet,
    ScenarioFile,
    Seed,
    loaded,
)

Spares = Annotated[str, typer.Option("--spare", metavar="LO..HI", help="Numbers of spares to compare, or one.")]
FailureKinds = Annotated[
    str | None,
    typer.Option(
        "--what",
        metavar="A,B,...",
        help="Failures: process, gpu, node, rack. Default: the scenario's, else the first three.",
    ),
]

FailingPool = Annotated[str | None, typer.Option("--pool", metavar="NAME", help="Pool. Default: the first.")]


def resilience(
    scenario: ScenarioFile,
    spare: Spares = "0..2",
    what: FailureKinds = None,
    pool: FailingPool = None,
    replications: Annotated[
        int | None,
        typer.Option(
            "--replications",
            min=1,
            max=1000,
            help="Seeds of each fleet and failure. Default: 8, or as many as 40 runs allow.",
        ),
    ] = None,
    goal: Goal = None,
    out: Place = None,
    assignments: Assignments = None,
    seed: Seed = None,
    jobs: Jobs = None,
    allow_plugin: AllowPlugin = None,
    quiet: Quiet = False,
    opens: Opens = False,
    as_json: AsJson = False,
) -> None:
    """Find what failures cost, and the fewest spares with which the goal holds in a month."""
    from simserve.api import fleets
    from simserve.cli import terminal
    from simserve.report.html import page
    from simserve.report.resilience import tell
    from simserve.study.study_folder import write_study
    from simserve.tables.files import json_text
    from simserve.tables.folder import RESILIENCE, check_folder

    simulated = loaded(scenario, assignments, seed, allow_plugin)
    check_folder(folder := out or Path("reports") / f"{simulated.name}-resilience", RESILIENCE)
    kinds = [kind for each in (what or "").split(",") if (kind := each.strip())]
    with terminal.progress_bar():
        answer = fleets.resilience(
            simulated, spare=spare, kinds=kinds, pool=pool, replications=replications, goal=goal, out=folder
        )
    texts = {"resilience.json": json_text(answer.facts()), "report.html": page(tell(answer))}
    write_study(folder, RESILIENCE, texts, answer.rows)
    terminal.answer(tell(answer), answer.facts(), folder, as_json=as_json)
    if answer.best is None and not answer.is_scaled:
        raise typer.Exit(NO)
