"""The files under test are those of the build that was asked for: the sources, or what hatch_build.py compiled."""

import os

from tests.cli.invoke import invoke


def test_the_version_says_how_it_was_built() -> None:
    build = os.environ.get("SIMSERVE_BUILD", "pure")  # .ci/run sets it for the wheels
    assert invoke("--version").out.endswith(f" ({build})\n")
