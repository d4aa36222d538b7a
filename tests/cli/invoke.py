"""Run a command line inside this process, as the console script would."""

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from simserve.cli.main import execute


@dataclass(frozen=True)
class Outcome:
    """What came of a command."""

    exit_code: int
    out: str
    err: str


def invoke(*arguments: object) -> Outcome:
    """The exit code and what was printed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        exit_code = execute([str(argument) for argument in arguments])
    return Outcome(exit_code, out.getvalue(), err.getvalue())
