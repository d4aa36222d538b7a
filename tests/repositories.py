"""Git repositories of tests: git does what it is told, there, whatever repository the tests themselves run in."""

import os
import subprocess
from pathlib import Path

OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
"""The environment without the variables by which git names the repository of a hook or a rebase."""


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, as somebody; return what it prints."""
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    command = ["git", *who, *arguments]
    return subprocess.run(command, cwd=folder, env=OUTSIDE, check=True, capture_output=True, text=True).stdout
