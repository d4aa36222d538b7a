"""Measure the simulator's speed: a table of whole `simserve run` commands, every file written, one process each.

    python benchmarks/run_benchmarks.py                     # all of it: ten minutes or so
    python benchmarks/run_benchmarks.py --short             # small sizes, once: half a minute, figures are rough
    python benchmarks/run_benchmarks.py a b --repeats 5 --floor PATH_OF_A_FLOOR_SCRIPT

A rate is the slope between a small and a large size, (N2 - N1) / (t2 - t1) of median times, so that start-up does not
count; start-up has its own lines. A floor script is any Python script that prints `req/s=` figures for (a), (b) and a
million requests of (b), in this order; it runs in the same minutes, and the table says how many times faster it is.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ONCE = ("--set", "measure.replays=0", "--quiet")
"""Short runs would be replayed for their prediction interval, which is as many runs more."""

MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024  # getrusage(2): kilobytes on Linux, bytes on macOS


@dataclass(frozen=True)
class Workload:
    """One line of the table: a scenario at two sizes."""

    name: str
    scenario: str
    sizes: tuple[int, int]
    short_sizes: tuple[int, int]
    goal: str


WORKLOADS = (
    Workload("a", "a.yaml", (100_000, 1_000_000), (5_000, 50_000), "60 k, aim 150 k requests/s"),
    Workload("b", "b.yaml", (100_000, 1_000_000), (5_000, 50_000), "60 k, aim 120 k requests/s"),
    Workload("c", "c.yaml", (160_000, 640_000), (8_000, 64_000), "40 k, aim 80 k requests/s"),
    Workload("e", "e.yaml", (10_000, 50_000), (1_000, 5_000), "80 M, aim 250 M output tokens/s"),
    Workload("f", "f.yaml", (20_000, 100_000), (2_000, 10_000), "30 k requests/s"),
)

NAMES = "abcdef"
"""(d) is a million requests of (b)."""


@dataclass(frozen=True)
class Run:
    """Time and memory of one whole command."""

    wall_s: float
    peak_bytes: int
    output_tokens: int = 0


def main() -> None:
    """Measure the workloads of the command line, and print the tables."""
    options = _options()
    n_repeats = 1 if options.short else options.repeats
    print(f"simserve on {os.cpu_count()} cores, Python {sys.version.split()[0]}, median of {n_repeats}\n")
    _print_start_up(n_repeats)
    floor_per_s = _floor_per_s(options.floor) if options.floor else {}
    print("\nworkload   requests     wall s   peak GB  requests/s  output tokens/s  to the floor  goal")
    for workload in WORKLOADS:
        if workload.name in options.workloads or (workload.name == "b" and "d" in options.workloads):
            _print_workload(workload, workload.short_sizes if options.short else workload.sizes, n_repeats, floor_per_s)


def _print_start_up(n_repeats: int) -> None:
    n_repeats = max(3, n_repeats)
    tiny = ["run", str(HERE / "a.yaml"), "--set", "workload.n_requests=1", *ONCE]
    for label, arguments, goal in (
        ("simserve --help", ["--help"], "under 0.5 s"),
        ("fixed cost of a run", tiny, "under 1.5 s"),
        ("fixed cost with --no-report", [*tiny, "--no-report"], "under 0.8 s"),
    ):
        seconds = statistics.median(_run(arguments).wall_s for _ in range(n_repeats))
        print(f"{label:<28} {seconds:6.2f} s   {goal}")


def _print_workload(workload: Workload, sizes: tuple[int, int], n_repeats: int, floor_per_s: dict[str, float]) -> None:
    small, large = (_median_run(workload, size, n_repeats) for size in sizes)
    wall_s, cells = large.wall_s - small.wall_s, ["noise", "-", "-"]
    if wall_s > 0:  # the machine may slow down in between
        per_s = (sizes[1] - sizes[0]) / wall_s
        ratio = f"{floor_per_s[workload.name] / per_s:.2f}x" if workload.name in floor_per_s else "-"
        cells = [f"{per_s:,.0f}", f"{(large.output_tokens - small.output_tokens) / wall_s:,.0f}", ratio]
    _print_row(f"({workload.name})", sizes[0], small)
    _print_row("", sizes[1], large, *cells, workload.goal)
    if workload.name == "b":
        ratio = f"{large.wall_s * floor_per_s['d'] / sizes[1]:.2f}x" if "d" in floor_per_s else "-"
        _print_row("(d)", sizes[1], large, "", "", ratio, "a million in 25 s and 1.5 GB, aim 12 s and 0.8 GB")


def _print_row(name: str, n_requests: int, run: Run, *cells: str) -> None:
    measured = f"{name:<8} {n_requests:>10,} {run.wall_s:10.2f} {run.peak_bytes / 1e9:9.2f}"
    widths = (11, 16, 13)
    columns = "".join(f" {cell:>{width}}" for cell, width in zip(cells, widths, strict=False))
    print(f"{measured}{columns}  {cells[-1] if cells else ''}".rstrip(), flush=True)


def _median_run(workload: Workload, n_requests: int, n_repeats: int) -> Run:
    arguments = ["run", str(HERE / workload.scenario), "--set", f"workload.n_requests={n_requests}", *ONCE]
    runs = [_run(arguments) for _ in range(n_repeats)]
    return Run(
        statistics.median(run.wall_s for run in runs),
        max(run.peak_bytes for run in runs),
        runs[0].output_tokens,
    )


def _run(arguments: list[str]) -> Run:
    """Run one command to its end, in a process of its own, writing into a folder that goes away."""
    with tempfile.TemporaryDirectory(prefix="simserve-bench-") as folder:
        out = Path(folder) / "out"
        options = ["--out", str(out)] if arguments[0] == "run" else []
        command = [sys.executable, "-m", "simserve", *arguments, *options]
        started_at_s = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started_at_s
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"failed with exit code {process.returncode}: {' '.join(command)}")
        return Run(wall_s, usage.ru_maxrss * MAXRSS_BYTES, _output_tokens(out))


def _output_tokens(out: Path) -> int:
    """Return the output tokens of the whole run, which is the window: the scenarios here have no warm-up."""
    file = out / "vllm_bench.json"
    return int(json.loads(file.read_text())["total_output_tokens"]) if file.exists() else 0


def _floor_per_s(script: Path) -> dict[str, float]:
    """Return the requests/s that the floor script prints for (a), (b) and (d)."""
    text = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True).stdout
    figures = [float(figure.replace(",", "")) for figure in re.findall(r"req/s=([\d,.]+)", text)]
    return dict(zip(("a", "b", "d"), figures, strict=True))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure whole simserve commands and print a table.")
    parser.add_argument("workloads", nargs="*", help=f"{' '.join(NAMES)}; all of them when left out")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each size; their median counts")
    parser.add_argument("--short", action="store_true", help="small sizes, once each")
    parser.add_argument("--floor", type=Path, help="a script that prints req/s= figures to compare with")
    options = parser.parse_args()
    unknown = set(options.workloads) - set(NAMES)
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; there are {' '.join(NAMES)}")
    options.workloads = options.workloads or list(NAMES)
    if options.floor and not options.floor.exists():
        parser.error(f"no such file: {options.floor}")
    return options


if __name__ == "__main__":
    main()
