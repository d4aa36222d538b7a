"""What action.yml runs beside simserve: names of caches, checks of several scenarios, and one comment.

It is run with `python -I` and needs the standard library only. Inputs arrive as environment variables. Whatever a
scenario, a file's name or a commit may hold is data: no shell reads it, and Markdown, HTML, XML and the log show it as
it is.
"""

import glob
import hashlib
import html
import json
import math
import os
import re
import secrets
import shlex
import subprocess
import sys
import sysconfig
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

ACTION = Path(__file__).resolve().parents[1]
SOURCES = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "simserve", "calibration", "scenarios")
"""What the wheel is built from."""

BARS = "▁▂▃▄▅▆▇█"
SHOWN = 40
"""Commits in a sparkline."""
KEPT = 1000
"""Commits of a scenario that the history keeps."""
MOST_TEXT = 2000
"""Characters of an answer in the comment."""
MOST_COMMENT = 60_000
"""Characters of the comment; GitHub takes 65,536."""

ERROR = "simserve: error: "
"""What simserve prints before each error."""

Row = dict[str, Any]
"""A line of the history."""


class BadInput(Exception):
    """An input of the action that cannot be used."""


@dataclass(frozen=True)
class Answer:
    """What came of the check of one scenario."""

    scenario: str
    status: int
    """0 passes, 1 fails, anything else: no answer."""
    facts: Mapping[str, Any]
    text: str
    """The decision and its cause, or the error."""
    summary: str
    """Markdown by simserve; empty without an answer."""
    suite: ElementTree.Element
    update: str = ""
    """The command that accepts the loss."""


def main() -> int:
    """Run the part of the action that the argument names."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace", line_buffering=True)  # type: ignore[union-attr]
    try:
        return {"names": names, "check": check, "comment": comment}[sys.argv[1]]()
    except BadInput as error:
        print(command("error", str(error)))
    except Exception:  # an exit code of 1 would be read as a loss
        with as_text():
            traceback.print_exc(file=sys.stdout)
    return 2


def names() -> int:
    """Name the caches: the wheels by all that decides them, the history by the branch that a change goes to."""
    name, version, history = (os.environ[key] for key in ("NAME", "VERSION", "HISTORY"))
    if not re.fullmatch(r"(?!.*--)[A-Za-z0-9][A-Za-z0-9 ._-]*", name):
        raise BadInput(f"name: must be letters, digits, spaces, '.', '_' and single '-', got {name!r}")
    contents = hashlib.sha256((ACTION / ".ci" / "constraints.txt").read_bytes())
    for file in () if version else _sources():
        contents.update(f"{file.relative_to(ACTION).as_posix()}\0{file.stat().st_size}\0".encode())
        contents.update(file.read_bytes())
    contents.update(version.encode())
    python = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    branch = re.sub(r"[^\w./-]", "_", os.environ["BASE"], flags=re.ASCII)
    _output(
        wheels=str(Path(os.environ["RUNNER_TEMP"]) / "simserve-wheels"),
        wheels_key=f"simserve-{python}-{contents.hexdigest()[:32]}",
        history_key=f"{name}:history:{branch[:300]}:",  # a prefix of no other branch's
        keeps_history=json.dumps(bool(history) and not os.path.lexists(history)),
    )
    return 0


def check() -> int:
    """Check each scenario, and write the job summary, the test report, the history and the comment's text."""
    given = os.environ
    _tolerance()
    report = Path(mkdtemp(prefix="simserve-check-", dir=given["RUNNER_TEMP"]))
    started = time.monotonic()
    answers = list(_answers(report))
    if given["JUNIT"]:
        _write(Path(given["JUNIT"]), junit([answer.suite for answer in answers], time.monotonic() - started))
    charts = _charts(answers)
    with Path(given["GITHUB_STEP_SUMMARY"]).open("a", encoding="utf-8", errors="replace") as file:
        file.writelines(f"{_section(answer)}\n{charts[answer.scenario]}\n\n" for answer in answers)
    _write(report / "comment.md", _comment(answers, charts))
    statuses = {answer.status for answer in answers}
    if statuses <= {0, 1} or 1 in statuses:
        _output(passes=json.dumps(statuses == {0}))
    _output(report=str(report))
    return max(statuses)


