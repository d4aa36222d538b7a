"""Scenarios that come with simserve, by their names: `@chat_burst`."""

from itertools import takewhile
from pathlib import Path

from simserve.errors import Problem, ScenarioError, did_you_mean

PACKAGE = Path(__file__).resolve().parents[1]


def shipped() -> dict[str, Path]:
    """Return the files of scenarios that come with simserve, by name: in the package, or beside it in a checkout."""
    folder = PACKAGE / "scenarios"
    if not folder.is_dir() and (PACKAGE.parent / "pyproject.toml").is_file():
        folder = PACKAGE.parent / "scenarios"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def shipped_file(name: str) -> Path:
    """Return the file of a scenario by its name, with or without the @. Raises ScenarioError for another name."""
    file = shipped().get(name.removeprefix("@").replace("-", "_"))
    if file is None:
        remedy = did_you_mean(name, [f"@{each}" for each in shipped()])
        raise ScenarioError([Problem(name, "no such scenario comes with simserve", None, remedy)])
    return file


def about(file: Path) -> str:
    """Return the first sentence of the comment that a scenario begins with."""
    comment = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    text = " ".join(line.lstrip("# ") for line in comment if not line.endswith(".yaml")) or "The example of the README"
    return f"{text.partition('. ')[0].rstrip('.')}."
