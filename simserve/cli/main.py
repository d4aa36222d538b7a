"""The program `simserve`: run one command, and turn its outcome into an exit code and a message."""

import errno
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import requires
from itertools import pairwise
from types import FrameType
from typing import Any

from simserve.cli import terminal

GOOD = 0
BAD_INPUT = 2
OUR_BUG = 70  # EX_SOFTWARE of sysexits.h; 1 means that the answer is "no"
INTERRUPTED = 130

AGAIN_S = 0.05
"""Time after which a Ctrl-C that Python ignored is delivered again, once the finalizer is over."""


def main() -> int:
    """Run the console script."""
    _open_standard_streams()
    os.environ["PYTHONSAFEPATH"] = "1"  # of workers: the current directory may hold a stranger's numpy.py
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: idle threads spin, and its matrices are small
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # those of libraries, which speak to programmers
    try:
        exit_code = execute(sys.argv[1:])
    except KeyboardInterrupt:  # a second Ctrl-C, while the first was being reported
        exit_code = INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the exit code is known
    return exit_code


def _open_standard_streams() -> None:
    """Open the null device in place of a closed standard stream: the next file would get its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)  # by workers, also where it was the lowest free number
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def execute(arguments: Sequence[str]) -> int:
    """Run the command in `arguments`, print its messages, and return the exit code."""
    with _interruptions() as was_interrupted:
        try:
            return _invoke(arguments)
        except BaseException as error:  # a library may convert a KeyboardInterrupt
            if was_interrupted() or isinstance(error, KeyboardInterrupt):
                terminal.message("interrupted")
                return INTERRUPTED
            return _report_failure(error)


def _invoke(arguments: Sequence[str]) -> int:
    import typer

    from simserve.allowed_modules import limited_modules
    from simserve.cli.app import command

    click_exception: Any = typer.BadParameter.__mro__[2]  # which typer does not export
    try:
        with limited_modules():
            exit_code = command()(args=list(arguments), prog_name="simserve", standalone_mode=False)
    except click_exception as error:
        _say_as_we_do(error, arguments)
        error.show()
        return BAD_INPUT
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer's own, where the reader closed the pipe
            return GOOD
        raise _foreign_exit(end) from end
    if exit_code == INTERRUPTED:
        raise KeyboardInterrupt
    return exit_code if isinstance(exit_code, int) else GOOD


def _say_as_we_do(error: Any, arguments: Sequence[str]) -> None:
    """Put a library's message in our words, with the value, and name the key that an unknown option means."""
    from simserve.scenario.glossary import remedy_for_unknown

    if rule := re.match(r"Input should (be [^,]*)", error.message):
        got = [f", got {each}" for before, each in pairwise(arguments) if before in getattr(error.param, "opts", ())]
        error.message = f"must {rule[1].replace('valid integer', 'whole number')}" + "".join(got[-1:])
    error.message = error.message.removeprefix("Value error, ")
    option, command = getattr(error, "option_name", None), getattr(error.ctx, "command", None)
    if option is not None and any("--set" in parameter.opts for parameter in getattr(command, "params", ())):
        remedy = remedy_for_unknown((option.lstrip("-"),))
        if remedy is not None:
            error.message, error.possibilities = f"{error.message}; {remedy}, with --set KEY=VALUE", ()


def _foreign_exit(end: SystemExit) -> Exception:
    """Return the error of a plug-in that ends the program: its exit code must not pass for the command's."""
    from simserve.errors import PolicyError

    last = traceback.extract_tb(end.__traceback__)[-1]
    return PolicyError(f"{last.filename}:{last.lineno}: a plug-in must not exit, got {end!r}; remove the call")


def _report_failure(error: BaseException) -> int:
    from simserve.errors import SimserveError

    if isinstance(error, SimserveError):
        terminal.errors(str(error))
        return BAD_INPUT
    if isinstance(error, OSError) and error.strerror is not None:
        terminal.errors(error.strerror if error.filename is None else f"{error.filename}: {error.strerror}")
        if error.errno == errno.ENOSPC and error.filename is None:  # of what a library writes
            terminal.give_up(sys.stdout)
        return BAD_INPUT
    if type(error) in (ImportError, ModuleNotFoundError, ValueError) and "librt" in str(error):  # of compiled files
        needs = [each for each in requires("simserve") or () if each.startswith("librt")]
        terminal.errors(f"compiled files of simserve cannot run: {error}; pip install '{''.join(needs) or 'librt'}'")
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
    """Record Ctrl-C while the block runs: some libraries convert its KeyboardInterrupt to other errors."""
    seen: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    def deliver_again(ignored: "sys.UnraisableHookArgs") -> None:  # where Python ignores what a finalizer raises
        if ignored.exc_type is KeyboardInterrupt:
            to = threading.main_thread().ident or 0
            threading.Timer(AGAIN_S, signal.pthread_kill, [to, signal.SIGINT]).start()
        else:
            hook(ignored)

    hook = sys.unraisablehook
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored in a shell's background job
        yield lambda: False
        return
    signal.signal(signal.SIGINT, remember)
    sys.unraisablehook = deliver_again
    try:
        yield lambda: bool(seen)
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, signal.default_int_handler)
