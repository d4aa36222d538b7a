"""The words of the product: what a machine can hold of the rules that code, docstrings and terminal output follow."""

import ast
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

from simserve.cli.app import app
from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.effort import is_thorough

PACKAGE = Path("simserve")
FILES = sorted(PACKAGE.rglob("*.py"))

NO_SUBJECT = re.compile(r"(Of|Likewise|The same|As usual|Who|Whom|That|Those|With|By|And)\b")
"""A docstring that begins so has no subject."""

PEOPLE = re.compile(r"\b(who|whom|whose|somebody|nobody|anybody|someone)\b", re.IGNORECASE)
"""A request, replica or step is "it"."""

BRITISH = re.compile(
    r"\b\w*(quantis|utilis|summaris|normalis|tokenis|optimis(?!m)|colour|neighbour|behaviour|favour|(?<!--)licence|modelled|labelled)\w*",
    re.IGNORECASE,
)

SPACED_PERCENT = re.compile(r"\d %(?!\w)")

BANNED = """
    Asker Door Following Gate Gateway Keeper Keeping Kinds Mistake Mistakes Part Seats Stretch Taker Tie
    apart asked beside caveats crowding doubts evidence flaw flaws found found_there hang hanging keeping luck mistake
    mistakes n_worth ramp reductions remedied repeated replay_facts replicated said seats so_many stretch stretches
    sureness surroundings told tried tries verdict
"""
"""Names that are no term of the field."""

ENDINGS = ("s", "d", "ed", "r", "er", "ing", "ion", "ions")


def nodes(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def docstrings(path: Path) -> list[str]:
    """Return all docstrings of a file, those of attributes included."""
    bodies_or_none = [getattr(node, "body", None) for node in ast.walk(nodes(path))]
    bodies = [body for body in bodies_or_none if isinstance(body, list)]
    return [
        each.value.value
        for body in bodies
        for each in body
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
    ]


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    assert [
        f"{path}: {text.splitlines()[0]}" for path in FILES for text in docstrings(path) if NO_SUBJECT.match(text)
    ] == []


def test_a_request_is_it_in_every_text() -> None:
    assert lines_with(PEOPLE) == []


def test_spelling_is_american_and_a_percentage_has_no_space() -> None:
    assert lines_with(BRITISH) + lines_with(SPACED_PERCENT) == []


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    """Return the lines of the package in which a pattern is found, each with its place."""
    lines = ((path, line) for path in FILES for line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1))
    return [f"{path}:{n}: {line.strip()}" for path, (n, line) in lines if pattern.search(line)]


def test_names_are_terms_of_the_field() -> None:
    names = {(each, str(path)) for path in FILES for node in in_code(nodes(path)) for each in names_of(node)}
    assert [pair for pair in sorted(names) if pair[0] in BANNED.split()] == []


def in_code(tree: ast.Module) -> set[ast.AST]:
    """Return all nodes but keys of files that schemas declare, which stay as they are once they were written."""
    schemas = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name.endswith("Json")]
    return {*ast.walk(tree)} - {each.target for one in schemas for each in one.body if isinstance(each, ast.AnnAssign)}


def names_of(node: ast.AST) -> list[str]:
    """Return the names that a node defines or uses, without leading underscores."""
    given = [getattr(node, key, None) for key in ("id", "attr", "arg", "name")]
    return [name.lstrip("_") for name in given if isinstance(name, str)]


def test_no_class_name_stands_twice_in_the_package() -> None:
    names = Counter(node.name for path in FILES for node in ast.walk(nodes(path)) if isinstance(node, ast.ClassDef))
    assert {name for name, n in names.items() if n > 1} == set()


def test_no_module_differs_from_another_of_its_folder_by_an_ending() -> None:
    folders = {path.parent for path in FILES}
    for folder in folders:
        stems = sorted(path.stem for path in folder.glob("*.py"))
        assert [(a, b) for a, b in pairwise(stems) if b in [a + ending for ending in ENDINGS]] == [], folder


MOST_WORDS = 30
"""Words of a sentence on a terminal; numbers are none."""

SENTENCE_END = re.compile(r"(?<=[.!?])[\")]?\s+(?=[A-Z0-9\"(≥<–-]|p\d)|\s{2,}|\n")
"""The end of a sentence, of a table's cell or of a line."""


