"""Exit codes and messages: whatever a command does, the program ends as docs/cli.md says."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simserve.cli import terminal
from simserve.errors import InvariantError, Problem, ScenarioError
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario


@pytest.fixture
def a_command_that(monkeypatch: pytest.MonkeyPatch) -> "Replace":
    """Make the least command there is, `simserve --version`, do something else when it comes to print."""
    return lambda behavior: monkeypatch.setattr(terminal, "result", lambda text: behavior())


def raising(error: BaseException) -> Callable[[], None]:
    def behavior() -> None:
        raise error

    return behavior


Replace = Callable[[Callable[[], None]], None]


def test_a_command_that_ends_well_is_0() -> None:
    assert invoke("--version").exit_code == 0


def test_the_version_is_the_answer_and_goes_to_stdout() -> None:
    outcome = invoke("--version")
    assert outcome.out.startswith("simserve ")
    assert outcome.err == ""


def test_a_users_mistake_is_2_with_a_line_each_and_no_traceback(a_command_that: Replace) -> None:
    problems = [Problem("a.yaml:3: seed", "must be a whole number", "'x'"), Problem("a.yaml:9: gpu", "is missing")]
    a_command_that(raising(ScenarioError(problems)))
    outcome = invoke("--version")
    assert outcome.exit_code == 2
    assert outcome.out == ""
    assert outcome.err.splitlines() == [
        "simserve: error: a.yaml:3: seed: must be a whole number, got 'x'",
        "simserve: error: a.yaml:9: gpu: is missing",
    ]


@pytest.mark.parametrize("error", [InvariantError("blocks", 3, 4, 1.5), KeyError("oops")])
def test_a_bug_of_ours_is_70_and_keeps_its_traceback(a_command_that: Replace, error: Exception) -> None:
    a_command_that(raising(error))
    outcome = invoke("--version")
    assert outcome.exit_code == 70
    assert "Traceback (most recent call last)" in outcome.err
    assert f"simserve: internal error: {type(error).__name__}" in outcome.err
    assert "bug in simserve" in outcome.err.splitlines()[-1]


def test_a_file_that_the_system_refuses_is_2_and_named(a_command_that: Replace, tmp_path: Path) -> None:
    a_command_that(lambda: (tmp_path / "missing" / "file").touch())
    outcome = invoke("--version")
    assert outcome.exit_code == 2
    assert outcome.err == f"simserve: error: {tmp_path / 'missing' / 'file'}: No such file or directory\n"


def test_want_of_memory_is_2_with_a_remedy(a_command_that: Replace) -> None:
    a_command_that(raising(MemoryError()))
    outcome = invoke("--version")
    assert outcome.exit_code == 2
    assert "out of memory; try" in outcome.err


def test_ctrl_c_is_130_and_one_line(a_command_that: Replace) -> None:
    a_command_that(lambda: os.kill(os.getpid(), signal.SIGINT))
    outcome = invoke("--version")
    assert outcome.exit_code == 130
    assert outcome.err == "simserve: interrupted\n"


def test_ctrl_c_that_a_library_turned_into_its_own_error_is_still_130(a_command_that: Replace) -> None:
    def behavior() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("something failed halfway") from None

    a_command_that(behavior)
    outcome = invoke("--version")
    assert outcome.exit_code == 130
    assert outcome.err == "simserve: interrupted\n"


def test_a_command_leaves_the_signal_handler_as_it_found_it(a_command_that: Replace) -> None:
    before = signal.getsignal(signal.SIGINT)
    a_command_that(raising(KeyError("oops")))
    invoke("--version")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "a.yaml", "b.yaml"],
        ["run", "a.yaml", "--no-such-option"],
        ["run", "a.yaml", "--seed", "many"],
        ["run", "a.yaml", "--steps", "some"],
        ["simulate", "a.yaml"],
        ["trace", "draw"],
    ],
    ids=" ".join,
)
def test_a_mistyped_command_line_is_2_and_answers_nothing(arguments: list[str]) -> None:
    outcome = invoke(*arguments)
    assert outcome.exit_code == 2
    assert outcome.out == ""
    assert outcome.err
    assert "Traceback" not in outcome.err


COMMANDS = (
    *("calibrate", "capacity", "catalog", "check", "compare", "explain", "export", "init", "plan"),
    *("report", "run", "schema", "sweep", "trace", "validate"),
)


CLOSED = ("2>&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-")
"""Standard streams that a shell closes."""


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        ("explain tiny.yaml --set gpu=none", 2),
        ("run tiny.yaml --replications 3 --jobs 2 --no-report --out out", 0),
    ],
)
def test_a_closed_stream_is_one_that_nobody_reads(arguments: str, exit_code: int, closed: str, tmp_path: Path) -> None:
    write_scenario(tmp_path)
    line = f"{shlex.quote(str(Path(sys.executable).parent / 'simserve'))} {arguments} {closed}"
    environment = os.environ | {"LOKY_MAX_CPU_COUNT": "2"}
    command = ["sh", "-c", line]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "error: " not in done.stdout


def test_help_lists_every_command() -> None:
    text = invoke("--help").out
    listed = {line.split()[0] for line in text.partition("Commands:")[2].splitlines() if line.startswith("  ")}
    assert listed >= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    outcome = invoke(command, "--help")
    assert outcome.exit_code == 0
    assert f"Usage: simserve {command}" in outcome.out


FULL = """
import os, resource, signal, sys
from pathlib import Path
from simserve.cli.main import execute

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
folder = Path(sys.argv[1])
assert execute(["init", str(folder / "a.yaml")]) == 2
assert execute(["trace", "convert", str(folder / "trace.csv"), str(folder / "b.parquet")]) == 2
os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
assert execute(["--version"]) == 2
os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
assert execute(["--help"]) == 2
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    rows = "".join(f"{row},10,5\n" for row in range(500))
    (tmp_path / "trace.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
    (tmp_path / "a.yaml").touch()  # what an earlier version has left
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        env=os.environ | {"PYTHONUNBUFFERED": ""},  # what is buffered is written again at the end
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.splitlines() == [
        f"simserve: error: {tmp_path / 'a.yaml'}: must be writable, got File too large; free space or permit it",
        f"simserve: error: {tmp_path / 'b.parquet'}: must be writable, got File too large; free space or permit it",
        "simserve: error: stdout: cannot be written: No space left on device; free space there",
        "simserve: error: No space left on device",
    ]
    assert {file.name for file in tmp_path.iterdir()} == {"trace.csv", "a.yaml"}
    assert invoke("init", tmp_path / "a.yaml").exit_code == 0
    assert "already exists" in invoke("init", tmp_path / "a.yaml").err


def test_ctrl_c_that_a_finalizer_swallows_still_ends_the_command() -> None:
    program = (
        "import signal, sys, time\n"
        "from simserve.cli import main, terminal\n"
        "class Unlucky:\n"
        "    def __del__(self): signal.raise_signal(signal.SIGINT); time.sleep(0.01)\n"
        "def lasts(text): Unlucky(); time.sleep(30)\n"
        "terminal.result = lasts\n"
        "sys.argv = ['simserve', '--version']; sys.exit(main.main())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "simserve: interrupted\n")
