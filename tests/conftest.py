"""How the suite shares the machine, how much it tries, and the last line that says what it proved."""

import functools
import os
import signal
from collections import Counter
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

from tests.effort import N_SLICES, in_slice, proved, set_effort

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""Before numpy is loaded, here and in whatever the tests start. Our matrices are small: two workers with two threads
each spend more time waiting for each other than computing."""
os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")
"""Studies run in the process of their test, as there is a worker a core; tests of processes ask for `all_cores`."""
os.environ.setdefault("SIMSERVE_PROGRESS", "off")
"""What is printed does not depend on how long a test takes."""

THOROUGH_LIMIT_S = 3000
"""Limit of a test with --thorough: ten times as many cases, ten times the `timeout` of pyproject.toml."""

SENTENCES = {
    "oracle": "engine = oracle on {n:,} random clusters",
    "theory": "{n:,} queues wait as queueing theory says",
    "coverage": "{n:,} kinds of interval hold the truth as often as they claim",
    "golden": "tables of {n:,} shipped scenarios unchanged to the last bit",
    "answers": "answers of {n:,} small studies unchanged",
    "examples": "{n:,} random cases of other laws",
    "tests": "{n:,} tests in all",
}
"""What the last line says of each law. Only tests that passed are counted."""

totals: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --thorough and --slice."""
    parser.addoption("--thorough", action="store_true", help="try ten times as many random cases, and skip nothing")
    places = range(1, N_SLICES + 1)
    parser.addoption("--slice", type=int, choices=places, help="run that part of what --thorough tries more of")


def pytest_configure(config: pytest.Config) -> None:
    """Set the effort before any test is collected, and let Ctrl-C tests work in a background job of a shell too."""
    config.addinivalue_line("markers", "law(name): a test counts under this law in the last line")
    config.addinivalue_line("markers", "thorough: a test takes long, has no shorter form, and runs with --thorough")
    config.option.thorough |= bool(config.option.slice)
    set_effort(config.option.thorough)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a slice, or leave out what takes long and has no shorter form; with --thorough, allow more time instead."""
    if config.option.slice:
        kept = in_slice(config.option.slice, items)
        config.hook.pytest_deselected(items=list(set(items) - set(kept)))
        items[:] = kept
    for item in items:
        if config.getoption("--thorough"):
            item.add_marker(pytest.mark.timeout(THOROUGH_LIMIT_S))  # a test's own mark comes first
        elif item.get_closest_marker("thorough"):
            item.add_marker(pytest.mark.skip(reason="runs with --thorough"))


class TimedOut(BaseException):
    """A test has run longer than its limit.

    Not an Exception: hypothesis would try the case again, to shrink it, and hang for good.
    """


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, Any, Any]:
    """Fail a test that hangs at once, hypothesis or not."""
    result = yield
    fail = signal.getsignal(signal.SIGALRM) if settings.method == "signal" else None
    if callable(fail):

        def stop(number: int, frame: Any) -> None:
            try:
                fail(number, frame)
            except pytest.fail.Exception as failure:
                raise TimedOut(failure.msg) from None

        signal.signal(signal.SIGALRM, stop)
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "Scheduling | None":
    """Let a worker that is done take tests from the others, as a few tests take most of the time."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Count what the test holds, and send the counts along with its report, across processes too."""
    proved.clear()
    proved.update(mark.args[0] for mark in item.iter_markers("law"))
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    inner = getattr(handle, "inner_test", None)
    if handle is not None and inner is not None:
        handle.inner_test = _counted(inner)
    try:
        yield
    finally:
        if handle is not None and inner is not None:
            handle.inner_test = inner
    if proved["oracle"]:
        del proved["examples"]
    item.user_properties.append(("proved", dict(proved)))


def _counted(test: Callable[..., Any]) -> Callable[..., Any]:
    """Return the property that hypothesis tries, counting the cases that it held."""

    @functools.wraps(test)
    def counted(*args: Any, **kwargs: Any) -> None:
        test(*args, **kwargs)
        proved["examples"] += 1

    return counted


@pytest.fixture
def all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a study processes of its own, two at least, as on a user's machine."""
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", str(os.cpu_count()))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the counts of a passed test."""
    if report.when == "call" and report.passed:
        totals["tests"] += 1
        for name, counts in report.user_properties:
            if name == "proved" and isinstance(counts, dict):
                totals.update(counts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was proved, before the line that counts passes."""
    result = "; ".join(text.format(n=totals[law]) for law, text in SENTENCES.items() if totals[law])
    if result:
        part = f" by slice {config.option.slice} of {N_SLICES}" if config.option.slice else ""
        advice = "" if config.getoption("--thorough") else " Ten times as many: --thorough."
        terminalreporter.write_line(f"Proved{part}: {result}.{advice}")
