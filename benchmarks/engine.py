"""Measure where the CPU time of one simulation goes: the least of some repeats, in microseconds a request.

    python benchmarks/engine.py benchmarks/a.yaml --set workload.n_requests=60000
    python benchmarks/engine.py scenarios/chat_burst.yaml

Run it where the build is installed that is to be measured, outside the checkout for a compiled one. A simulation inside
a study stops after `decision`; a run goes on with `report`.
"""

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from simserve import load_scenario, simulation
from simserve.integers import IS_COMPILED
from simserve.workload.load import offered_load


def main() -> None:
    """Print a line a phase."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    every = [phases(options.scenario, options.set) for _ in range(options.repeats)]
    n_requests = every[0].pop("requests")
    print(f"{n_requests:,.0f} requests, {'compiled' if IS_COMPILED else 'pure'}")
    for name in every[0]:
        least_s = min(each[name] for each in every)
        print(f"{name:<9} {1e6 * least_s / n_requests:7.2f} us a request {1e3 * least_s:9.1f} ms")


def phases(path: str, changes: list[str]) -> dict[str, float]:
    """Return the CPU seconds of each phase of one simulation, and its requests."""
    scenario = load_scenario(path, changes)
    marks = {"begin": time.process_time()}
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    marks["draw"] = time.process_time()
    inside: Any = simulation
    given = inside._cluster, inside.tabulate
    inside._cluster, inside.tabulate = marked(given[0], marks, "build"), marked(given[1], marks, "tables")
    try:
        results = simulation.simulate(scenario, load=load)
    finally:
        inside._cluster, inside.tabulate = given
    n_requests = len(results.recorded["arrival_s"])
    _ = results.sample
    marks["decision"] = time.process_time()
    _ = results.columns
    marks["report"] = time.process_time()
    names = list(marks)
    taken = {name: marks[name] - marks[before] for before, name in pairwise(names)}
    return taken | {"requests": n_requests}


def marked(function: Callable[..., Any], marks: dict[str, float], name: str) -> Callable[..., Any]:
    """Return a function that notes when it is over, and for tables when it began: the engine's end."""

    def result(*args: Any, **kwargs: Any) -> Any:
        if name == "tables":
            marks["engine"] = time.process_time()
        value = function(*args, **kwargs)
        marks[name] = time.process_time()
        return value

    return result


if __name__ == "__main__":
    main()
