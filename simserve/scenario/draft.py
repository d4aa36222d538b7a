"""Draft: a scenario on its way from parsed to resolved, with what is wrong so far and where values came from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TypeVar

from simserve.errors import CatalogError
from simserve.plugins.validation import Path, ValueProblem, shown
from simserve.scenario.models import Scenario
from simserve.scenario.problems import Problems

T = TypeVar("T")


@dataclass
class Draft:
    """What the steps of resolving share."""

    scenario: Scenario
    problems: Problems
    folders: tuple[FilePath, ...]
    """Where relative paths are looked up, in this order."""
    origins: dict[Path, str] = field(default_factory=dict)
    """Of values that are neither the user's nor a field's default."""

    def problem(self, path: Path, rule: str, value: object = None, remedy: str | None = None) -> None:
        """Note that values do not go together; a value of None is not repeated."""
        self.problems.add(ValueProblem(path, rule, None if value is None else shown(value), remedy, is_conflict=True))

    def looked_up(self, path: Path, look_up: Callable[[], T]) -> T | None:
        """A thing of the catalog, or None and a mistake at `path`."""
        if self.problems.touch(path):
            return None
        try:
            return look_up()
        except CatalogError as error:
            self.problems.add(ValueProblem(path, str(error)))
            return None

    def find_file(self, written: str) -> FilePath | None:
        """The absolute path of a file: beside the scenario, else from the current directory."""
        path = FilePath(written).expanduser()
        candidates = (folder / path for folder in self.folders)  # an absolute path replaces the folder
        return next((result.resolve() for result in candidates if result.is_file()), None)

    def looked_in(self) -> str:
        """For messages: the folders that `find_file` tries."""
        return " and ".join(dict.fromkeys(str(folder) for folder in self.folders))
