"""Questions about a server: its log against a scenario, its twin, and its best flags."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.api.options import POINTS, PRECISION, Goal, goal_of, journal_of, scenario_with, slo_of, with_seed, within
from simserve.errors import SimserveError

if TYPE_CHECKING:
    from simserve.lab.validated_log import ValidatedLog
    from simserve.metrics.answers.tune import Objective, TuneAnswer
    from simserve.metrics.answers.twin import TwinAnswer
    from simserve.scenario.loader import AnyScenario


def tune(
    scenario: "AnyScenario",
    *,
    vary: Mapping[str, Iterable[Any]] | None = None,
    objective: "Objective" = "r",
    points: int = POINTS,
    budget_s: float | None = None,
    goal: Goal = None,
    out: str | Path | None = None,
    seed: int | None = None,
    jobs: int | None = None,
    **changes: object,
) -> "TuneAnswer":
    """Find the best settings of a scenario's server under its SLO, confirmed on fresh draws. Raises SimserveError.

    `vary`: values by key, without which scheduler, layout of the GPUs and router are varied; `objective`: what is to be
    small: r, cost or throughput; `out`: a folder that keeps the points, so that the search can go on.
    """
    from simserve.metrics.answers.tune import TriedPoint
    from simserve.scenario.loader import template_from
    from simserve.servers.tune import find_tune
    from simserve.servers.tuning_search import TuneQuestion
    from simserve.study.sweep.points import axes_of
    from simserve.tables.folder import TUNE

    if objective not in ("r", "cost", "throughput"):
        raise SimserveError(f"--objective: must be r, cost or throughput, got {objective}; r is the default")
    axes = axes_of(template_from(scenario, with_seed(changes, seed)), (vary or {}).items())
    question = TuneQuestion(
        scenario_with(scenario, changes, seed),
        axes,
        objective=objective,
        most_points=within("--points", points),
        budget_s=budget_s,
        goal_frac=goal_of(goal),
    )
    with journal_of(TUNE, TriedPoint.model_validate, jobs, out) as journal:
        return find_tune(question, journal)


def twin(
    command: str | None = None,
    *,
    gpu: str,
    log: Iterable[str | Path] = (),
    slo: Mapping[str, float] | str | None = None,
    compose: str | Path | None = None,
    manifest: str | Path | None = None,
    values: str | Path | None = None,
    service: str | None = None,
    replicas: int | None = None,
    env: Mapping[str, str] | None = None,
    metrics: str | Path | None = None,
    engine_version: str | None = None,
    columns: Mapping[str, str] | None = None,
    jobs: int | None = None,
) -> "TwinAnswer":
    """Make a scenario of a server from its command line, or the file that deploys it, with the load of its log and
    host constants fitted to it. Raises SimserveError.

    `log`: its requests, or results of its benchmark; `columns`: its columns by ours, as `validate` has it. The
    answer's `write` makes a folder with scenario, load, fit and page.
    """
    from simserve.servers.documents import read_server
    from simserve.servers.load import load_of
    from simserve.servers.question import TwinQuestion
    from simserve.servers.twin import find_twin
    from simserve.study.processes import limited_to

    paths = {"--compose": compose, "--manifest": manifest, "--values": values}
    files = {key: Path(path) if path else None for key, path in paths.items()}
    server = read_server(command, files, env or {}, service)
    question = TwinQuestion(
        server,
        gpu,
        load_of([*map(Path, log)], columns or {}),
        PRECISION,
        slo=slo_of(slo),
        replicas=replicas,
        version=engine_version,
        metrics=None if metrics is None else Path(metrics),
    )
    with limited_to(jobs):
        return find_twin(question)


def validate(log: str | Path, scenario: str | Path, *, columns: Mapping[str, str] | None = None) -> "ValidatedLog":
    """Compare a real log with its requests replayed on the server of a scenario file. Raises SimserveError.

    `columns`: columns of the log by ours, `{"arrival_s": "startTime"}`, where their names do not tell.
    """
    from simserve.lab.validated_log import ValidatedLog

    return ValidatedLog.of(Path(log), Path(scenario), columns or {})
