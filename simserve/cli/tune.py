"""`simserve tune`: the best flags of a scenario's server under its SLO."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from simserve.api import servers
from simserve.api.options import POINTS
from simserve.cli.options import (
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

Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="KEY=VALUES",
        help="Vary this key alone, and others given: KEY=1,2,4 or 1..8. Default: scheduler, GPU layout, router.",
    ),
]
What = Annotated[
    Literal["r", "cost", "throughput"],
    typer.Option("--objective", help="What is best: the least r, cost, or GPU time of a request within the SLO."),
]
Points = Annotated[int, typer.Option("--points", help="Most points to try.")]
Budget = Annotated[
    float | None, typer.Option("--budget-s", metavar="SECONDS", min=1, help="Begin no points after this time.")
]


def tune(
    scenario: ScenarioFile,
    vary: Vary = None,
    objective: What = "r",
    points: Points = POINTS,
    budget_s: Budget = None,
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
    """Find the flags with which a scenario's server does best under its SLO; the same command goes on."""
    from simserve.cli import terminal
    from simserve.report.html import page
    from simserve.report.tune import tell
    from simserve.study.study_folder import write_study
    from simserve.study.sweep.points import parse_axis
    from simserve.tables.files import json_text
    from simserve.tables.folder import TUNE, check_folder

    simulated = loaded(scenario, assignments, seed, allow_plugin)
    check_folder(folder := out or Path("reports") / f"{simulated.name}-tune", TUNE)
    axes = {axis.key: axis.values for axis in map(parse_axis, vary or ())}
    with terminal.progress_bar():
        answer = servers.tune(
            simulated, vary=axes, objective=objective, points=points, budget_s=budget_s, goal=goal, out=folder
        )
    texts = {"tune.json": json_text(answer.facts()), "report.html": page(tell(answer))}
    write_study(folder, TUNE, texts | {"scenario.yaml": answer.scenario_yaml or ""}, answer.rows)
    more = [f"{folder / 'scenario.yaml'} (the scenario with these flags)"]
    terminal.answer(tell(answer), answer.facts(), folder, as_json=as_json, more=more)
