"""Questions about several scenarios, or changes of one: sweep, compare, check."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.api import options
from simserve.errors import SimserveError
from simserve.metrics.goal import CONFIDENCE

if TYPE_CHECKING:
    from simserve.metrics.answers.check import CheckAnswer
    from simserve.metrics.answers.comparison import ComparisonAnswer
    from simserve.metrics.answers.sweep import SweepAnswer
    from simserve.metrics.results import Results
    from simserve.scenario.loader import AnyScenario
    from simserve.study.compare.compare import ComparedSide


def sweep(
    scenario: "AnyScenario",
    *,
    vary: Mapping[str, Iterable[Any]] | None = None,
    points: str | Path | Iterable[Mapping[str, object]] = (),
    replications: int = 1,
    goal: options.Goal = None,
    by: options.By = None,
    confidence: float = CONFIDENCE,
    budget_runs: int = options.BUDGET_RUNS,
    seed: int | None = None,
    jobs: int | None = None,
    **changes: object,
) -> "SweepAnswer":
    """Run a scenario at every combination of some values, and of the points given. Raises SimserveError.

    `vary`: values by key, which may be that of the only pool; `points`: a file, or changes by point. The command also
    keeps finished runs, resumes, and runs on a cluster.
    """
    from simserve.metrics.answers.sweep_runs import read_run
    from simserve.scenario.loader import template_from
    from simserve.study.processes import in_processes
    from simserve.study.sweep.facts import sweep_facts
    from simserve.study.sweep.points import axes_of
    from simserve.study.sweep.question import SweepQuestion, read_points
    from simserve.study.sweep.sweep import check_any, run_sweep
    from simserve.tables.folder import SWEEP

    template = template_from(scenario, options.with_seed(changes, seed))
    match points:
        case str() | Path():
            listed = read_points(Path(points))
        case _:
            listed = [template.changes(point) for point in points]
    axes, effort = axes_of(template, (vary or {}).items()), options.effort_of(budget_runs, confidence, by)
    question = SweepQuestion.of(template, axes, listed, replications, options.goal_of(goal), effort)
    with options.journal_of(SWEEP, read_run, jobs) as journal:
        swept = run_sweep(question, journal, in_processes)
    check_any(swept)
    return sweep_facts(swept)


def compare(
    a: "AnyScenario | Results",
    b: "AnyScenario | Results | None" = None,
    *,
    replications: int | None = None,
    by: options.By = None,
    confidence: float = CONFIDENCE,
    jobs: int | None = None,
    **changes: object,
) -> "ComparisonAnswer":
    """Decide which of two scenarios carries more load, and compare all measures; of results, measures only.

    `changes` are those of B, which is A where it is left out. Raises SimserveError.
    """
    from simserve.study.compare.compare import REPLICATIONS, compare
    from simserve.study.processes import limited_to

    if b is None and not changes:
        raise SimserveError("compare: needs another side, got one; give B, or what it changes, such as gpu='h200-sxm'")
    n_runs = REPLICATIONS if replications is None else options.within("--replications", replications, (2, 1000))
    effort = options.effort_of(options.BUDGET_RUNS, confidence, by)
    first = _side(a, {})
    second = _side(a if b is None else b, changes)
    with limited_to(jobs):
        return compare(first, second, n_runs, effort)


def _side(source: "AnyScenario | Results", changes: Mapping[str, object]) -> "ComparedSide":
    """Return one side: results, their folder, the JSON of a benchmark, or any form of a scenario with its changes."""
    from simserve.metrics.results import Results
    from simserve.plugins.validation import shown
    from simserve.scenario.loader import scenario_from
    from simserve.study.compare.compare import ComparedSide, read_side

    match source:
        case Results():
            side = ComparedSide(source.facts.name, source)
        case str() | Path() if Path(source).is_dir() or Path(source).suffix == ".json":
            side = read_side(Path(source))
        case _:
            scenario = scenario_from(source, changes)
            named = ", ".join(f"{key}={shown(value)}" for key, value in changes.items())
            return ComparedSide(f"{scenario.name} with {named}" if changes else scenario.name, scenario)
    if changes:
        raise SimserveError(f"{side.name}: only a scenario can be changed, got results; leave out {', '.join(changes)}")
    return side


def check(
    scenario: "AnyScenario",
    *,
    baseline: str | Path | None = None,
    against: str | None = None,
    tolerance: float = options.TOLERANCE,
    goal: options.Goal = None,
    seed: int | None = None,
    jobs: int | None = None,
    **changes: object,
) -> "CheckAnswer":
    """Tell whether p99 goodput fell by significantly more than a tolerance. Raises SimserveError.

    `baseline`: a file that `simserve check --update` wrote; `against`: a git ref that has the scenario's file.
    """
    from simserve.study.check.against import against_file, against_ref, check_reference
    from simserve.study.check.check import check, check_facts
    from simserve.study.check.side import GateSide
    from simserve.study.processes import limited_to

    check_reference(baseline, against)
    candidate, wanted = options.scenario_with(scenario, changes, seed), None if goal is None else options.goal_of(goal)
    options.within("--tolerance", tolerance)
    with limited_to(jobs):
        if baseline is not None:
            side = against_file(Path(baseline), candidate, wanted)
        elif candidate.file is None:
            raise SimserveError(f"--against {against}: the scenario must be a file, got plain data; use baseline=FILE")
        else:
            side = against_ref((candidate.file, str(against)), candidate, wanted)
        return check_facts(check(side, GateSide(candidate, side.goal_frac), tolerance))
