"""What surrounds the code says the same as the code: workflows, hooks, forms and the citation."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from simserve.version import __version__
from tests.cli.invoke import invoke

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_reads_only_and_uses_actions_by_their_commit(path: Path) -> None:
    assert read(path)["permissions"] == {"contents": "read"}
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert all(re.search("@[0-9a-f]{40}$", each) for each in used)


def test_ci_is_the_script_that_anybody_can_run() -> None:
    assert [step["run"] for step in steps(ROOT / ".github" / "workflows" / "ci.yml") if "run" in step] == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_wheels_are_built_for_all_versions_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r"Python :: 3\.\d+$", each)}
    [built] = [env["CIBW_BUILD"] for step in steps(WORKFLOWS[1]) if "CIBW_BUILD" in (env := step.get("env", {}))]
    assert {f"3.{minor}" for minor in re.findall(r"cp3(\d+)-", built)} == named
    assert project["requires-python"] == f">={min(named, key=lambda each: int(each[2:]))}"


def test_the_citation_names_this_version() -> None:
    assert read(ROOT / "CITATION.cff")["version"] == __version__


def test_links_lead_somewhere_outside_the_checkout() -> None:
    """Those of the README on the package index, and that of `simserve --help`, which is the project's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for each in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    targets, repository = re.findall(r"\]\((.*?)\)", text), project["project"]["urls"]["Repository"]
    assert len(targets) > 15
    assert all(target.startswith((f"{repository}/blob/main/", f"{repository}/raw/main/")) for target in targets)
    assert project["project"]["urls"]["Documentation"] in "".join(invoke("--help").out.split())


def test_hooks_are_checks_of_ci() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    hooks = read(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert all(f'step "{hook["name"]}" {hook["entry"]}' in ci for hook in hooks)


@pytest.mark.parametrize("path", [form for form in FORMS if form.stem != "config"], ids=lambda path: path.stem)
def test_a_form_asks_for_something_it_cannot_do_without(path: Path) -> None:
    form = read(path)
    assert {"name", "description", "body"} <= form.keys()
    assert any(part.get("validations", {}).get("required") for part in form["body"])
    assert len({part["id"] for part in form["body"]}) == len(form["body"])


def test_nobodys_address_is_in_the_package() -> None:
    told = "".join(
        (ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "CITATION.cff", "README.md")
    )
    assert not re.search(r"[\w.]+@[\w-]+\.[a-z]{2,}", told)
