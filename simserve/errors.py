"""Errors of users and of the simulator itself.

SimserveError            a user's error: one message, exit code 2, no stack trace at the CLI
├── ScenarioError        all problems of one scenario at once
├── CatalogError         a model, GPU or engine that is unknown or contradictory
├── TraceError           a trace file that cannot be replayed as it is
│   ├── EndOfLoads       a load that cannot run, although others of the scenario can
│   │   ├── NoArrivals       so light, or so short, that it has no request
│   │   └── TooManyArrivals  more requests than a run may have
│   └── UnreadableTrace  a file that is missing or cannot be opened
├── CalibrationError     kernel timings or a calibration file that cannot be used
├── PolicyError          a policy that is missing, raised, or returned an invalid answer
└── OutputError          results that cannot be written or read back
InvariantError           a bug of the simulator: both sides of the broken equation and the simulated time
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One problem in a user's input: its place, the broken rule, the value, and the remedy."""

    place: str
    rule: str
    value: str | None = None
    remedy: str | None = None
    is_conflict: bool = False
    """The values are well-formed but contradict each other: changing another value might also fix it."""

    def __str__(self) -> str:
        got = f", got {self.value}" if self.value is not None else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{self.place}: {self.rule}{got}{remedy}"


class SimserveError(Exception):
    """A user's error; the message gives place, rule, value and remedy."""


class ScenarioError(SimserveError):
    """All problems of one scenario."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class CatalogError(SimserveError):
    """A model, GPU or engine that is unknown, or has a contradictory description."""


class TraceError(SimserveError):
    """A trace that cannot be replayed as it is; the message names rows."""


class EndOfLoads(TraceError):
    """A load that cannot run, although others of the same scenario can; a search ends its loads there."""


class NoArrivals(EndOfLoads):
    """A load so light, or so short, that no request arrives."""


class TooManyArrivals(EndOfLoads):
    """A load of more requests than a run may have."""


class UnreadableTrace(TraceError):
    """A trace file that is missing or cannot be read; elsewhere, or later, it may be readable."""


class CalibrationError(SimserveError):
    """Kernel timings or a calibration file that cannot be used."""


class PolicyError(SimserveError):
    """A scheduler or router that is missing, raised, or returned an invalid answer; names policy, time and rule."""


def blame(policy: object) -> str:
    """Return the remedy for a policy that broke a rule: a built-in one was given arguments that make it."""
    return "correct its arguments" if type(policy).__module__.startswith("simserve.") else "correct the policy"


class OutputError(SimserveError):
    """Results that cannot be written, or cannot be read back."""


class InvariantError(Exception):
    """A broken law of the simulator itself: a bug, never a user's error."""

    def __init__(self, law: str, left: object, right: object, at_s: float) -> None:
        self.law = law
        super().__init__(f"{law}: {left} != {right} at {at_s:.9f} s of simulated time; please report this")


def closest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice nearest to a name, ignoring case and hyphens; None if none is near."""
    plain = {_plain(choice): choice for choice in choices}
    near = difflib.get_close_matches(_plain(name), list(plain), n=1, cutoff=0.6)
    return plain[near[0]] if near else None


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return a remedy for an unknown name: the nearest choice, or all of them."""
    names = list(choices)
    near = closest(name, names)
    if near is not None:
        return f"did you mean {near}?"
    return f"choose from {', '.join(names)}" if names else "there is nothing to choose from"


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
