"""Pages of docs/studies: each has a scenario, a command and a line in the index, and its commands run."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from simserve import load_scenario
from tests.cli.invoke import invoke

STUDIES = Path(__file__).parents[1] / "docs" / "studies"
NAMES = sorted(page.stem for page in STUDIES.glob("*.md") if page.stem != "README")
QUICKLY = ("measure.replays=0", "workload.n_requests=600", "measure.warmup_requests=60")


def text_of(name: str) -> str:
    return (STUDIES / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_a_scenario_a_command_and_a_line_in_the_index(name: str) -> None:
    text = text_of(name)
    assert f"\npython docs/studies/{name}.py\n" in text
    assert f"\nsimserve run docs/studies/{name}.yaml\n" in text
    assert re.search(r"<!-- printed -->\n\n\|.*\|\n\n<!-- end -->", text, re.DOTALL)
    assert f"]({name}.md)" in text_of("README")


@pytest.mark.parametrize("name", NAMES)
def test_a_study_has_no_second_copy_of_its_scenario(name: str) -> None:
    assert load_scenario(STUDIES / f"{name}.yaml").name == name.replace("_", "-")
    assert "simserve/1" not in (STUDIES / f"{name}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_a_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(STUDIES, tmp_path / "docs" / "studies")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```sh\n(.*?)^```", text_of(name), re.MULTILINE | re.DOTALL)
    lines = [
        line for block in blocks for line in block.replace("\\\n", "").splitlines() if line.startswith("simserve ")
    ]
    assert len(lines) >= 2
    for line in lines:
        fewer = [option for change in QUICKLY for option in ("--set", change)]
        outcome = invoke(*shlex.split(line)[1:], "--no-report", *fewer)
        assert outcome.exit_code == 0, f"{line}\n{outcome.err}"
