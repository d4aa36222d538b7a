"""Measure what an autoscaler costs: CPU time of a simulation with one, relative to a fixed fleet of its mean size.

    python benchmarks/fleet.py                       # 100,000 requests: two minutes
    python benchmarks/fleet.py --requests 5000000    # a whole day

Fewer requests are a shorter day with the same rates. Pairs are interleaved, and the load is drawn beforehand. An
autoscaler whose least replicas are its most never acts.
"""

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from simserve import Scenario, load_scenario
from simserve.integers import IS_COMPILED
from simserve.metrics.results import Results
from simserve.simulation import simulate
from simserve.workload.load import Load, offered_load

SCENARIO: Final = Path(__file__).parent / "g.yaml"
AUTOSCALER: Final = "cluster.pools.0.autoscaler"
BOUNDS: Final = {"hpa": 1.3, "never acts": 1.1}


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    whole = load_scenario(SCENARIO)
    assert whole.workload.n_requests and whole.workload.arrivals
    period_s = 86_400 * options.requests / whole.workload.n_requests
    base = {"workload.n_requests": options.requests, "workload.arrivals.period_s": period_s, "measure.replays": 0}
    scaled = whole.replace(**base)
    load = offered_load(scaled.workload, scaled.seed, scaled.base_dir)
    scaling = timed(scaled, load)[1].summary["scaling"]
    n_gpus = scaled.cluster.pools[0].parallel.tensor
    n = round(scaling["mean_gpus"] / n_gpus)
    print(
        f"{options.requests:,} requests, {'compiled' if IS_COMPILED else 'pure'}: {n} replicas on average, at most "
        f"{scaling['most_replicas']}, {scaling['n_scalings']} scalings"
    )
    fixed = whole.replace(**base, **{"cluster.pools.0.replicas": n, AUTOSCALER: None})
    never = {f"{AUTOSCALER}.{limit}_replicas": n for limit in ("min", "max")}
    cases = {"hpa": scaled, "never acts": whole.replace(**base, **{"cluster.pools.0.replicas": n}, **never)}
    for name, ratio in ratios(fixed, cases, load, options.pairs).items():
        print(f"{name:<11} {ratio:.2f} times the CPU time of a fixed fleet (bound: {BOUNDS[name]})")


def ratios(fixed: Scenario, cases: Mapping[str, Scenario], load: Load, n_pairs: int) -> dict[str, float]:
    """Return the median ratio of each case over pairs of runs."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(n_pairs):
        for name, scenario in cases.items():
            fixed_s, scaled_s = timed(fixed, load)[0], timed(scenario, load)[0]
            print(f"  {name:<11} {fixed_s:.2f} s fixed, {scaled_s:.2f} s", flush=True)
            taken[name].append(scaled_s / fixed_s)
    return {name: statistics.median(each) for name, each in taken.items()}


def timed(scenario: Scenario, load: Load) -> tuple[float, Results]:
    """Return the CPU seconds of one simulation, and its results."""
    begin_s = time.process_time()
    results = simulate(scenario, load=load)
    return time.process_time() - begin_s, results


if __name__ == "__main__":
    main()
