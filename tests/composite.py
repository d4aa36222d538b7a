"""Run the steps of action.yml as GitHub's runner would, with doubles for the other actions, pip and gh."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]

BOT = "github-actions[bot]"

PYTHON = f"""#!/bin/bash
[ "$1 $2 $3" = "-I -m pip" ] || exec {sys.executable} "$@"
printf '%s\\n' "${{@:4}}" >> "$PIP_LOG"
[ "$4" != wheel ] || {{ mkdir -p "$7" && touch "$7/simserve-0-py3-none-any.whl"; }}
"""
"""A python whose pip only notes its arguments and builds an empty wheel."""

SIMSERVE = f"""#!{sys.executable} -I
import json, os, pathlib, sys
here, given = pathlib.Path(sys.argv[0]).parent, sys.argv[1:]
with (here / "calls").open("a") as file:
    file.write(json.dumps(given) + "\\n")
answers = json.loads((here / "answers").read_text())
answer = answers.get(given[-1], answers.get("", {{}}))
for option in ("--summary", "--junit"):
    if option in answer:
        pathlib.Path(given[given.index(option) + 1]).write_text(answer[option])
if "--junit" in answer:
    out = pathlib.Path(given[given.index("--out") + 1])
    out.mkdir()
    (out / "report.html").write_text("a page")
sys.stdout.write(answer.get("out", ""))
sys.stderr.write(answer.get("err", ""))
sys.exit(answer.get("code", 0))
"""
"""A command in place of simserve, which keeps its arguments and answers by scenario as the test wants."""

GH = f"""#!{sys.executable} -I
import json, os, pathlib, re, sys
place = pathlib.Path(sys.argv[0]).parent / "comments"
comments = json.loads(place.read_text())
call = sys.argv[1:]
if os.environ.get("GH_TOKEN") != "secret" or os.environ.get("GH_HOST") != "github.example":
    sys.exit("gh: wrong credentials")
if "403" in comments:
    sys.exit("gh: Resource not accessible by integration (HTTP 403)\\n::error::from the API")
if call[:2] == ["api", "--paginate"] and call[2:] == ["repos/o/r/issues/7/comments?per_page=100"]:
    for start in range(0, len(comments), 2):
        print(json.dumps(comments[start:start + 2]), end="")
else:
    _, _, method, path, *rest = call
    assert rest == ["--input", "-"], rest
    body = json.load(sys.stdin)["body"]
    assert len(body) < 65536
    if method == "POST" and path == "repos/o/r/issues/7/comments":
        comments.append({{"id": 100 + len(comments), "user": {{"login": "{BOT}"}}, "body": body}})
    else:
        number = int(re.fullmatch("repos/o/r/issues/comments/(.*)", path)[1])
        assert method == "PATCH"
        next(each for each in comments if each["id"] == number)["body"] = body
    place.write_text(json.dumps(comments))
