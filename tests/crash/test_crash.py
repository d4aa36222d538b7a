"""Every command that writes is killed over an earlier, different result: each of its places is then old or new."""

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simserve.tables.folder import KINDS
from tests.crash.commands import COMMANDS, Inputs
from tests.effort import is_thorough

ROOT = Path(__file__).resolve().parents[2]

QUICK = ("run", "init", "sweep")
"""Commands that are killed by default, and not only under --thorough."""

STUDIES = ("calibrate", "capacity", "check", "compare", "plan", "sweep", "validate")
"""Commands that take longer, which are killed less often."""

JOURNALS = {kind.journal for kind in KINDS if kind.journal}

State = dict[str, bytes]


class Server:
    """Runs commands, and kills them."""

    def __init__(self, pipes: "subprocess.Popen[str]") -> None:
        self._pipes = pipes

    def run(self, folder: Path, arguments: list[str], after_s: float | None = None, at: int | None = None) -> Any:
        """Run a command to its end, or kill it after some seconds or at a change; return how long, and its changes."""
        assert self._pipes.stdin is not None and self._pipes.stdout is not None
        self._pipes.stdin.write(json.dumps([str(folder), arguments, after_s, at]) + "\n")
        self._pipes.stdin.flush()
        exit_code, lasts_s, n_changes = json.loads(self._pipes.stdout.readline())
        is_killed = (after_s, at) != (None, None)
        assert exit_code in ((0, 1, None) if is_killed else (0, 1)), (folder.parent / "output").read_text()
        return lasts_s, n_changes


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A process that runs commands, each on one core."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LOKY_MAX_CPU_COUNT": "1"}
    command = [sys.executable, "-m", "tests.crash.server"]
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Server(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Inputs, Inputs]:
    """The inputs of the earlier commands, and of those that are killed."""
    folder = tmp_path_factory.mktemp("inputs")
    return Inputs(folder, 1), Inputs(folder, 2)


def state(place: Path) -> State:
    """The files of a place, without journals, and without those that a killed command had not finished."""
    files = [place] if place.is_file() else place.rglob("*")
    whole = (file for file in files if file.is_file() and file.suffix != ".partial" and file.name not in JOURNALS)
    return {str(file.relative_to(place)): file.read_bytes() for file in whole}


def restore(place: Path, saved: Path) -> None:
    """Put a place back as it was, whatever lies beside it."""
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    if saved.exists():
        (shutil.copytree if saved.is_dir() else shutil.copy2)(saved, place)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in COMMANDS]
)
def test_a_kill_leaves_the_earlier_result_or_the_new_one(
    name: str, server: Server, inputs: tuple[Inputs, Inputs], tmp_path: Path
) -> None:
    command, work, saved = COMMANDS[name], tmp_path / "work", tmp_path / "saved"
    work.mkdir()
    earlier = command.line if command.earlier is None else command.earlier
    before, line = (
        shlex.split(text.format_map(each)) for text, each in zip((earlier, command.line), inputs, strict=True)
    )
    if before:
        server.run(work, before)
    shutil.copytree(work, saved)
    lasts_s, n_changes = server.run(work, line)
    allowed = {place: (state(saved / place), state(work / place)) for place in command.places}
    assert all(old != new for old, new in allowed.values())
    draw = random.Random(name)
    for n in range((4 if name.split()[0] in STUDIES else 12) if is_thorough() else 2):
        for place in command.places:
            restore(work / place, saved / place)
        kill = {"at": draw.randrange(n_changes)} if n % 2 else {"after_s": draw.uniform(0, 1.1 * lasts_s)}
        server.run(work, line, **kill)
        for place, states in allowed.items():
            assert state(work / place) in states, (place, kill)
        for journal in (file for file in saved.rglob("*") if file.name in JOURNALS):
            assert (work / journal.relative_to(saved)).read_bytes().startswith(journal.read_bytes())
    if before or not (work / command.places[0]).exists():
        server.run(work, line)
    assert [state(work / place) for place in command.places] == [new for _, new in allowed.values()]
    assert not list(work.rglob(".*"))
