"""`simserve autoscale` and `simserve resilience`: fleets that change or fail; an interrupted study resumes."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.cli.options import (
    NO,
    AllowPlugin,
    AsJson,
    Assignments,
    By,
    Columns,
    Confidence,
    Goal,
    Jobs,
    Opens,
    Place,
    Quiet,
    ScenarioFile,
    Seed,
    loaded,
)
from simserve.metrics.goal import CONFIDENCE

if TYPE_CHECKING:
    from simserve.metrics.answers.autoscale import AutoscaleAnswer
    from simserve.metrics.answers.resilience import ResilienceAnswer
    from simserve.report.document import Document
    from simserve.tables.folder import Kind

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="NAMES",
        help="Policies: names, manifests, `own`, `fixed:4`, or a mapping as in a scenario. Repeatable.",
    ),
]

Signals = Annotated[bool, typer.Option("--signals", help="Rank the metrics that could scale the pool, by their cost.")]
Recorded = Annotated[
    Path | None,
    typer.Option("--recorded", metavar="FILE", help="CSV or parquet of a real fleet's signals, instead of a run."),
]
SilentS = Annotated[
    float | None,
    typer.Option("--silent-s", metavar="S", help="Time from joining to a first sample. Default: a typical start."),
]
MaxReplicas = Annotated[
    int | None, typer.Option("--max-replicas", min=1, help="Most replicas of policies given by name.")
]
Replications = Annotated[
    int | None,
    typer.Option(
        "--replications", min=1, max=1000, help="Seeds of each policy. Default: 8 at most, for 40 runs in all."
    ),
]
PolicyRuns = Annotated[
    int | None,
    typer.Option("--budget-runs", help="Most seeds of a policy while noise decides. Default: for 40 runs in all."),
]
Pool = Annotated[str | None, typer.Option("--pool", metavar="NAME", help="Pool to scale. Default: the first.")]
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
FailingSeeds = Annotated[
    int | None,
    typer.Option(
        "--replications", min=1, max=1000, help="Seeds of each fleet and failure. Default: 8, or for 40 runs."
    ),
]


def autoscale(
    scenario: ScenarioFile,
    policy: Policies = None,
    signals: Signals = False,
    recorded: Recorded = None,
    columns: Columns = None,
    silent_s: SilentS = None,
    pool: Pool = None,
    max_replicas: MaxReplicas = None,
    replications: Replications = None,
    goal: Goal = None,
    out: Place = None,
    assignments: Assignments = None,
    seed: Seed = None,
    by: By = None,
    confidence: Confidence = CONFIDENCE,
    budget_runs: PolicyRuns = None,
    jobs: Jobs = None,
    allow_plugin: AllowPlugin = None,
    quiet: Quiet = False,
    opens: Opens = False,
    as_json: AsJson = False,
) -> None:
    """Compare autoscaling policies: what each costs, whether it meets the SLO, and whether it oscillates."""
    from simserve.api import fleets
    from simserve.cli import terminal
    from simserve.report.autoscale import tell
    from simserve.tables.folder import AUTOSCALE, MANIFEST, check_folder

    simulated = loaded(scenario, assignments, seed, allow_plugin)
    check_folder(folder := out or Path("reports") / f"{simulated.name}-autoscale", AUTOSCALE)
    with terminal.progress_bar():
        answer = fleets.autoscale(
            simulated,
            policies=policy,
            signals=signals,
            recorded=recorded,
            columns=columns,
            silent_s=silent_s,
            pool=pool,
            max_replicas=max_replicas,
            replications=replications,
            goal=goal,
            by=by,
            confidence=confidence,
            budget_runs=budget_runs,
            out=folder,
        )
    _write(folder, AUTOSCALE, answer, tell(answer), {MANIFEST: answer.manifest}, as_json=as_json)


def resilience(
    scenario: ScenarioFile,
    spare: Spares = "0..2",
    what: FailureKinds = None,
    pool: FailingPool = None,
    replications: FailingSeeds = None,
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
    from simserve.report.resilience import tell
    from simserve.tables.folder import RESILIENCE, check_folder

    simulated = loaded(scenario, assignments, seed, allow_plugin)
    check_folder(folder := out or Path("reports") / f"{simulated.name}-resilience", RESILIENCE)
    kinds = [kind for each in (what or "").split(",") if (kind := each.strip())]
    with terminal.progress_bar():
        answer = fleets.resilience(
            simulated, spare=spare, kinds=kinds, pool=pool, replications=replications, goal=goal, out=folder
        )
    _write(folder, RESILIENCE, answer, tell(answer), {}, as_json=as_json)
    if answer.best is None and not answer.is_scaled:
        raise typer.Exit(NO)


def _write(
    folder: Path,
    kind: "Kind",
    answer: "AutoscaleAnswer | ResilienceAnswer",
    document: "Document",
    more: Mapping[str, str | None],
    *,
    as_json: bool,
) -> None:
    from simserve.cli import terminal
    from simserve.report.html import page
    from simserve.study.study_folder import write_study
    from simserve.tables.files import json_text

    texts = {f"{answer.command}.json": json_text(answer.facts()), "report.html": page(document)}
    write_study(folder, kind, texts | {name: text for name, text in more.items() if text}, answer.rows)
    terminal.answer(document, answer.facts(), folder, as_json=as_json)