def comment() -> int:
    """Write the comment on the pull request, in place of the one of an earlier run; say so if that is not permitted."""
    repository, number = os.environ["GITHUB_REPOSITORY"], int(os.environ["PULL"])
    body = (Path(os.environ["REPORT"]) / "comment.md").read_text(encoding="utf-8")
    marker = body.partition("\n")[0]
    try:
        of_all = _github("--paginate", f"repos/{repository}/issues/{number}/comments?per_page=100")
        mine = [each["id"] for each in _listed(of_all) if _is_by_action(each, marker)]
        place = f"issues/comments/{int(mine[0])}" if mine else f"issues/{number}/comments"
        call = ("--method", "PATCH" if mine else "POST", f"repos/{repository}/{place}", "--input", "-")
        _github(*call, body=json.dumps({"body": body}))
    except Exception as error:  # whatever it is, the check has been made
        cause = (getattr(error, "stderr", None) or str(error)).strip()
        needs = "The job needs `permissions: pull-requests: write`, which a fork's pull request does not get."
        print(command("notice", f"No comment on the pull request: {cause}\n{needs} The job summary has the answer."))
    return 0


def scenarios(text: str) -> Iterator[str]:
    """Return the scenarios of an input: a line that is a file, or words, where quotes group and globs are expanded."""
    for line in filter(None, map(str.strip, text.splitlines())):
        try:
            words = [line] if os.path.isfile(line) else shlex.split(line)
        except ValueError as error:
            raise BadInput(f"scenario: {error}, got {line}") from error
        for word in words:
            is_glob = glob.has_magic(word) and not word.startswith("@") and not os.path.isfile(word)
            files = sorted(filter(os.path.isfile, glob.glob(word, recursive=True))) if is_glob else []
            yield from files or [word]  # a glob that matches nothing is refused as a file that is missing


def junit(suites: Iterable[ElementTree.Element], seconds: float) -> str:
    """Return one test report of all suites."""
    root = ElementTree.Element("testsuites", {"name": "simserve check"})
    root.extend(suites)
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, 0)) for suite in root)))
    root.set("time", f"{seconds:.3f}")
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def sparkline(values: Iterable[float | None], tolerance: float) -> str:
    """Return a bar a value, on a scale so wide that a loss of half the tolerance moves a bar by one.

    A missing value is a dot.
    """
    values = list(values)
    known = [value for value in values if value is not None] or [0.0]
    middle = (min(known) + max(known)) / 2
    span = max(max(known) - min(known), 4 * tolerance * middle) or 1.0
    places = (None if value is None else int(8 * ((value - middle) / span + 0.5)) for value in values)
    return "".join("·" if place is None else BARS[min(place, 7)] for place in places)


def inert(text: str) -> str:
    """Return text within a line of Markdown that shows as it is: no markup, tag, link or mention."""

    def entity(match: re.Match[str]) -> str:
        return f"&#{ord(match[0])};" + ("<!-- -->" if match[0] in "@#:" else "")

    return re.sub(r"[#$&*<>@[\\\]_`|~]|:(?=\S)|(?<=www)\.|(?<!\d)\.(?=\S)", entity, one_line(text))


def one_line(text: str) -> str:
    """Return text without line breaks and what changes the look of what follows."""
    return "".join(each if each.isprintable() else "�" for each in " ".join(text.split()))


def command(kind: str, text: str) -> str:
    """Return an annotation of the log, of one line whatever the text."""
    return f"::{kind}::" + text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


@contextmanager
def as_text() -> Iterator[None]:
    """Let the log show what is printed meanwhile, and carry out none of it."""
    token = secrets.token_hex(16)
    print(f"::stop-commands::{token}")
    try:
        yield
    finally:
        print(f"::{token}::")


