"""Modules that a scenario may name as plug-ins: from Python all, on the command line those that are trusted.

A module is code: importing it runs it. A command that reads a scenario of unknown origin therefore imports only modules
of installed packages that declare themselves (entry points in group `simserve.plugins`), those that the user names with
--allow-plugin, and, in commands that run a scenario anyway, those of the scenario's own folder.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path

GROUP = "simserve.plugins"


@dataclass(frozen=True)
class AllowedModules:
    """The trusted modules of a command."""

    named: tuple[str, ...] = ()
    """Modules that the user names."""
    folders: tuple[Path, ...] = ()
    """Folders with trusted modules."""

    def permits(self, module: str) -> bool:
        """Return whether a module may be imported."""
        declared = (entry.module for entry in entry_points(group=GROUP))
        if any(module == name or module.startswith(f"{name}.") for name in (*self.named, *declared)):
            return True
        top = module.partition(".")[0]
        return any(_is_from(top, folder) for folder in self.folders)


_allowed: list[AllowedModules | None] = [None]
"""The rule in force; None allows every module."""


def allowed_modules() -> AllowedModules | None:
    """Return the rule in force; None, as from Python, allows every module."""
    return _allowed[0]


@contextmanager
def limited_modules() -> Iterator[None]:
    """Allow only modules of installed packages that declare themselves, and those that `allow_modules` adds."""
    before = _allowed[0]
    _allowed[0] = AllowedModules()
    try:
        yield
    finally:
        _allowed[0] = before


def allow_modules(named: Iterable[str], *folders: Path, are_trusted: bool = True) -> None:
    """Trust modules by name, which may lie in these folders, and all modules of folders that are trusted.

    The folders become importable behind all others, in worker processes too.
    """
    places = tuple(folder.resolve() for folder in folders)
    _allowed[0] = AllowedModules(tuple(named), places if are_trusted else ())
    sys.path += [str(place) for place in places if (named or are_trusted) and str(place) not in sys.path]


def _is_from(top: str, folder: Path) -> bool:
    """Return whether a folder has a module, and no other of that name is or would be imported."""
    spec = PathFinder.find_spec(top, [str(folder)])
    if spec is None:
        return False
    loaded = sys.modules.get(top)
    other = PathFinder.find_spec(top) if loaded is None else getattr(loaded, "__spec__", None)
    return other is not None and other.origin == spec.origin
