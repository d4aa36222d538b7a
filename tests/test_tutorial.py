"""The tutorial is short, and runs as written from an empty folder, with what it says is printed."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.pages import ROOT, all_blocks, blocks, not_printed, read

PAGE = read("docs/tutorial.md")
BLOCKS = all_blocks(PAGE)
COMMANDS = blocks(PAGE, "sh")


def printed(command: str) -> str:
    """Return what the page says that a command prints."""
    following = BLOCKS[BLOCKS.index(("sh", command)) + 1 :]
    return following[0][1] if following and following[0][0] == "text" else ""


def test_it_can_be_finished() -> None:
    assert COMMANDS[0].strip() == "pip install simserve" and 8 <= len(COMMANDS) <= 12
    assert len(PAGE.split()) <= 1500


def test_it_shows_what_most_commands_print() -> None:
    assert sum(bool(printed(command)) for command in COMMANDS) >= 6


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment in which simserve is to be installed, from a wheel of this checkout, and all that it needs is."""
    wheels, venv = tmp_path / "wheels", tmp_path / "venv"
    environment = {**os.environ, "SIMSERVE_PURE": "1"}
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(ROOT)]
    subprocess.run(build, env=environment, check=True)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    path = os.pathsep.join([str(venv / "bin"), os.environ["PATH"]])
    pip = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_FIND_LINKS": str(wheels), "PIP_FORCE_REINSTALL": "1"}
    return {**os.environ, **pip, "PATH": path, "PYTHONPATH": "", "SIMSERVE_PROGRESS": "off"}


@pytest.mark.thorough
def test_it_runs_as_written_from_an_empty_folder(shell: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    for command in COMMANDS:
        done = subprocess.run(
            command, shell=True, cwd=folder, env=shell, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        missing = not_printed(printed(command), done.stdout)
        assert missing is None, f"{command}\nprints no {missing!r} in this place:\n{done.stdout}"
    installed = subprocess.run(["simserve", "--version"], env=shell, capture_output=True, text=True, check=True)
    assert "pure" in installed.stdout
