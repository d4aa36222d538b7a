"""The options that commands share, and the scenario that they name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simserve.cli import terminal
from simserve.metrics.goal import GOAL_FRAC, goal_from

if TYPE_CHECKING:
    from simserve.scenario import Scenario

NO = 1
"""Exit code where the answer is no."""

ScenarioFile = Annotated[
    Path, typer.Argument(help="The scenario's YAML file, or @NAME: `simserve init --list`.", show_default=False)
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one value: --set cluster.pools.0.replicas=4. Repeatable."),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed to use instead of the scenario's.")]
Goal = Annotated[
    float | None,
    typer.Option(
        "--goal",
        parser=goal_from,
        help=f"Share of requests that must meet every SLO: 0.9 or p90. Default: {GOAL_FRAC:g}; check: its baseline's.",
    ),
]
AllowPlugin = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-plugin", metavar="MODULE", help="Allow the scenario to import this module; that runs its code."
    ),
]

Columns = Annotated[
    str | None,
    typer.Option(
        "--map",
        metavar="OURS=THEIRS,..",
        help="Columns of a log by our names: --map arrival_s=startTime,prompt_tokens=isl.",
    ),
]


def _limit(context: typer.Context, jobs: int | None) -> int | None:
    """Limit the processes until the command ends."""
    if jobs is not None:
        from simserve.study.processes import limited_to

        context.with_resource(limited_to(jobs))
    return jobs


Jobs = Annotated[
    int | None, typer.Option("--jobs", callback=_limit, help="Number of parallel processes. Default: one per core.")
]
BudgetRuns = Annotated[
    int,
    typer.Option(
        "--budget-runs", help="Most seeds to run while sampling noise decides: 8 at first, then more in two steps."
    ),
]
Confidence = Annotated[
    float, typer.Option("--confidence", help='Probability that "meets" needs, with sampling noise and cost error.')
]
By = Annotated[
    Literal["noise", "total"] | None,
    typer.Option("--by", help="Decide by sampling noise as if costs were exact, or with cost error in any case."),
]


def _in_mode(context: typer.Context, option: typer.CallbackParam, value: bool) -> bool:
    """Work in the mode of an option until the command ends."""
    if value:
        context.with_resource(terminal.mode(**{str(option.name): True}))
    return value


Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but errors, and JSON if asked for.", callback=_in_mode)
]
Opens = Annotated[bool, typer.Option("--open", help="Open the page in a browser.", callback=_in_mode)]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="DIR", help="Folder for the answer, its rows and a page. Default: none."),
]
Place = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="DIR", help="Folder for the answer, its rows and a page. Default: in reports."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the machine-readable answer, and only that, to stdout.")]


def loaded(
    scenario: Path, assignments: list[str] | None, seed: int | None, allow: list[str] | None, *, is_trusted: bool = True
) -> "Scenario":
    """Load the scenario of a command. A trusted one may import any plug-in of its folder, others those allowed."""
    from simserve import load_scenario
    from simserve.allowed_modules import allow_modules

    allow_modules(allow or (), scenario.parent, are_trusted=is_trusted)
    return load_scenario(scenario, overrides=assignments or (), seed=seed)