def _answers(report: Path) -> Iterator[Answer]:
    """Check one scenario after the other, and tell the log."""
    try:
        files = list(dict.fromkeys(scenarios(os.environ["SCENARIO"])))
        more = shlex.split(os.environ["ARGUMENTS"])
    except ValueError as error:
        raise BadInput(f"arguments: {error}, got {os.environ['ARGUMENTS']}") from error
    if not files:
        raise BadInput("scenario: must be a file, @name or glob, got nothing")
    baseline = os.environ["BASELINE"]
    if len(files) > 1 and Path(baseline).is_file():
        raise BadInput(f"baseline: must be a folder for {len(files)} scenarios, got the file {baseline}")
    for n, scenario in enumerate(files, 1):
        stem = Path(scenario.removeprefix("@")).stem
        folder = report / f"{n}-{re.sub(r'[^A-Za-z0-9._-]', '_', stem)[:100]}"
        is_folder = len(files) > 1 or Path(baseline).is_dir()
        file = str(Path(baseline) / f"{stem}.json") if baseline and is_folder else baseline
        with as_text():
            print(f"{n} of {len(files)}: {scenario}")
            answer = _checked(scenario, file, more, folder)
            if answer.status <= 1:
                print(answer.text)
        if answer.status:
            print(command("error", f"{scenario}: {answer.text}"))
        yield answer


def _checked(scenario: str, baseline: str, more: list[str], folder: Path) -> Answer:
    """Run `simserve check`."""
    folder.mkdir()
    summary, xml, out = folder / "summary.md", folder / "junit.xml", folder / "page"
    options = ["--json", "--summary", str(summary), "--junit", str(xml), "--out", str(out)]
    compared = ["--tolerance", os.environ["TOLERANCE"], *(["--baseline", baseline] if baseline else [])]
    compared += ["--against", os.environ["AGAINST"]] if os.environ["AGAINST"] else []
    started = time.monotonic()
    line = ["simserve", "check", *options, *compared, *more, "--", scenario]
    quiet = {**os.environ, "SIMSERVE_PROGRESS": "off"}
    try:
        done = subprocess.run(line, capture_output=True, check=False, stdin=subprocess.DEVNULL, env=quiet)
    except OSError as refused:  # a line that is too long
        done = subprocess.CompletedProcess(line, 2, b"", str(refused).encode(errors="replace"))
    seconds = time.monotonic() - started
    log = done.stderr.decode("utf-8", "replace").rstrip()
    if log:
        print(log)
    facts: Any = {}
    with suppress(ValueError):
        facts = json.loads(done.stdout)
    passes = facts.get("passes") if isinstance(facts, dict) else None
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    error = ""  # why there is no answer
    if status > 1:
        error = log.partition(ERROR)[2].replace(f"\n{ERROR}", "; ") or log or f"simserve check ended with {status}"
    elif passes is not (status == 0):  # an exit code alone does not prove a decision
        status, error = 2, f"simserve check ended with {status} and no result of its own"
    suite, text = _suite(scenario, status, error, xml, seconds)
    accepted = ["simserve", "check", scenario, *more, *compared, "--update"] if baseline else []
    return Answer(
        scenario,
        status,
        facts if not error else {},
        text,
        "" if error or not summary.is_file() else summary.read_text(encoding="utf-8"),
        suite,
        shlex.join(accepted) if status == 1 else "",
    )


