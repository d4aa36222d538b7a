"""`simserve plan`: the cheapest fleet that serves a demand, and why other options lose."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.api import answers
from simserve.api.options import BUDGET_RUNS, MAX_GPUS, MONTHS
from simserve.cli import options, terminal
from simserve.metrics.goal import CONFIDENCE

if TYPE_CHECKING:
    from simserve.metrics.answers.plan import PlanAnswer

TENSORS = "1,2,4,8"

Gpus = Annotated[
    str | None, typer.Option("--gpu", metavar="A,B,...", help="GPUs to compare. Default: the scenario's own.")
]
Tensors = Annotated[str, typer.Option("--tensor", metavar="N,M,...", help="Tensor parallel degrees to compare.")]
Spare = Annotated[
    str,
    typer.Option("--spare", metavar="N|auto", help="Replicas of each pool that may be down; auto: what failures need."),
]
Growth = Annotated[float, typer.Option("--growth", min=0, max=1, help="Growth of the demand per month: 0.05 is 5%.")]
Prices = Annotated[
    list[str] | None,
    typer.Option("--price", metavar="GPU=USD", help="Dollars per GPU-hour instead of the catalog's price. Repeatable."),
]


def plan(
    scenario: options.ScenarioFile,
    gpu: Gpus = None,
    tensor: Tensors = TENSORS,
    split: Annotated[bool, typer.Option("--split", help="Also compare disaggregated prefill and decode.")] = False,
    spare: Spare = "0",
    growth: Growth = 0.0,
    months: Annotated[int, typer.Option("--months", min=1, max=120, help="Months of growth to plan for.")] = MONTHS,
    goal: options.Goal = None,
    max_gpus: Annotated[int, typer.Option("--max-gpus", min=1, max=8192, help="Largest fleet to try.")] = MAX_GPUS,
    price: Prices = None,
    out: options.Place = None,
    assignments: options.Assignments = None,
    seed: options.Seed = None,
    by: options.By = None,
    confidence: options.Confidence = CONFIDENCE,
    budget_runs: options.BudgetRuns = BUDGET_RUNS,
    jobs: options.Jobs = None,
    allow_plugin: options.AllowPlugin = None,
    quiet: options.Quiet = False,
    opens: options.Opens = False,
    as_json: options.AsJson = False,
) -> None:
    """Find the cheapest fleet: GPU type, tensor parallelism and replicas for the scenario's load and SLO."""
    from simserve.report.plan.page import tell
    from simserve.tables.folder import PLAN, check_folder

    simulated = options.loaded(scenario, assignments, seed, allow_plugin)
    check_folder(directory := out or Path("reports") / f"{simulated.name}-plan", PLAN)
    with terminal.progress_bar():
        answer = answers.plan(
            simulated,
            gpus=_names(gpu or ""),
            tensors=_degrees(tensor),
            split=split,
            spare=spare,
            growth=growth,
            months=months,
            goal=goal,
            max_gpus=max_gpus,
            price=_prices(price or []),
            by=by,
            confidence=confidence,
            budget_runs=budget_runs,
        )
        document = tell(answer)
        terminal.write_study(directory, PLAN, answer, document, _files(answer))
    terminal.answer(document, answer.facts(), directory, as_json=as_json)
    if answer.best is None:
        raise typer.Exit(options.NO)


def _files(answer: "PlanAnswer") -> dict[str, str | bytes]:
    """Return the workbook, and the scenario with the fleet to take."""
    from simserve.metrics.result_folder import ResultFolder
    from simserve.report.spreadsheet.exported import sheets_of
    from simserve.report.spreadsheet.workbook import workbook

    sheets = sheets_of([ResultFolder("plan", answer.scenario.name, answer)])
    scenario = {} if answer.scenario_yaml is None else {"scenario.yaml": answer.scenario_yaml}
    return {"plan.xlsx": workbook(sheets), **scenario}


def _names(text: str) -> list[str]:
    return [name for each in text.split(",") if (name := each.strip())]


def _degrees(text: str) -> list[int]:
    from simserve.errors import SimserveError

    names = _names(text)
    for one in names:
        if not (one.isascii() and one.isdigit()) or int(one) < 1:
            raise SimserveError(f"--tensor: must be whole numbers from 1 on, got {one}; for example --tensor {TENSORS}")
    if not names:
        raise SimserveError(f"--tensor: must name a degree, got nothing; for example --tensor {TENSORS}")
    return [int(name) for name in names]


def _prices(texts: list[str]) -> dict[str, float]:
    from simserve.errors import SimserveError

    match = {}
    for text in texts:
        gpu, _, usd = text.partition("=")
        try:
            match[gpu.strip()] = float(usd)
        except ValueError:
            rule = "must be GPU=DOLLARS an hour"
            raise SimserveError(f"--price: {rule}, got {text}; for example --price h100-sxm=2.5") from None
    return match
