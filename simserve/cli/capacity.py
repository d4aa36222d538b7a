"""`simserve capacity`: the highest load at which the SLO still holds."""

from typing import Annotated

import typer

from simserve.cli.run import AsJson, Assignments, ScenarioFile, Seed

NO = 1


def capacity(
    scenario: ScenarioFile,
    goal: Annotated[
        float, typer.Option("--goal", min=0.01, max=0.9999, help="Share of requests that must meet every SLO.")
    ] = 0.99,
    precision: Annotated[
        float,
        typer.Option("--precision", min=0.001, max=0.5, help="Half the interval's width, as a share of the answer."),
    ] = 0.03,
    assignments: Assignments = None,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Find the p99 goodput: the highest rate at which 99 % of requests meet the SLO."""
    from simserve import load_scenario
    from simserve.cli import terminal
    from simserve.study.capacity import Question, find_capacity
    from simserve.study.capacity_facts import capacity_facts

    loaded = load_scenario(scenario, overrides=assignments or (), seed=seed)
    with terminal.progress_bar() as bar:
        told = (lambda rate, n: bar.show(f"{rate:.3g} requests/s: {n} runs")) if bar else None
        found = capacity_facts(find_capacity(Question(loaded, goal, precision), told))
    if as_json:
        terminal.result_json(found)
    else:
        from simserve.report.capacity import sentence, table_rows

        terminal.result(f"{sentence(found)}\n\n{terminal.table(table_rows(found))}")
    if found["state"] == "no load":
        raise typer.Exit(NO)
