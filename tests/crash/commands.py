"""Commands that write: their command lines, inputs in two versions, and the places that each leaves old or new."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cli.invoke import invoke
from tests.cli.scenarios import write_scenario
from tests.cli.test_check import SLO, WORKLOAD
from tests.cli.test_lab import five_groups
from tests.cli.test_validate import HEAD, RUN, TWICE
from tests.cli.test_validate_log import LOG
from tests.lab.kernels.timings import timings
from tests.lab.test_log_fit import logged, written

DRAWN = "--arrivals '{{kind: poisson, rate_per_s: 8}}' --lengths '{{kind: fixed, prompt_tokens: 9, output_tokens: 9}}'"


@dataclass(frozen=True)
class Command:
    """A command that writes."""

    line: str
    """What follows `simserve`; a name in braces is an input."""
    places: tuple[str, ...]
    """Files and folders that it writes, each whole."""
    earlier: str | None = None
    """The command that wrote before it, if not the same one with the inputs' first version; empty: none."""


COMMANDS = {
    "run": Command("run {scenario} --out out --timeline timeline.json", ("out", "timeline.json")),
    "report": Command("report out", ("out",), "run {scenario} --out out --no-report"),
    "export": Command("export {run} --csv out --xlsx out.xlsx", ("out", "out.xlsx")),
    "compare": Command("compare {run} {scenario} --out out", ("out",)),
    "trace convert": Command("trace convert {trace} out.parquet", ("out.parquet",)),
    "trace convert csv": Command("trace convert {trace} out.csv", ("out.csv",)),
    "trace generate": Command(f"trace generate out.csv {DRAWN} --n-requests 40 --seed {{n}}", ("out.csv",)),
    "trace fit": Command("trace fit {trace} out.json", ("out.json",)),
    "init": Command("init out.yaml", ("out.yaml",), ""),
    "sweep": Command("sweep {scenario} --vary gpu=h100-sxm,h200-sxm --out out", ("out",)),
    "capacity": Command("capacity {gate} --precision 0.3 --out out", ("out",)),
    "plan": Command("plan {scenario} --gpu h100-sxm --tensor 1 --out out", ("out",)),
    "check": Command("check {gate} --baseline {baseline} --summary out.md --junit out.xml", ("out.md", "out.xml")),
    "check --update": Command("check {gate} --baseline out.json --update --tolerance 0.15", ("out.json",)),
    "calibrate": Command("calibrate h100-sxm --engine vllm --from {timings} --out out", ("out/h100-sxm/vllm.json",)),
    "calibrate --logs": Command(
        "calibrate --logs {server_log} --scenario {server} --out out", ("out/h100-sxm/vllm.json", "out/report.html")
    ),
    "lab server-errors": Command("lab server-errors {public} --most {n} --out out", ("out/server_errors.json",)),
    "validate": Command("validate {rows} --requests-per-client 2 --page out.html", ("out.html",)),
    "validate log": Command("validate {log} --scenario {scenario} --page out.html", ("out.html",)),
    "lab league": Command("lab league {serving} --requests-per-client 2 --page out.html", ("out.html",)),
}
"""By name; without `calibrate --host` and `lab card`, which write as `calibrate` does after a fit of minutes.

`lab measure` needs a card; `tests/cli/test_measure.py` interrupts it.
"""


class Inputs(dict[str, object]):
    """Inputs of commands by name, in one version; each is made when a command line first names it."""

    def __init__(self, folder: Path, n: int) -> None:
        super().__init__(n=n)
        self._folder = folder / str(n)
        self._folder.mkdir()
        self.n = n

    def __missing__(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        path = self[name] = MAKERS[name](self, folder)
        return path


def _text(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def _run(inputs: Inputs, folder: Path) -> Path:
    assert invoke("run", inputs["scenario"], "--out", folder / "run").exit_code == 0
    return folder / "run"


def _baseline(inputs: Inputs, folder: Path) -> Path:
    base = folder / "base.json"
    assert invoke("check", inputs["gate"], "--baseline", base, "--update", "--tolerance", 0.15).exit_code == 0
    return base


def _trace(inputs: Inputs, folder: Path) -> Path:
    rows = (f"{at},{10 + at % 7},{inputs.n}\n" for at in range(2_000))
    return _text(folder, "trace.csv", "arrival_s,prompt_tokens,output_tokens\n" + "".join(rows))


def _timings(inputs: Inputs, folder: Path) -> Path:
    table = timings()
    table.assign(latency_s=table["latency_s"] * (1 + inputs.n / 100)).to_csv(folder / "mine.csv", index=False)
    return folder / "mine.csv"


def _server_log(inputs: Inputs, folder: Path) -> Path:
    server = inputs["server"]
    assert isinstance(server, Path)
    logged(server, step_host_s=0.002 + inputs.n / 1_000).to_csv(folder / "log.csv", index=False)
    return folder / "log.csv"


def _serving(inputs: Inputs, folder: Path) -> Path:
    (folder / "serving").mkdir()
    _text(folder / "serving", "mine.csv", HEAD + RUN * inputs.n)
    return folder


MAKERS: dict[str, Callable[[Inputs, Path], Path]] = {
    "scenario": lambda inputs, folder: write_scenario(folder, seed=inputs.n),
    "gate": lambda inputs, folder: write_scenario(folder, seed=inputs.n, workload=WORKLOAD, slo=SLO),
    "run": _run,
    "baseline": _baseline,
    "trace": _trace,
    "timings": _timings,
    "server": lambda inputs, folder: written(folder),
    "server_log": _server_log,
    "public": lambda inputs, folder: five_groups(folder),
    "rows": lambda inputs, folder: _text(folder, "rows.csv", HEAD + (RUN, TWICE)[inputs.n - 1]),
    "log": lambda inputs, folder: _text(folder, "log.csv", LOG.replace(",8\n", f",{7 + inputs.n}\n")),
    "serving": _serving,
}
"""What makes each input, in a folder of its own."""
