"""The files under test are those of the build that was asked for: the sources, or what hatch_build.py compiled."""

import os
from importlib.metadata import requires

import pytest

from simserve.cli.main import execute
from tests.cli.invoke import invoke


def test_the_version_says_how_it_was_built() -> None:
    build = os.environ.get("SIMSERVE_BUILD", "pure")  # .ci/run sets it for the wheels
    assert invoke("--version").out.endswith(f" ({build})\n")


def test_a_compiled_build_asks_for_the_library_of_its_columns_and_a_pure_one_does_not() -> None:
    needs = [each for each in requires("simserve") or () if each.startswith("librt")]
    assert len(needs) == (os.environ.get("SIMSERVE_BUILD", "pure") == "compiled")


@pytest.mark.parametrize("why", ["No module named 'librt'", "ABI version conflict for librt.vecs, expected 1, found 2"])
def test_without_that_library_a_command_says_what_to_install(
    why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: object) -> int:
        raise ImportError(why)

    monkeypatch.setattr("simserve.cli.main._invoke", fail)
    assert execute(["run"]) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert f"compiled files of simserve cannot run: {why}; pip install 'librt" in printed.err
