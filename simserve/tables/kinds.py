"""Kinds: what the folder of each command's result holds."""

from dataclasses import dataclass

from simserve.tables.schema import MORE_TABLES, TABLES


@dataclass(frozen=True)
class Kind:
    """What the folder of one command's result holds."""

    name: str
    """Of the command."""
    files: frozenset[str]
    """All that it may hold."""
    required_files: frozenset[str]
    """What it always holds; a folder without them is somebody else's."""
    option: str = "--out"
    """That names it."""


RUN = Kind(
    "run",
    frozenset(
        {
            *(f"{name}.parquet" for name in TABLES | MORE_TABLES),
            "summary.json",
            "vllm_bench.json",
            "scenario.yaml",
            "report.html",
        }
    ),
    frozenset({"requests.parquet", "summary.json"}),
)


def _study(name: str, answer: str, *more: str) -> Kind:
    """The result of many runs: the answer as JSON, and a page."""
    files = {answer, "report.html", *more}
    return Kind(name, frozenset(files), frozenset({answer}))


CAPACITY = _study("capacity", "capacity.json", "capacity.parquet", "scenario.yaml")
COMPARISON = _study("compare", "comparison.json")
PLAN = _study("plan", "plan.json", "plan.parquet", "plan.xlsx", "scenario.yaml")
SWEEP = Kind(
    "sweep",
    frozenset({"sweep.jsonl", "sweep.json", "sweep.parquet", "report.html"}),
    frozenset({"sweep.json", "sweep.parquet"}),
)
UNFINISHED_SWEEP = Kind("sweep", SWEEP.files, frozenset({"sweep.jsonl"}))
"""What a sweep goes on from; a finished one holds that, too."""

KINDS = (RUN, CAPACITY, COMPARISON, PLAN, SWEEP)

EXPORT = Kind(
    "export",
    frozenset(
        {
            "summary.csv",
            "percentiles.csv",
            "time_series.csv",
            "capacity_curve.csv",
            "comparison.csv",
            "fleet_options.csv",
            "cost.csv",
            "growth.csv",
        }
    ),
    frozenset({"summary.csv"}),
    "--csv",
)
"""Results as CSV files: written, and never read again."""
