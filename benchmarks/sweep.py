"""Measure how well a sweep uses the cores: a whole `simserve sweep` against its runs, one after another in one process.

    python benchmarks/sweep.py                     # 64 points of 20,000 requests, three times: minutes
    python benchmarks/sweep.py --points 16 --requests 5000 --repeats 1

Efficiency is the CPU time of the runs alone, in one process, over cores times wall time of the command. On a shared
machine wall time also depends on other processes. The share of the command's own CPU time that its runs take alone
does not: it counts starting workers, importing, moving data and writing, and leaves out only waiting. The best of
several is printed.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCENARIO = ROOT / "scenarios" / "chat_burst.yaml"
SLOTS = "cluster.pools.0.scheduler.max_num_seqs"
"""Varied from 128 up, where all points cost the same, as this measures the sweep and not its points."""

FIRST_SLOTS = 128


@dataclass(frozen=True)
class Took:
    """Time of one sweep."""

    wall_s: float
    cpu_s: float


def main() -> None:
    """Measure, and print a line each."""
    options = _options()
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    print(f"{options.points} points of {options.requests:,} requests on {n_cores} cores, best of {options.repeats}")
    result = []
    for _ in range(options.repeats):
        alone_s, took = _alone_s(options), _sweep(options)
        result.append((alone_s / (n_cores * took.wall_s), alone_s / took.cpu_s))
        print(f"runs alone {alone_s:6.1f} s CPU; sweep {took.wall_s:6.1f} s wall, {took.cpu_s:6.1f} s CPU")
    print(f"parallel efficiency {max(whole for whole, _ in result):.0%} of cores x wall (bound 90%)")
    print(f"share of the sweep's CPU time that is its runs {max(share for _, share in result):.0%}")


def _sweep(options: argparse.Namespace) -> Took:
    """Run the whole command, all files written."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "simserve", "sweep", str(SCENARIO), *_given(options), "--out", f"{folder}/out"]
        before_s, started_s = _children_s(), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return Took(time.perf_counter() - started_s, _children_s() - before_s)


def _alone_s(options: argparse.Namespace) -> float:
    """Return the CPU time of the same runs in one process, without imports and the first run."""
    from simserve.scenario.template import Template
    from simserve.study.sweep.points import grid, parse_axis, resolved
    from simserve.study.sweep.run import run_row, task_of

    _, vary, *assignments = _given(options)
    template = Template.of(SCENARIO, assignments[1::2])
    tasks = [task_of(p.scenario, 0) for p in resolved(template, grid([parse_axis(vary)], [], 1)) if p.scenario]
    run_row(tasks[0])
    started_s = time.process_time()
    for task in tasks:
        assert run_row(task).status == "finished"
    return time.process_time() - started_s


def _given(options: argparse.Namespace) -> list[str]:
    vary = f"{SLOTS}={FIRST_SLOTS}..{FIRST_SLOTS + options.points - 1}"
    sizes = ("workload.duration_s=null", f"workload.n_requests={options.requests}")
    return ["--vary", vary, *(part for size in sizes for part in ("--set", size))]


def _children_s() -> float:
    """Return the CPU time of all finished child processes and their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=64)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
