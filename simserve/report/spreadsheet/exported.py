"""Exported: the sheets that result folders fill, the answers first."""

from collections.abc import Sequence

from simserve.metrics.result_folder import ResultFolder
from simserve.report.spreadsheet.cost_sources import cost_basis
from simserve.report.spreadsheet.sheets import Sheet
from simserve.report.spreadsheet.sheets_cost import cost, growth
from simserve.report.spreadsheet.sheets_fleet import fleet_options
from simserve.report.spreadsheet.sheets_run import comparison, percentiles, time_series
from simserve.report.spreadsheet.sheets_simulated import capacity_curve, simulated_fleets
from simserve.report.spreadsheet.sheets_summary import summary


def sheets_of(sources: Sequence[ResultFolder]) -> list[Sheet]:
    """Return the sheets that these folders fill, the summary first."""
    runs, capacities, comparisons = (
        [source for source in sources if source.command == command] for command in ("run", "capacity", "compare")
    )
    fleets = [
        each
        for each in sources
        if each.command in ("plan", "sweep") or (each.command == "capacity" and each.answer.question == "replicas")
    ]
    basis = cost_basis(sources)
    others = [
        *([percentiles(runs), time_series(runs)] if runs else []),
        *([capacity_curve(capacities)] if capacities else []),
        *([comparison(comparisons)] if comparisons else []),
        *([fleet_options(fleets, basis)] if fleets else []),
        *([simulated_fleets(basis)] if basis is not None and basis.met else []),
        *([cost(basis), growth(basis)] if basis is not None else []),
    ]
    return [summary(sources, others, basis), *others]
