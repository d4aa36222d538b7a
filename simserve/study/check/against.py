"""Against: the baseline of a check: one that is kept in a file, or the scenario at another git ref."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simserve.errors import Problem, ScenarioError, SimserveError
from simserve.metrics.answers.baseline import LOOKS, Baseline
from simserve.metrics.answers.check import ScenarioDifference
from simserve.metrics.goal import GOAL_FRAC
from simserve.scenario import Scenario
from simserve.scenario.loader import scenario_of
from simserve.study.check.baseline import differences, portable, read_baseline
from simserve.study.check.measured import check_can_be_gated, find_grid, measured
from simserve.study.check.side import GateSide

MOST_LISTED = 12
"""Limit of differences that an error lists."""


@dataclass(frozen=True)
class Against:
    """One side of a check."""

    name: str
    """A file, or a git ref and the file there."""
    goal_frac: float
    looks: Sequence[int]
    """Numbers of seeds after which the gate may answer."""
    with_seeds: Callable[[int], Baseline]
    """Returns the baseline with at least so many seeds."""


def check_reference(baseline: str | Path | None, against: str | None, *, update: bool = False) -> None:
    """Raise SimserveError unless there is one thing to compare with, which may be written if it is a file."""
    if (baseline is None) == (against is None) or (update and baseline is None):
        rule = "must have one of --baseline FILE, to be written with --update, and --against REF"
        got = "both" if baseline and against else "no file"
        raise SimserveError(f"check: {rule}, got {got}; `check --help` has all")


def against_file(path: Path, candidate: Scenario, goal_frac: float | None) -> Against:
    """Return the kept baseline. Raises SimserveError where it cannot be read or answers another question."""
    check_can_be_gated(candidate)
    kept = read_baseline(path)
    _check_same_question(str(path), (kept.scenario, kept.goal_frac), candidate, goal_frac)
    return Against(str(path), kept.goal_frac, kept.looks, lambda n_seeds: kept)


def against_ref(where: tuple[Path, str], candidate: Scenario, goal_frac: float | None) -> Against:
    """Return the file at a git ref, run now with the candidate's seeds. Raises SimserveError."""
    check_can_be_gated(candidate)
    path, ref = where
    name, goal_frac = f"{path} at {ref}", goal_frac or GOAL_FRAC
    scenario = load_at_ref(path, ref, seed=candidate.seed)
    _check_same_question(name, (portable(scenario), goal_frac), candidate, goal_frac)
    side = GateSide(scenario, goal_frac)
    grid = find_grid(side)
    return Against(name, goal_frac, LOOKS, lambda n_seeds: measured(side, grid, n_seeds))


def _check_same_question(
    name: str, requested: tuple[Mapping[str, Any], float], candidate: Scenario, goal_frac: float | None
) -> None:
    """Raise ScenarioError, which lists the differences, unless the questions are the same."""
    scenario, its_goal_frac = requested
    result = differences(scenario, portable(candidate))[0]
    if goal_frac is not None and goal_frac != its_goal_frac:
        result.append(ScenarioDifference(key="goal (--goal)", baseline=its_goal_frac, candidate=goal_frac))
    if not result:
        return
    problems = [
        Problem(
            f"{name}: {each.key}", f"must be that of {candidate.name}, {_value(each.candidate)}", _value(each.baseline)
        )
        for each in result[:MOST_LISTED]
    ]
    more = f", in {len(result) - MOST_LISTED} more keys too" if len(result) > MOST_LISTED else ""
    remedy = (
        "name the baseline of this scenario, or make it again (--baseline FILE --update) if that was changed on purpose"
    )
    problems.append(Problem(name, f"answers another question than {candidate.name} asks{more}", None, remedy))
    raise ScenarioError(problems)


def _value(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


def load_at_ref(path: Path, ref: str, seed: int | None = None) -> Scenario:
    """Return the scenario of a file at a commit, branch or tag, resolved by this version of simserve.

    Files that it names are those of the working tree. Raises SimserveError where there is no git repository, no such
    ref, or no such file there; ScenarioError for what is wrong with the scenario.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise SimserveError(f"{folder}: there is no such folder; name a scenario file in a git repository")
    text = _git(folder, "rev-parse", "--show-toplevel")
    if text.returncode:
        rule = f"{path} must lie in a git repository"
        raise SimserveError(f"--against {ref}: {rule}, got {_complaint(text)}; use --baseline FILE")
    commit = _git(folder, "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}")
    if commit.returncode:
        remedy = "fetch it first (in CI with fetch-depth: 0), or name another"
        raise SimserveError(f"--against {ref}: must be a commit, branch or tag, got {_complaint(commit)}; {remedy}")
    held = _git(folder, "show", f"{commit.stdout.decode().strip()}:./{path.name}")
    if held.returncode:
        rule, remedy = f"{path} must be in that commit", "name a ref that has it, or use --baseline FILE"
        raise SimserveError(f"--against {ref}: {rule}, got {_complaint(held)}; {remedy}")
    return scenario_of(held.stdout, path, f"{ref}:{path}", seed)


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git, in English and without prompts. Raises SimserveError where there is no git."""
    words = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, env=os.environ | words, check=False)
    except FileNotFoundError:
        raise SimserveError("--against: needs the program git, got none on the PATH; use --baseline FILE") from None


def _complaint(text: subprocess.CompletedProcess[bytes]) -> str:
    """Return the first line of git's error."""
    lines = text.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[0] if lines else f"exit code {text.returncode}"
