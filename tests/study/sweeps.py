"""Sweeps whose runs are made up: figures that a test can work out by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simserve.metrics.answers.sweep_runs import FinishedRun, SweepRun
from simserve.scenario.template import Template
from simserve.study.sweep.points import grid, parse_axis, resolved
from simserve.study.sweep.question import SweepQuestion
from simserve.study.sweep.run import KEYS, failed_row
from simserve.study.sweep.sweep import Sweep
from tests.cli.scenarios import write_scenario

LOAD = {"kind": "requests", "nominal_per_s": None, "drawn_per_s": None, "off_frac": None}

UNKNOWN = {"tails": [], "n_effective": 1.0, "queue": None, "off_frac": None}
"""A run of which only the share is known, so that its interval decides."""


def run(seed: int = 3, goodput: float = 8.0, usd: float = 4.0, **changes: Any) -> FinishedRun:
    """A finished run; `changes` by their key, with `__` for a dot."""
    row: dict[str, Any] = {"seed": seed, "saturated": False, "wall_s": 1.0} | dict.fromkeys(KEYS, 0.5)
    row |= {"n_gpus": 1, "usd_per_hour": usd, "kw": 0.7}
    row |= {"slo_attainment.frac": 0.995, "goodput.per_s": goodput, "goodput.per_usd": goodput * 3600 / usd}
    row |= {key.replace("__", "."): value for key, value in changes.items()}
    row = {"outcomes": outcomes(row["slo_attainment.frac"], row["saturated"]), "load": LOAD, "warnings": []} | row
    row |= {"sample": UNKNOWN, "service_s": 0.0}
    row |= {"mean_gpus": 1.0, "gpu_hours": 0.1, "n_failed": 0, "scaling": None}
    return FinishedRun.model_validate(row)


def outcomes(attained_frac: float | None, saturated: bool = False) -> list[dict[str, Any]]:
    """The outcome of 1,000 requests, known to a tenth of a percent; none without an SLO."""
    if attained_frac is None:
        return []
    outcome: dict[str, Any] = {
        "attained_frac": attained_frac,
        "n_arrived": 1000,
        "n_effective": 1000.0,
        "off_frac": None,
    }
    outcome |= {"is_far_below": False, "queue": "growing" if saturated else "steady", "by_slo": {}}
    return [{"slo_class": None, **outcome, "interval": [attained_frac - 0.001, min(attained_frac + 0.001, 1.0)]}]


def made_up(folder: Path, *points: Sequence[SweepRun], **changes: Any) -> Sweep:
    """A sweep over as many points as there are lists of runs, one run a seed; no runs: the point fails."""
    n = len(points)
    template = Template.of(write_scenario(folder, **changes))
    seeds = max(map(len, points))
    requested = SweepQuestion(
        resolved(template, grid([parse_axis(f"cluster.pools.0.replicas=1..{n}")], [], seeds)), seeds
    )
    rows = (tuple(rows) or tuple(failed_row(3 + at, "it does not fit") for at in range(seeds)) for rows in points)
    return Sweep(requested, tuple(rows))
