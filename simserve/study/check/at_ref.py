"""At ref: a scenario file as it stands at another git ref. Files that it names are those of the working tree."""

import os
import subprocess
from pathlib import Path

from simserve.errors import SimserveError
from simserve.scenario import Scenario
from simserve.scenario.loader import scenario_of


def load_at_ref(path: Path, ref: str, seed: int | None = None) -> Scenario:
    """Return the scenario of a file at a commit, branch or tag, resolved by this version of simserve.

    Raises SimserveError where there is no git repository, no such ref, or no such file there; ScenarioError for what
    is wrong with the scenario.
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