def long_sentences(text: str) -> list[str]:
    """Return the sentences that are too long to read at a glance."""
    sentences = [each.strip() for each in SENTENCE_END.split(text)]
    return [each for each in sentences if sum(bool(re.search(r"[A-Za-z]", word)) for word in each.split()) > MOST_WORDS]


def help_texts(command: Any) -> Iterator[str]:
    """Yield the help of a command, its options and its subcommands, each paragraph on one line."""
    texts = [command.help, command.epilog, *(getattr(each, "help", None) for each in command.params)]
    for paragraph in "\n\n".join(text for text in texts if text).split("\n\n"):
        yield " ".join(paragraph.split())
    for each in getattr(command, "commands", {}).values():
        yield from help_texts(each)


def test_no_help_text_has_a_sentence_of_more_than_thirty_words() -> None:
    texts = list(help_texts(typer.main.get_command(app)))
    assert len(texts) > 100
    assert [each for text in texts for each in long_sentences(text)] == []


SERVING_RUNS = """\
engine,engine_version,gpu,model,weight_dtype,tp,isl,osl,concurrency,ttft_ms_mean,tpot_ms_mean
vllm,0.12.0,h100_sxm,meta-llama/Llama-3.1-8B-Instruct,bf16,1,128,8,1,20,7
"""
COMMANDS = """
    run tiny.yaml --out tiny
    run tiny.yaml --set measure.replays=8 --set workload.n_requests=100
    run tiny.yaml --set slo.ttft_s=0.001 --replications 3
    run tiny.yaml --set workload.arrivals.rate_per_s=400 --set workload.n_requests=800
    run disaggregated.yaml --set workload.n_requests=900 --set measure.replays=2
    run classes.yaml --set workload.duration_s=130 --set measure.replays=0
    run tiny.yaml --set workload.rate=8
    explain tiny.yaml
    capacity tiny.yaml --goal p90 --replicas serve
    compare tiny tiny
    sweep tiny.yaml --vary cluster.pools.0.replicas=1,2 --vary gpu=h100-sxm,l40s
    plan tiny.yaml --gpu h100-sxm,l40s --tensor 1 --max-gpus 4 --goal p90
    lab kernels h100-sxm/vllm
    validate runs.csv
    validate tiny/requests.parquet --scenario tiny.yaml
    trace info chat_small.csv
    catalog
    export tiny --xlsx tiny.xlsx
"""
SEARCHES = """
    capacity tiny.yaml --goal p90 --precision 0.5
    capacity tiny.yaml --goal p90 --set slo.ttft_s=0.001
    compare tiny.yaml tiny.yaml --replications 2
    compare tiny.yaml poisson.yaml --replications 2
    check tiny.yaml --baseline baseline.json --update --tolerance 0.15
    check tiny.yaml --baseline baseline.json --tolerance 0.15
    check tiny.yaml --baseline baseline.json --tolerance 0.15 --set engine.step_host_s=0.01
"""
"""Run with --thorough only: many runs each."""

WORKLOAD = {
    "arrivals": {"kind": "poisson", "rate_per_s": 40},
    "lengths": {"kind": "lognormal", "prompt_tokens": {"median": 256, "sigma": 0.5, "max": 1024}}
    | {"output_tokens": {"median": 24, "sigma": 0.3, "max": 64}},
    "n_requests": 300,
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with the files that the commands name."""
    write_scenario(tmp_path, workload=WORKLOAD, slo={"ttft_s": 0.2, "tpot_s": 0.03})
    (tmp_path / "runs.csv").write_text(SERVING_RUNS)
    for name in ("scenarios/classes.yaml", "scenarios/disaggregated.yaml", "scenarios/poisson.yaml"):
        shutil.copy(name, tmp_path)
    shutil.copy("traces/chat_small.csv", tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("desk")
def test_no_sentence_on_a_terminal_has_more_than_thirty_words() -> None:
    too_long = {}
    for command in (COMMANDS + SEARCHES if is_thorough() else COMMANDS).strip().splitlines():
        outcome = invoke(*command.split())
        assert outcome.exit_code in (0, 1, 2), f"{command}\n{outcome.err}"
        too_long[command] = long_sentences(outcome.out) + long_sentences(outcome.err)
    assert {command: sentences for command, sentences in too_long.items() if sentences} == {}


def test_the_readme_is_short() -> None:
    assert len(Path("README.md").read_text(encoding="utf-8").splitlines()) <= 100
