"""Measure the gate's rule on recorded pairs: the rates of false alarms and of losses detected.

`python docs/studies/gate.py` draws pairs from the runs of gate.json, with disjoint or the same seeds on both sides.
`--record N` makes that file again from N seeds, some minutes for each hundred.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from simserve import Scenario, load_scenario
from simserve.metrics.answers.baseline import LOOKS
from simserve.study.check.gate import AttainmentCurve, answer, loss_between, significance
from simserve.study.check.measured import covariate, crowd
from simserve.study.fleet import at_scale
from simserve.study.run_seeds import each_run

HERE = Path(__file__).parent
RUNS = HERE / "gate.json"
SCENARIO = HERE.parents[1] / "scenarios" / "chat_burst.yaml"
GOAL = 0.99
FIRST_SEED = 1000
"""Disjoint from the seeds of the committed baseline."""

UNCHANGED = (0.895, 0.967)
LOST = (0.829, 0.895)
"""Loads, as scales, between which each side stops meeting the goal."""
BASELINE = "engine={name: vllm, version: '0.12'}"
SLOWER = "engine={name: vllm, version: '0.12', busy_compute_frac: 0.828}"
"""Instead of 0.886: GPUs that compute 6.5% slower cost 5% of p99 goodput."""


def recorded() -> dict[str, Any]:
    """Return the runs that `--record` wrote."""
    result: dict[str, Any] = json.loads(RUNS.read_text())
    return result


def record(n_seeds: int) -> None:
    """Run both sides with all seeds and write their counts."""
    seeds = range(FIRST_SEED, FIRST_SEED + n_seeds)
    scenario, slower = (load_scenario(SCENARIO, overrides=[each]) for each in (BASELINE, SLOWER))
    middle = float(np.sqrt(UNCHANGED[0] * UNCHANGED[1]))
    above = crowd(scenario, middle, seeds, GOAL)
    result = {
        "unchanged": _counts(scenario, UNCHANGED, seeds),
        "lost": _counts(slower, LOST, seeds),
        "crowding": [round(each, 5) for each in covariate(scenario, middle, seeds, above).tolist()],
    }
    lines = ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in result.items())
    RUNS.write_text(f"{{\n{lines}\n}}\n")


def _counts(scenario: Scenario, scales: Sequence[float], seeds: Sequence[int]) -> list[list[list[int]]]:
    """Return requests that met every SLO and requests that arrived, at both loads, one number per seed."""
    sides = each_run(attrgetter("figures"), [at_scale(scenario, scale) for scale in scales], seeds)
    return [[[run["slo_attainment"][key] for run in each] for key in ("n_met", "n_arrived")] for each in sides]


def drawn(
    runs: Mapping[str, Any], side: str, *, is_paired: bool, n_draws: int
) -> Iterator[tuple[list[AttainmentCurve], list[Any]]]:
    """Yield baselines and candidates of LOOKS[-1] seeds each, with the covariates of their seeds."""
    rng = np.random.default_rng(0)
    before, after = (np.array(runs[key], np.int64) for key in ("unchanged", side))
    hard = np.array(runs["crowding"])
    n_before, n_after, n = before.shape[2], after.shape[2], LOOKS[-1]
    for _ in range(n_draws):
        theirs = rng.permutation(n_after)[:n]
        others = np.setdiff1d(np.arange(n_before), theirs)
        ours = theirs if is_paired else rng.permutation(others)[:n]
        scales = UNCHANGED, LOST if side == "lost" else UNCHANGED
        sides = zip((before, after), (ours, theirs), scales, strict=True)
        yield (
            [
                AttainmentCurve(scale, of[:, 0, seeds], of[:, 1, seeds], tuple(seeds.tolist()))
                for of, seeds, scale in sides
            ],
            [hard[ours], hard[theirs]],
        )


def shares(
    runs: Mapping[str, Any], side: str, *, is_paired: bool, n_draws: int, tolerance_frac: float = 0.02
) -> dict[str, float]:
    """Return how often the gate fails, passes and stays open, and the mean number of seeds."""
    text: Counter[str] = Counter()
    n_seeds = 0
    for curves, control_variate in drawn(runs, side, is_paired=is_paired, n_draws=n_draws):
        for n in LOOKS:
            first = [AttainmentCurve(c.scales, c.n_met[:, :n], c.n_arrived[:, :n], c.seeds[:n]) for c in curves]
            loss = loss_between(*first, GOAL, [each[:n] for each in control_variate])
            result = answer(loss, tolerance_frac, significance(len(LOOKS)))
            if result != "open":
                break
        text[result] += 1
        n_seeds += n
    return {key: text[key] / n_draws for key in ("fail", "pass", "open")} | {"seeds": n_seeds / n_draws}


def main() -> None:
    """Print the table of docs/check.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=int, metavar="N", help="run N seeds of both sides first")
    parser.add_argument("--draws", type=int, default=20_000)
    requested = parser.parse_args()
    if requested.record:
        record(requested.record)
    runs = recorded()
    print(f"{'pairs':<34} {'tolerance':>9} {'fails':>8} {'passes':>8} {'open':>8} {'seeds':>6}")
    for side, is_paired, tolerance in (
        ("unchanged", False, 0.02),
        ("unchanged", False, 0.0),
        ("lost", True, 0.02),
        ("lost", False, 0.02),
    ):
        result = shares(runs, side, is_paired=is_paired, n_draws=requested.draws, tolerance_frac=tolerance)
        name = f"{side}, {'the same seeds' if is_paired else 'other seeds'}"
        cells = "".join(f" {result[key]:8.2%}" for key in ("fail", "pass", "open"))
        print(f"{name:<34} {tolerance:9.0%}{cells} {result['seeds']:6.0f}")


if __name__ == "__main__":
    main()
