"""`simserve capacity`: the highest load at which the SLO still holds, or the fewest replicas that a load needs."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.run import AsJson, Assignments, ScenarioFile, Seed

if TYPE_CHECKING:
    from simserve.study.capacity import Question

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
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas", metavar="POOL", help="Ask how many replicas of that pool the load needs as it is, instead."
        ),
    ] = None,
    assignments: Assignments = None,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Find the p99 goodput: the highest rate at which 99 % of requests meet the SLO; or the fewest replicas."""
    from simserve import load_scenario
    from simserve.cli import terminal
    from simserve.study.capacity import Question

    question = Question(load_scenario(scenario, overrides=assignments or (), seed=seed), goal, precision)
    found, told = _rate(question) if replicas is None else _replicas(question, replicas)
    if as_json:
        terminal.result_json(found)
    else:
        terminal.result(told)
    if found["answer"] is None and found.get("state") != "every load":
        raise typer.Exit(NO)


def _rate(question: "Question") -> tuple[dict[str, Any], str]:
    """What was found, and how it is told."""
    from simserve.cli import terminal
    from simserve.report.capacity import sentence, table_rows
    from simserve.study.capacity import find_capacity
    from simserve.study.capacity_facts import capacity_facts

    with terminal.progress_bar() as bar:
        told = (lambda rate, n: bar.show(f"{rate:.3g} requests/s: {n} runs")) if bar else None
        found = capacity_facts(find_capacity(question, told))
    return found, f"{sentence(found)}\n\n{terminal.table(table_rows(found))}"


def _replicas(question: "Question", pool: str) -> tuple[dict[str, Any], str]:
    """Likewise."""
    from simserve.cli import terminal
    from simserve.report.fleet_size import sentence, table_rows
    from simserve.study.fleet_size import find_fleet_size, fleet_size_facts

    with terminal.progress_bar() as bar:
        told = (lambda n: bar.show(f"{n} replicas of {pool}")) if bar else None
        found = fleet_size_facts(find_fleet_size(question, pool, told))
    return found, f"{sentence(found)}\n\n{terminal.table(table_rows(found))}"
