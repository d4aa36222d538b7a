"""`simserve autoscale` and `simserve resilience`: fleets that change or fail; an interrupted study resumes."""

from pathlib import Path
from typing import Annotated

import typer

from simserve.api import fleets
from simserve.cli import options, terminal
from simserve.metrics.goal import CONFIDENCE

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
Most = Annotated[int | None, typer.Option("--max-replicas", min=1, help="Most replicas of policies given by name.")]
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
        help="Failures: process, gpu, node, rack, slow. Default: the scenario's, else the first three.",
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
    scenario: options.ScenarioFile,
    policy: Policies = None,
    signals: Signals = False,
    recorded: Recorded = None,
    columns: options.Columns = None,
    silent_s: SilentS = None,
    pool: Pool = None,
    max_replicas: Most = None,
    replications: Replications = None,
    goal: options.Goal = None,
    out: options.Place = None,
    assignments: options.Assignments = None,
    seed: options.Seed = None,
    by: options.By = None,
    confidence: options.Confidence = CONFIDENCE,
    budget_runs: PolicyRuns = None,
    jobs: options.Jobs = None,
    allow_plugin: options.AllowPlugin = None,
    quiet: options.Quiet = False,
    opens: options.Opens = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare autoscaling policies: what each costs, whether it meets the SLO, and whether it oscillates."""
    from simserve.report.autoscale import tell
    from simserve.tables.folder import AUTOSCALE, MANIFEST, check_folder

    simulated = options.loaded(scenario, assignments, seed, allow_plugin)
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
    document = tell(answer)
    terminal.write_study(folder, AUTOSCALE, answer, document, {MANIFEST: answer.manifest} if answer.manifest else {})
    terminal.answer(document, answer.facts(), folder, as_json=as_json)


def resilience(
    scenario: options.ScenarioFile,
    spare: Spares = "0..2",
    what: FailureKinds = None,
    pool: FailingPool = None,
    replications: FailingSeeds = None,
    goal: options.Goal = None,
    out: options.Place = None,
    assignments: options.Assignments = None,
    seed: options.Seed = None,
    jobs: options.Jobs = None,
    allow_plugin: options.AllowPlugin = None,
    quiet: options.Quiet = False,
    opens: options.Opens = False,
    as_json: options.AsJson = False,
) -> None:
    """Find what failures cost, and the fewest spares with which the goal holds in a month."""
    from simserve.report.resilience import tell
    from simserve.tables.folder import RESILIENCE, check_folder

    simulated = options.loaded(scenario, assignments, seed, allow_plugin)
    check_folder(folder := out or Path("reports") / f"{simulated.name}-resilience", RESILIENCE)
    kinds = [kind for each in (what or "").split(",") if (kind := each.strip())]
    with terminal.progress_bar():
        answer = fleets.resilience(
            simulated, spare=spare, kinds=kinds, pool=pool, replications=replications, goal=goal, out=folder
        )
    document = tell(answer)
    terminal.write_study(folder, RESILIENCE, answer, document)
    terminal.answer(document, answer.facts(), folder, as_json=as_json)
    if answer.best is None and answer.options:
        raise typer.Exit(options.NO)
