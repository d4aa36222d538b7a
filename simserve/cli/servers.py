"""`simserve twin` and `simserve tune`: a server as a scenario with a fit, and the flags with which it does best."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from simserve.api import servers
from simserve.api.options import POINTS
from simserve.cli import options, terminal

Line = Annotated[
    str | None,
    typer.Argument(metavar="COMMAND", help='Command of the server, in quotes: "vllm serve MODEL".', show_default=False),
]
Gpu = Annotated[str, typer.Option("--gpu", metavar="GPU", help="GPU of the server: h100-sxm.", show_default=False)]
Logs = Annotated[
    list[Path] | None,
    typer.Option("--log", metavar="LOG", help="Log of the server, or a result of its benchmark; may be repeated."),
]
SloText = Annotated[
    str | None, typer.Option("--slo", metavar="GOALS", help="Goals of latency, in seconds: ttft=0.5,tpot=0.05.")
]
Compose = Annotated[Path | None, typer.Option("--compose", metavar="FILE", help="Compose file of the server.")]
Manifest = Annotated[Path | None, typer.Option("--manifest", metavar="FILE", help="Kubernetes manifest of the server.")]
Values = Annotated[Path | None, typer.Option("--values", metavar="FILE", help="Helm values of the server.")]
Service = Annotated[
    str | None, typer.Option("--service", metavar="NAME", help="Which server of the file, if it has several.")
]
Replicas = Annotated[int | None, typer.Option("--replicas", min=1, help="Copies of the server behind the log.")]
Env = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable of the command; may be repeated.")
]
Metrics = Annotated[Path | None, typer.Option("--metrics", metavar="FILE", help="Saved text of the server's /metrics.")]
Version = Annotated[
    str | None,
    typer.Option("--engine-version", metavar="VERSION", help="Version of the engine, where no image names it."),
]
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


def twin(
    gpu: Gpu,
    line: Line = None,
    log: Logs = None,
    slo: SloText = None,
    compose: Compose = None,
    manifest: Manifest = None,
    values: Values = None,
    service: Service = None,
    replicas: Replicas = None,
    env: Env = None,
    metrics: Metrics = None,
    engine_version: Version = None,
    columns: options.Columns = None,
    out: options.Place = None,
    jobs: options.Jobs = None,
    quiet: options.Quiet = False,
    opens: options.Opens = False,
    as_json: options.AsJson = False,
) -> None:
    """Make a scenario of your server from its command line, with the load and a fit from its log."""
    from simserve.report.twin import tell
    from simserve.servers.documents import assignments
    from simserve.tables.folder import TWIN, check_folder
    from simserve.workload.readers.logs.glossary import given_names

    if out is not None and not out.is_dir():
        check_folder(out, TWIN)  # before the fit
    with terminal.progress_bar():
        answer = servers.twin(
            line,
            gpu=gpu,
            log=log or (),
            slo=slo,
            compose=compose,
            manifest=manifest,
            values=values,
            service=service,
            replicas=replicas,
            env=assignments(env or (), "--env"),
            metrics=metrics,
            engine_version=engine_version,
            columns=given_names(columns),
        )
    folder = out or Path("reports") / f"{answer.scenario.name}-twin"
    answer = answer.write(folder)
    terminal.answer(tell(answer), answer.facts(), folder, as_json=as_json)
    if answer.word == "not explained":
        raise typer.Exit(options.NO)


def tune(
    scenario: options.ScenarioFile,
    vary: Vary = None,
    objective: What = "r",
    points: Points = POINTS,
    budget_s: Budget = None,
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
    """Find the flags with which a scenario's server does best under its SLO; the same command goes on."""
    from simserve.report.tune import tell
    from simserve.study.sweep.points import parse_axis
    from simserve.tables.folder import TUNE, check_folder

    simulated = options.loaded(scenario, assignments, seed, allow_plugin)
    check_folder(folder := out or Path("reports") / f"{simulated.name}-tune", TUNE)
    axes = {axis.key: axis.values for axis in map(parse_axis, vary or ())}
    with terminal.progress_bar():
        answer = servers.tune(
            simulated, vary=axes, objective=objective, points=points, budget_s=budget_s, goal=goal, out=folder
        )
    document = tell(answer)
    terminal.write_study(folder, TUNE, answer, document, {"scenario.yaml": answer.scenario_yaml or ""})
    more = [f"{folder / 'scenario.yaml'} (the scenario with these flags)"]
    terminal.answer(document, answer.facts(), folder, as_json=as_json, more=more)