def _suite(scenario: str, status: int, error: str, file: Path, seconds: float) -> tuple[ElementTree.Element, str]:
    """Return the test of a scenario, named after it and with its time, and its first line."""
    test = None if error or not file.is_file() else ElementTree.parse(file).find("testsuite/testcase")
    if test is None:
        test = ElementTree.Element("testcase", {"classname": "simserve.check", "name": _xml(scenario)})
    if error:
        ElementTree.SubElement(test, "error", {"message": _xml(error), "type": "bad input"})
    failure, text = test.find("failure"), (test.findtext("system-out") or "").partition("\n")[0]
    suite = ElementTree.Element("testsuite", {"name": _xml(scenario), "tests": "1", "skipped": "0"})
    suite.set("failures", str(int(status == 1)))
    suite.set("errors", str(int(status > 1)))
    for element in (test, suite):
        element.set("time", f"{seconds:.3f}")
    suite.append(test)
    if failure is not None:
        text = failure.get("message", "")
    return suite, error or text or ("passes" if status == 0 else "fails")


def _charts(answers: list[Answer]) -> dict[str, str]:
    """Add the answers to the history, and return the sparkline of each scenario."""
    path = Path(os.environ["HISTORY"]) if os.environ["HISTORY"] else None
    lines: list[tuple[str, Row | None]] = []
    if path is not None and path.is_file():
        lines = [(line, _row(line)) for line in path.read_text("utf-8", "replace").split("\n") if line.strip()]
        if unread := sum(row is None for _, row in lines):
            print(
                command("warning", f"history: {unread} of {len(lines)} lines of {path} are not such rows; left alone")
            )
    for answer in answers:
        new = _row(json.dumps(_measured(answer)))
        if new is not None:
            same = [n for n, (_, row) in enumerate(lines) if row and all(row[key] == new[key] for key in KEYS)]
            place = slice(same[0], same[0] + 1) if same else slice(len(lines), None)
            lines[place] = [(json.dumps(new, ensure_ascii=False), new)]
    charts = {answer.scenario: "" for answer in answers}
    for scenario in charts:
        places = [n for n, (_, row) in enumerate(lines) if row and row["scenario"] == scenario]
        for n in reversed(places[:-KEPT]):
            del lines[n]
        charts[scenario] = _chart([row for _, row in lines if row and row["scenario"] == scenario])
    if path is not None:
        try:
            _write(path, "".join(f"{line}\n" for line, _ in lines))
        except OSError as error:
            print(command("warning", f"history: {path} cannot be written: {error}"))
    return charts


def _tolerance() -> float:
    text = os.environ["TOLERANCE"]
    with suppress(ValueError):
        if 0 <= float(text) <= 0.9:
            return float(text)
    raise BadInput(f"tolerance: must be a share from 0 to 0.9, got {text}")


KEYS = ("commit", "scenario", "goal_frac")
"""What a row of the history is about; a second run of the same replaces it."""


def _measured(answer: Answer) -> Row:
    """Return the row of an answer: the interval is that of the change, at the baseline's p99 goodput."""
    row: Row = {"commit": os.environ["COMMIT"], "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    row |= {"scenario": answer.scenario, "goal_frac": answer.facts.get("goal_frac")}
    with suppress(LookupError, TypeError):
        row["goodput_per_s"] = answer.facts["candidate"]["goodput_per_s"]
        before, loss = answer.facts["baseline"]["goodput_per_s"], answer.facts["loss"]
        row["low_per_s"], row["high_per_s"] = (
            round(max(0.0, before * (1 - loss[key])), 3) for key in ("high_frac", "low_frac")
        )
    return row


def _row(line: str) -> Row | None:
    """Return a line of the history as a row; None if it is not one."""
    with suppress(ValueError):
        row = json.loads(line)
        if isinstance(row, dict) and "goodput_per_s" in row:
            texts = all(isinstance(row.get(key), str) for key in ("commit", "date", "scenario"))
            numbers = [each for each in (row.get("goal_frac", 0), row["goodput_per_s"]) if each is not None]
            if texts and all(type(each) in (int, float) and 0 < each < math.inf for each in numbers):
                return row
    return None


def _chart(rows: list[Row]) -> str:
    """Return the p99 goodput over the commits, as a line of Markdown; rows of another goal are not comparable."""
    values = [row["goodput_per_s"] for row in rows if row["goal_frac"] == rows[-1]["goal_frac"]][-SHOWN:]
    known = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values if value is not None]
    if not known or not os.environ["HISTORY"]:
        return ""
    bars = sparkline(values, _tolerance())
    over = "first commit" if len(values) == 1 else f"last {len(values)} commits"
    return f"`{bars}` {' → '.join(dict.fromkeys((known[0], known[-1])))} req/s, {over}"


