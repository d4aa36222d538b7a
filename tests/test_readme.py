"""The README's commands run as written, its links lead somewhere, and CI runs its two commands.

By default they run on loads cut short, in this process, and the manual's searches for a load are left out; with
--thorough all run as written, the README's through a shell.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.invoke import invoke
from tests.effort import is_thorough
from tests.lab.kernels.timings import timings
from tests.pages import blocks, not_printed, read

ROOT = Path(__file__).resolve().parents[1]
README = read("README.md")
TRACES = ROOT.parent / "shared" / "data" / "traces"
AZURE = "azure_llm_2023_conv.csv"


RUNS = """\
engine,engine_version,gpu,model,weight_dtype,tp,isl,osl,concurrency,ttft_ms_mean,tpot_ms_mean
vllm,0.12.0,h100_sxm,meta-llama/Llama-3.1-8B-Instruct,bf16,1,128,8,1,20,7
vllm,0.12.0,h100_sxm,meta-llama/Llama-3.1-8B-Instruct,bf16,2,128,8,2,20,6
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Build what a reader of the README has: a checkout, with simserve installed, and small tables of their own."""
    for folder in ("scenarios", "traces"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in (tmp_path / "scenarios").glob("*.yaml"):
        file.write_text(shorter(file.read_text(encoding="utf-8")), encoding="utf-8")
    timings().to_csv(tmp_path / "my_timings.csv", index=False)
    (tmp_path / "my_runs.csv").write_text(RUNS)
    return tmp_path


def shorter(text: str) -> str:
    """Return a scenario, or a command, of a load so short and light that every answer is found at once.

    A heavier load, or a tighter target, would be an edge, to which plan and sweep add seeds. Unchanged with --thorough.
    """
    if is_thorough():
        return text
    text = re.sub(r" --precision [\d.]+|(?<=^simserve capacity )", " --precision 0.5 ", text)
    text = re.sub(r"\brates_per_s: \[.*?\]", "rates_per_s: [2, 4]", text)
    text = re.sub(r"\bttft_s: 0\.5\b", "ttft_s: 5", text)
    most = {"duration_s": 20, "warmup_s": 0.5, "n_requests": 100, "rate_per_s": 4}
    return re.sub(
        r"\b(duration_s|warmup_s|n_requests|rate_per_s)(: |=)(\d+(?:\.\d+)?)\b",
        lambda m: f"{m[1]}{m[2]}{min(float(m[3]), most[m[1]]):g}",
        text,
    )


def run_here(command: str) -> None:
    """Run a simserve command in this process and this folder; of a load cut short a clear "no" (1) is right too."""
    words, _, file = shorter(command).partition(" > ")
    outcome = invoke(*shlex.split(words)[1:])
    assert outcome.exit_code in ((0,) if is_thorough() else (0, 1)), f"{command}\n{outcome.err}"
    if file:
        Path(file).write_text(outcome.out)


def searches_for_a_load(command: str) -> bool:
    """Return whether it runs many loads; by default the README's do, and the manual's wait for --thorough."""
    return not is_thorough() and command.startswith(("simserve capacity ", "simserve compare scenarios/"))


def needs_the_whole_load(command: str) -> bool:
    """Return whether it compares with a baseline of the whole load; .ci/run runs that one as a step of its own."""
    return command.startswith("simserve check") and not is_thorough()


def run(command: str, folder: Path) -> str:
    """Return the output of a shell command that succeeds, with this interpreter's programs first."""
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


def commands(text: str) -> list[str]:
    """Return the simserve commands of a page, those in tables last; installing and downloading are left to CI."""
    lines = [line.removeprefix("pip install . && ") for block in blocks(text, "sh") for line in block.splitlines()]
    in_tables = [
        each for line in text.splitlines() if line.startswith("|") for each in re.findall(r"`(simserve .*?)`", line)
    ]
    return [line for line in [*lines, *in_tables] if line.startswith("simserve ")]


def needs_the_package(command: str) -> bool:
    """Return whether a command fits the timings of the package that the extra 'calibrate' installs, which is slow, or
    times a GPU or reads public runs."""
    is_fit = command.startswith(("simserve calibrate", "simserve lab")) and not command.startswith(
        "simserve lab kernels"
    )
    return is_fit and "--from" not in command and "--host" not in command


def needs_the_trace(command: str) -> bool:
    """Return whether a command replays the Azure trace, directly or through a scenario."""
    return AZURE in command or "azure_conv" in command


def test_the_commands_run_as_written_one_after_the_other(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = [command for command in commands(README) if not needs_the_trace(command)]
    assert len(written) > 3
    monkeypatch.chdir(checkout)
    for command in written:
        if is_thorough():
            run(command, checkout)
        elif not needs_the_whole_load(command):
            run_here(command)


def test_the_output_block_is_what_a_newcomer_sees(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scenarios", tmp_path / "scenarios")
    (block,) = blocks(README, "")
    assert not_printed(block, run("PYTHONUNBUFFERED=1 simserve run scenarios/chat_burst.yaml 2>&1", tmp_path)) is None


def test_the_commands_of_the_manual_run_as_written_one_after_the_other(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = commands(read("docs/cli.md"))
    assert len(written) > 20
    monkeypatch.chdir(checkout)
    for command in written:
        if not needs_the_package(command) and not needs_the_whole_load(command) and not searches_for_a_load(command):
            run_here(command)


def test_the_azure_trace_replays_as_written(checkout: Path) -> None:
    if not (TRACES / AZURE).exists():
        pytest.skip(f"no {AZURE} beside the checkout")
    lines = (TRACES / AZURE).read_text(encoding="utf-8").splitlines(keepends=True)
    (checkout / "traces" / AZURE).write_text("".join(lines if is_thorough() else lines[:2000]), encoding="utf-8")
    written = [command for command in commands(read("docs/workloads.md")) if needs_the_trace(command)]
    assert len(written) == 3
    for command in written:
        run(command, checkout)


@pytest.mark.parametrize("block", blocks(README, "python"))
def test_the_python_runs_as_written(block: str, checkout: Path) -> None:
    (checkout / "readme.py").write_text(block)
    assert run(f'"{sys.executable}" readme.py', checkout)


def test_ci_runs_the_two_commands_as_written() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    installing = [
        line for block in blocks(README, "sh") for line in block.splitlines() if line.startswith("pip install")
    ]
    assert len(installing) == 2
    assert all(f"'{command}'" in ci for command in installing)


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda page: page.name)
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


def test_the_text_names_no_command_that_is_not_there() -> None:
    from simserve.cli.app import app

    names = {each.name for each in app.registered_commands} | {each.name for each in app.registered_groups}
    used = {command.split()[1] for command in commands(README)}
    assert used and used <= names
