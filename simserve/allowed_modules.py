"""Modules that a scenario may name as plug-ins: from Python all, on the command line those that are trusted.

A module is code: importing it runs it. A command that reads a scenario of unknown origin therefore imports only modules
of installed packages that declare themselves (entry points in group `simserve.plugins`), those that the user names with
--allow-plugin, and, in commands that run a scenario anyway, those of the scenario's own folder.

No folder is put on `sys.path`, where any import of a library would find a stranger's file by its name.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

GROUP = "simserve.plugins"


@dataclass(frozen=True)
class AllowedModules:
    """The trusted modules of a command."""

    named: tuple[str, ...] = ()
    """Modules that the user names."""
    trusted_folders: tuple[Path, ...] = ()
    """Folders of which all modules are trusted."""
    folders: tuple[Path, ...] = ()
    """Folders where a trusted module may lie, beside the places where Python looks."""

    def permits(self, module: str) -> bool:
        """Return whether a module may be imported."""
        declared = (entry.module for entry in entry_points(group=GROUP))
        if any(module == name or module.startswith(f"{name}.") for name in (*self.named, *declared)):
            return True
        top = module.partition(".")[0]
        return any(_is_from(top, folder) for folder in self.trusted_folders)


_allowed: list[AllowedModules | None] = [None]
"""The rule in force; None allows every module."""


def allowed_modules() -> AllowedModules | None:
    """Return the rule in force; None, as from Python, allows every module."""
    return _allowed[0]


def set_allowed_modules(rule: AllowedModules | None) -> None:
    """Put a rule in force: in a worker that of its parent."""
    _allowed[0] = rule


@contextmanager
def limited_modules() -> Iterator[None]:
    """Allow only modules of installed packages that declare themselves, and those that `allow_modules` adds."""
    before = _allowed[0]
    _allowed[0] = AllowedModules()
    try:
        yield
    finally:
        _allowed[0] = before


def allow_modules(named: Iterable[str], folder: Path, *others: Path, are_trusted: bool = True) -> None:
    """Trust modules by name, which may lie in these folders or the current one, and all modules of trusted folders."""
    names, folders = tuple(named), tuple(place.resolve() for place in (folder, *others))
    here = (Path.cwd(),) if names else ()
    _allowed[0] = AllowedModules(names, folders if are_trusted else (), (*folders, *here))


@contextmanager
def plugins_importable() -> Iterator[None]:
    """Let the block import a plug-in and its neighbors: the rule's folders are searched behind all other places."""
    rule = _allowed[0]
    finder = _Folders(tuple(map(str, (Path.cwd(),) if rule is None else rule.folders)))
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@dataclass(frozen=True)
class _Folders:
    """A finder of top-level modules in folders."""

    folders: tuple[str, ...]

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, self.folders) if path is None else None


def _is_from(top: str, folder: Path) -> bool:
    """Return whether a folder has a module, and no other of that name is or would be imported."""
    spec = PathFinder.find_spec(top, [str(folder)])
    if spec is None:
        return False
    if top not in sys.modules:
        return find_spec(top) is None
    loaded = sys.modules[top].__spec__
    return loaded is not None and _place(loaded) == _place(spec)


def _place(spec: ModuleSpec) -> tuple[str | None, list[str]]:
    return spec.origin, list(spec.submodule_search_locations or ())
