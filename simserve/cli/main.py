"""The program `simserve`: runs one command, and turns whatever comes of it into an exit code and a message."""

import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

GOOD = 0
BAD_INPUT = 2
OUR_BUG = 70  # EX_SOFTWARE of sysexits.h; 1 is kept for answers that are "no"
INTERRUPTED = 130


def main() -> int:
    """The console script."""
    try:
        exit_code = execute(sys.argv[1:])
    except KeyboardInterrupt:  # a second Ctrl-C, while the first was being reported
        exit_code = INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is over and its exit code is known
    return exit_code


def execute(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` ask for, print its messages, and return the exit code."""
    with _interruptions() as was_interrupted:
        try:
            return _invoke(arguments)
        except BaseException as error:  # whatever a library made of a KeyboardInterrupt, it was one
            if was_interrupted() or isinstance(error, KeyboardInterrupt):
                return _report_interruption()
            return _report_failure(error)


def _invoke(arguments: Sequence[str]) -> int:
    from simserve.cli.app import app

    try:
        app(args=list(arguments), prog_name="simserve")
    except SystemExit as end:  # typer always ends so, after its own usage errors too
        if end.code == INTERRUPTED:
            raise KeyboardInterrupt from None
        return end.code if isinstance(end.code, int) else GOOD
    return GOOD


def _report_interruption() -> int:
    from simserve.cli import terminal

    terminal.message("interrupted")
    return INTERRUPTED


def _report_failure(error: BaseException) -> int:
    from simserve.cli import terminal
    from simserve.errors import SimserveError

    if isinstance(error, SimserveError):
        terminal.errors(str(error))
        return BAD_INPUT
    if isinstance(error, OSError) and error.filename is not None:
        terminal.errors(f"{error.filename}: {error.strerror}")
        return BAD_INPUT
    if isinstance(error, MemoryError):
        terminal.errors("out of memory; try fewer requests, or --steps none")
        return BAD_INPUT
    traceback.print_exception(error)
    terminal.message(f"internal error: {type(error).__name__}: {error}")
    terminal.message("this is a bug in simserve, not in your input; please report it with the traceback above")
    return OUR_BUG


@contextmanager
def _interruptions() -> Iterator[Callable[[], bool]]:
    """Remember Ctrl-C while the block runs: some libraries turn its KeyboardInterrupt into errors of their own."""
    seen: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, as in a shell's background job
        yield lambda: False
        return
    signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
