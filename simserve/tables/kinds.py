"""Kinds: the files in the result folder of each command."""

from dataclasses import dataclass

from simserve.tables.schema import MORE_TABLES, TABLES


@dataclass(frozen=True)
class Kind:
    """Contents of a command's result folder."""

    name: str
    """Name of the command."""
    files: frozenset[str]
    """All files that it may hold."""
    required_files: frozenset[str]
    """Files that it always holds; a folder without them is not a result."""
    option: str = "--out"
    """Option that names the folder."""
    journal: str | None = None
    """Name of the file of finished runs, which the folder of an unfinished study holds alone."""


RUN = Kind(
    "run",
    frozenset({f"{name}.parquet" for name in TABLES | MORE_TABLES})
    | {"summary.json", "vllm_bench.json", "scenario.yaml", "report.html"},
    frozenset({"requests.parquet", "summary.json"}),
)


def _study(name: str, answer: str, *more: str) -> Kind:
    """Return the kind of a study: its answer as JSON, and a page."""
    files = {answer, "report.html", *more}
    return Kind(name, frozenset(files), frozenset({answer}))


CAPACITY = _study("capacity", "capacity.json", "capacity.parquet", "scenario.yaml")
COMPARISON = _study("compare", "comparison.json")
PLAN = _study("plan", "plan.json", "plan.parquet", "plan.xlsx", "scenario.yaml")
SWEEP = Kind(
    "sweep",
    frozenset({"sweep.jsonl", "sweep.json", "sweep.parquet", "report.html"}),
    frozenset({"sweep.json", "sweep.parquet"}),
    journal="sweep.jsonl",
)

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
"""Results as CSV files; simserve never reads them."""
