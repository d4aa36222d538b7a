"""Options that questions share: their types, defaults and limits, and the scenario with its changes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from simserve.errors import SimserveError
from simserve.metrics.goal import CONFIDENCE, GOAL_FRAC, LOOKS, goal_from

if TYPE_CHECKING:
    from simserve.metrics.decision import Effort
    from simserve.scenario import Scenario
    from simserve.scenario.loader import AnyScenario
    from simserve.tables.folder import Kind
    from simserve.tables.journal import Journal, Reader

Goal = float | str | None
"""Share of requests that must meet every SLO: 0.99, or as text, "p99"; None: the default."""

By = Literal["noise", "total"] | None
"""What decides: sampling noise alone, or cost error too; None: cost error where it means much."""

BUDGET_RUNS, MAX_GPUS, MONTHS, PRECISION, TOLERANCE = LOOKS[-1], 256, 12, 0.03, 0.02
POINTS = 300
AUTO_SPARES, MOST_SPARES = "2", 20
TENSORS = (1, 2, 4, 8)

GOALS = ("ttft_s", "tpot_s", "e2e_s", "itl_s")
MOST_LIMIT_S = 1e6

IN_DOUBT = "leave it out for the default"

Number = TypeVar("Number", int, float)
R = TypeVar("R", bound=Any)

LIMITS: Mapping[str, tuple[float, float]] = {
    "--budget-runs": (LOOKS[0], 1024),
    "--growth": (0, 1),
    "--max-gpus": (1, 8192),
    "--months": (1, 120),
    "--points": (2, 10_000),
    "--precision": (0.001, 0.5),
    "--spare": (0, 100),
    "--tolerance": (0, 0.9),
}
"""Smallest and largest value of an option."""


def scenario_with(source: "AnyScenario", changes: Mapping[str, object], seed: int | None) -> "Scenario":
    """Return the scenario of any form with its changes. Raises ScenarioError."""
    from simserve.scenario.loader import scenario_from

    return scenario_from(source, with_seed(changes, seed))


def with_seed(changes: Mapping[str, object], seed: int | None) -> Mapping[str, object]:
    """Return changes with the seed among them, if it is given."""
    return changes if seed is None else {**changes, "seed": seed}


@contextmanager
def journal_of(
    kind: "Kind", read: "Reader[R]", jobs: int | None, out: str | Path | None = None
) -> "Iterator[Journal[R]]":
    """Open the runs that a folder has, or a folder for now; others run in so many processes. Raises SimserveError."""
    from simserve.study.processes import limited_to
    from simserve.tables.journal import open_journal

    with limited_to(jobs), TemporaryDirectory() as temporary:
        folder = Path(temporary if out is None else out)
        with open_journal(folder, kind, read) as journal:
            yield journal


def goal_of(goal: Goal) -> float:
    """Return the goal as a share. Raises SimserveError."""
    return GOAL_FRAC if goal is None else goal_from(str(goal))


def slo_of(given: Mapping[str, float] | str | None) -> dict[str, float]:
    """Return the goals of an SLO by their keys, from `ttft=0.5,tpot=50ms` or a mapping. Raises SimserveError."""
    from simserve.scenario.written_units import in_our_units

    pairs = [text.partition("=") for text in given.split(",")] if type(given) is str else []
    written = {key.strip(): value.strip() for key, _, value in pairs} or dict(given or {})  # type: ignore[arg-type]
    goals: dict[str, float] = {}
    for key, value in written.items():
        name = f"{key.removesuffix('_s')}_s"
        [limit_s] = in_our_units({name: value}).values()
        try:
            goals[name] = float(limit_s)
        except ValueError:
            goals[name] = 0.0
        if name not in GOALS or not 0 < goals[name] < MOST_LIMIT_S:
            names, got = ", ".join(goal.removesuffix("_s") for goal in GOALS), f"{key}={value}".rstrip("=")
            raise SimserveError(f"--slo: must be seconds of {names}, got {got}; for example --slo ttft=0.5,tpot=50ms")
    return goals


def spares_of(given: int | str) -> tuple[int, int | None]:
    """Return the replicas that may be down; with `auto`, none, and the most spares to try. Raises SimserveError."""
    name, _, number = str(given).replace("auto:", "auto ").rpartition(" ")
    name, number = ("auto", AUTO_SPARES) if number == "auto" else (name, number)
    if name not in ("", "auto") or not number.isdecimal():
        raise SimserveError(f"--spare: must be a number, auto, or auto:4 for four at most, got {given}; {IN_DOUBT}")
    n = within("--spare", int(number), (0, MOST_SPARES) if name else None)
    return (0, n) if name else (n, None)


def effort_of(budget_runs: int, confidence: float, by: By = None) -> "Effort":
    """Return how sure a decision should be. Raises SimserveError."""
    from simserve.metrics.decision import LIKELY, Effort

    if by not in (None, "noise", "total"):
        raise SimserveError(f"--by: must be noise or total, got {by}; leave it out for the default")
    within("--budget-runs", budget_runs, remedy=f"{BUDGET_RUNS} are the default")
    if not LIKELY < confidence < 1:
        rule = f"must be above {LIKELY} and below 1"
        raise SimserveError(f"--confidence: {rule}, got {confidence}; {CONFIDENCE} is the default")
    return Effort(budget_runs, confidence, by)


def within(option: str, value: Number, ends: tuple[float, float] | None = None, remedy: str = IN_DOUBT) -> Number:
    """Return the value of an option. Raises SimserveError for one that is too small or large, or no number."""
    low, high = ends or LIMITS[option]
    try:
        is_within = low <= value <= high
    except TypeError:
        is_within = False
    if not is_within:
        raise SimserveError(f"{option}: must be from {low:g} to {high:g}, got {value}; {remedy}")
    return value