def _section(answer: Answer) -> str:
    """Return the part of a scenario in the job summary."""
    return (
        answer.summary
        or f"### simserve check: {inert(answer.scenario)} {_word(answer)}\n\nError: {inert(answer.text)}\n"
    )


def _word(answer: Answer) -> str:
    return {0: "passes", 1: "fails"}.get(answer.status, "has no answer")


def _comment(answers: list[Answer], charts: Mapping[str, str]) -> str:
    """Return the comment: what passes least is first, and what is too long is left to the job summary."""
    name, given = os.environ["NAME"], os.environ
    heading = _word(answers[0])
    if len(answers) > 1:
        counts = Counter(min(answer.status, 2) for answer in answers)
        words = {1: "failed", 2: "without an answer", 0: "passed"}
        heading = f"of {len(answers)}, " + ", ".join(f"{counts[n]} {words[n]}" for n in words if counts[n])
    lines = [f"<!-- {name} -->", f"### {name}: {heading}", ""]
    ordered = sorted(answers, key=lambda answer: -answer.status)
    for n, answer in enumerate(ordered):
        part = [f"**{inert(answer.scenario)}**: {inert(answer.text[:MOST_TEXT])}", "", charts[answer.scenario], ""]
        if answer.update:
            part += ["To accept it:", "", f"<pre>{html.escape(one_line(answer.update))}</pre>", ""]
        if sum(map(len, lines)) + sum(map(len, part)) > MOST_COMMENT:
            lines += [f"{len(ordered) - n} more: see the job summary.", ""]
            break
        lines += part
    run = f"{given['GITHUB_SERVER_URL']}/{given['GITHUB_REPOSITORY']}/actions/runs/{given['GITHUB_RUN_ID']}"
    lines.append(f"Commit {inert(given['COMMIT'])}. [Job summary and pages]({run})")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def _github(*arguments: str, body: str | None = None) -> str:
    """Return what GitHub's API answers."""
    host = urlsplit(os.environ["GITHUB_SERVER_URL"]).netloc
    line, environment = ["gh", "api", *arguments], {**os.environ, "GH_HOST": host}
    done = subprocess.run(
        line, input=body, capture_output=True, check=True, encoding="utf-8", env=environment, timeout=120
    )
    return done.stdout


def _listed(text: str) -> Iterator[Any]:
    """Return the members of one list after the other, as `gh api --paginate` prints a list a page."""
    decoder, text = json.JSONDecoder(), text.strip()
    while text:
        page, end = decoder.raw_decode(text)
        yield from page
        text = text[end:].lstrip()


def _is_by_action(each: Mapping[str, Any], marker: str) -> bool:
    """Return whether a comment is this action's own: anyone can write the marker, but not as this user."""
    is_own = (each.get("user") or {}).get("login") == "github-actions[bot]"
    return is_own and (each.get("body") or "").partition("\n")[0].strip() == marker


def _sources() -> Iterator[Path]:
    for name in SOURCES:
        place = ACTION / name
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        yield from (file for file in files if file.is_file() and "__pycache__" not in file.parts)


def _output(**values: str) -> None:
    """Set outputs of the step."""
    with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.writelines(f"{key.replace('_', '-')}={value}\n" for key, value in values.items())


def _write(path: Path, text: str) -> None:
    """Replace a file, and not what a link in its place leads to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    extra = path.with_name(f".{path.name}.{os.getpid()}.partial")
    extra.write_text(text, encoding="utf-8", errors="replace")
    os.replace(extra, path)


def _xml(text: str) -> str:
    """Return text without characters that XML forbids."""
    return re.sub(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "�", text)


if __name__ == "__main__":
    sys.exit(main())