"""
"""A command in place of gh, with the comments of pull request 7 of o/r."""


class Ended(NamedTuple):
    """How a step or all of them ended."""

    exit_code: int
    output: str
    summary: str
    log: str


def action() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return content


def step(name: str = "simserve check") -> dict[str, Any]:
    """Return a step, by default the one that runs the gate."""
    result: dict[str, Any] = next(each for each in action()["runs"]["steps"] if each.get("name") == name)
    return result


def value_of(text: str, given: Mapping[str, str]) -> Any:
    """Return what an expression of a workflow stands for."""
    words = re.sub(r"\b[a-z]\w*(\.[\w-]+)+", lambda match: repr(given.get(match[0], "")), text)
    words = words.replace("!cancelled()", "True").replace("||", " or ").replace("&&", " and ")
    return eval(words.strip(), {"__builtins__": {}})


def filled(text: object, given: Mapping[str, str]) -> str:
    """Return a text with what its `${{ }}` stand for."""
    return re.sub(r"\$\{\{(.*?)\}\}", lambda match: str(value_of(match[1], given)), str(text), flags=re.DOTALL)


def run_as_on_github(folder: Path, step: dict[str, Any], given: Mapping[str, str]) -> Ended:
    """Return how a step ends: `bash -e -o pipefail`, with what its `${{ }}` stand for."""
    values = {key: filled(text, given) for key, text in step.get("env", {}).items()}
    files = {name: folder / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.write_text("")
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    (folder / "temp").mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "GITHUB_ACTION_PATH": given.get("github.action_path", str(ROOT)),
        "GITHUB_REPOSITORY": "o/r",
        "GITHUB_RUN_ID": "42",
        "GITHUB_SERVER_URL": "https://github.example",
        "RUNNER_TEMP": str(folder / "temp"),
        "PIP_LOG": str(folder / "pip.log"),
        **values,
        **{name: str(file) for name, file in files.items()},
        "PATH": path,
    }
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    output, summary = (file.read_text(encoding="utf-8") for file in files.values())
    return Ended(done.returncode, output, summary, done.stdout + done.stderr)


def run_step(folder: Path, name: str = "simserve check", /, **inputs: str) -> Ended:
    """Return how a step ends, with the given inputs and the defaults."""
    return run_as_on_github(
        folder, step(name), {f"inputs.{key}": value for key, value in (defaults() | inputs).items()}
    )


def defaults() -> dict[str, str]:
    return {key: value.get("default", "") for key, value in action()["inputs"].items()}


@dataclass
class Runner:
    """A machine for jobs on pull request 7: its caches and artifacts outlive a job, its folder does too."""

    folder: Path
    caches: dict[str, dict[str, bytes]] = field(default_factory=dict)
    artifacts: dict[str, set[str]] = field(default_factory=dict)
    n_runs: int = 0

    def answers(self, **by_scenario: Any) -> None:
        """Let the double of simserve answer; the key `any` is for all scenarios without an answer of their own."""
        text = json.dumps({"" if key == "any" else key: value for key, value in by_scenario.items()})
        (self.folder / "bin" / "answers").write_text(text)

    @property
    def calls(self) -> list[list[str]]:
        """Arguments of each call of simserve."""
        return [json.loads(line) for line in (self.folder / "bin" / "calls").read_text().splitlines()]

    @property
    def comments(self) -> list[dict[str, Any]]:
        comments: list[dict[str, Any]] = json.loads((self.folder / "bin" / "comments").read_text())
        return comments

    @comments.setter
    def comments(self, value: object) -> None:
        (self.folder / "bin" / "comments").write_text(json.dumps(value))

    def install_doubles(self) -> None:
        (self.folder / "bin").mkdir()
        for name, text in (("python", PYTHON), ("simserve", SIMSERVE), ("gh", GH)):
            file = self.folder / "bin" / name
            file.write_text(text)
            file.chmod(0o755)
        self.comments = []

    def job(self, commit: str = "c0ffee", *, base: str = "main", pull: str = "7", **inputs: str) -> Ended:
        """Run all steps; return the worst exit code, the outputs of the action, and summaries and logs together."""
        self.n_runs += 1
        given = {f"inputs.{key.replace('_', '-')}": value for key, value in (defaults() | inputs).items()}
        given |= {"github.run_id": str(self.n_runs), "github.run_attempt": "1", "github.token": "secret"}
        if pull:
            given |= {"github.base_ref": base, "github.event.pull_request.number": pull}
            given |= {"github.event.pull_request.head.sha": commit, "github.sha": "the merge"}
        else:
            given |= {"github.ref_name": base, "github.sha": commit}
        exit_code, summaries, logs = 0, "", ""
        for each in action()["runs"]["steps"]:
            condition = str(each.get("if", "")).removeprefix("${{").removesuffix("}}")
            if (exit_code and "cancelled()" not in condition) or (condition and not value_of(condition, given)):
                continue
            if "uses" in each:
                outputs = self._use(each["uses"], {key: filled(text, given) for key, text in each["with"].items()})
            else:
                ended = run_as_on_github(self.folder, each, given)
                exit_code, summaries, logs = exit_code or ended.exit_code, summaries + ended.summary, logs + ended.log
                outputs = dict(line.split("=", 1) for line in ended.output.splitlines())
            given |= {f"steps.{each.get('id')}.outputs.{key}": value for key, value in outputs.items()}
        result = {key: filled(value["value"], given) for key, value in action()["outputs"].items()}
        return Ended(exit_code, json.dumps(result), summaries, logs)

    def _use(self, name: str, given: Mapping[str, str]) -> dict[str, str]:
        place = self.folder / given.get("path", "")
        if name.startswith("actions/cache/restore@"):
            return self._restored(place, given["key"], given.get("restore-keys"))
        if name.startswith("actions/cache/save@"):
            assert "," not in given["key"] and len(given["key"]) <= 512
            self.caches[given["key"]] = {str(file.relative_to(place)): file.read_bytes() for file in files_in(place)}
        elif name.startswith("actions/upload-artifact@"):
            self.artifacts[given["name"]] = {str(file.relative_to(place)) for file in files_in(place)}
        else:
            assert name.startswith("actions/setup-python@")
        return {}

    def _restored(self, place: Path, key: str, prefix: str | None) -> dict[str, str]:
        """Put the cache of this key, or the last one with this prefix, where it was."""
        names = [name for name in self.caches if name == key] or [
            name for name in self.caches if prefix and name.startswith(prefix)
        ]
        for name in names[-1:]:
            for file, content in self.caches[name].items():
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                (place / file).write_bytes(content)
        return {"cache-hit": "true" if key in names else ""}

    def clean(self) -> None:
        """Leave the caches only, as the machine of the next job has nothing else."""
        for name in ("temp", ".simserve-history.jsonl", "simserve-check.xml"):
            file = self.folder / name
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)


def files_in(place: Path) -> list[Path]:
    """Return a file, or all files of a folder."""
    return [place] if place.is_file() else [file for file in place.rglob("*") if file.is_file()]


def workflow_commands(log: str) -> list[str]:
    """Return the lines of a log that GitHub's runner would carry out."""
    stopped, result = "", []
    for line in re.split(r"[\r\n]+", log):
        if stopped:
            stopped = "" if line.strip() == f"::{stopped}::" else stopped
        elif match := re.match(r"\s*::stop-commands::(\S+)", line):
            stopped = match[1]
        elif "##[" in line or re.match(r"\s*::", line):
            result.append(line)
    return result
