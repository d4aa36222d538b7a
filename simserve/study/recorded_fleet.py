"""Recorded fleet: what policies want, fed the signals of a fleet that ran elsewhere."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from simserve.errors import ScenarioError, TraceError, did_you_mean
from simserve.metrics.answers.autoscale import AutoscaleAnswer, RecordedFleet, ReplayedPolicy
from simserve.metrics.answers.parts import ScenarioName
from simserve.scenario import Scenario
from simserve.scenario.fleet import Startup
from simserve.scenario.pool import Pool
from simserve.simulation import RecordedSignals
from simserve.study.autoscale import AutoscaleQuestion
from simserve.tables.columns import Floats
from simserve.version import __version__
from simserve.workload.readers.base import items, names_shown, refuse_rows
from simserve.workload.readers.cells import AMOUNT, INSTANT, NUMBER, CellKind, seconds_since_first
from simserve.workload.readers.csv_rows import read_csv
from simserve.workload.readers.logs.glossary import given_names
from simserve.workload.readers.simserve import parquet_columns
from simserve.workload.readers.text_lines import head

METRICS = RecordedSignals.metrics

TIMES = ("at_s", "time")
"""Seconds or stamps; the first that is there is read."""

FIXED: Mapping[str, CellKind] = {**dict.fromkeys(TIMES, INSTANT), "replicas": NUMBER, "desired": AMOUNT}


def replayed(question: AutoscaleQuestion, path: Path, columns: str | None, silent_s: float | None) -> AutoscaleAnswer:
    """Return what each policy wants at each instant of a recording. Raises SimserveError.

    columns: those of the file by our names, as text. silent_s: from joining to a first sample; None: a typical start.
    """
    first, pool = question.sweep.first, question.pool
    silent_s = _start_s(first, pool) if silent_s is None else silent_s
    signals, theirs = _read(path, given_names(columns, (*FIXED, *METRICS)), silent_s)
    rows, notes = list[ReplayedPolicy](), list[str]()
    for name, point in zip(question.names, question.sweep.points, strict=True):
        if point.scenario is None:
            raise ScenarioError(point.problems)
        policy, section = point.scenario.setups[pool].autoscaler, point.scenario.cluster.pools[pool]
        notes += [] if policy is None else _missing(path, name, {*policy.metric_names}, signals)
        desired = [section.replicas] * len(signals.at_s) if policy is None else signals.desired_by(policy)
        rows.append(_row(name, section, signals.at_s, desired, theirs))
    recorded = RecordedFleet(
        file=path.name,
        at_s=signals.at_s,
        replicas=signals.replicas,
        desired=None if np.isnan(theirs).all() else [None if n != n else round(n) for n in theirs.tolist()],
        replica_s=_replica_s(signals.at_s, signals.replicas),
        silent_s=None if any(pod for _, pod in signals.columns) else silent_s,
        policies=rows,
        notes=notes,
    )
    return AutoscaleAnswer(
        version=__version__,
        scenario=ScenarioName(name=first.name, digest=first.digest, seed=first.seed),
        pool=first.cluster.pools[pool].name,
        goal_frac=question.sweep.goal_frac,
        slo=first.slo.default.given or None,
        n_runs=0,
        best=None,
        policies=[],
        recorded=recorded,
    )


def _start_s(scenario: Scenario, pool: int) -> float:
    """Return the seconds of a typical start of a pool's replica."""
    setup, startup = scenario.setups[pool], scenario.cluster.pools[pool].startup or Startup()
    weights_s = setup.ledger.weights_bytes * setup.gpus_per_replica / startup.weights.rate
    return startup.typical_s(in_place=False) + weights_s


def _missing(path: Path, name: str, reads: set[str], signals: RecordedSignals) -> list[str]:
    """Return which metrics of a policy a file lacks. Raises TraceError where it has none of them."""
    there = {metric for metric, _ in signals.columns}
    lacking = ", ".join(sorted(reads - there))
    if reads and not reads & there:
        rule = f"policy {name} reads {lacking}, got columns of {', '.join(sorted(there))} alone"
        raise TraceError(f"{path}: {rule}; name a column by --map, or leave the policy out")
    return [f"{name} also reads {lacking}, which {path.name} lacks."] if lacking else []


def _row(name: str, section: Pool, at_s: Sequence[float], desired: Sequence[int], theirs: Floats) -> ReplayedPolicy:
    """Return what a policy wants, with its changes, and how it differs from what was recorded."""
    changes = (np.flatnonzero(np.diff(desired)) + 1).tolist()
    known = ~np.isnan(theirs)
    differs = np.flatnonzero(known & (np.array(desired) != theirs)).tolist()
    return ReplayedPolicy(
        policy=name,
        settings=section.autoscaler,
        desired=desired,
        n_changes=len(changes),
        first_change_s=at_s[changes[0]] if len(changes) else None,
        replica_s=_replica_s(at_s, desired),
        agreed_frac=1 - len(differs) / int(known.sum()) if known.any() else None,
        differs_at_s=[at_s[row] for row in differs],
    )


def _replica_s(at_s: Sequence[float], replicas: Sequence[int]) -> float:
    """Return replicas, summed over the time until the last row."""
    return float(np.sum(np.array(replicas)[:-1] * np.diff(at_s)))


def _read(path: Path, given: Mapping[str, str], silent_s: float) -> tuple[RecordedSignals, Floats]:
    """Read CSV or parquet: its signals, and what was desired, NaN where unknown. Raises TraceError.

    given: columns of the file by our names.
    """
    is_parquet = path.suffix == ".parquet"
    ours = _ours(path, parquet_columns(path, lambda _: None)[1] if is_parquet else _header(path), given)
    kinds = {theirs: FIXED.get(name, AMOUNT) for name, theirs in ours.items()}
    if is_parquet:
        cells, _ = parquet_columns(path, kinds.get)
        place = items(path, len(next(iter(cells.values()))), "row")
        read = {name: kinds[name].read(place, name, column) for name, column in cells.items()}
    else:
        place, read, _ = read_csv(path, kinds, kinds)
    columns = {name: read[theirs] for name, theirs in ours.items()}
    at, replicas = (next(columns.pop(name) for name in names if name in columns) for names in (TIMES, ["replicas"]))
    if not len(at):
        raise TraceError(f"{path}: must have at least one row, got none; is it the right file?")
    at_s = seconds_since_first(at) if at.dtype.kind == "M" else at - at.min()
    is_back = np.diff(at_s, prepend=-1.0) <= 0
    refuse_rows(place, is_back, "times must ascend from row to row, of one run alone", at.astype(str))
    refuse_rows(place, (replicas < 0) | (replicas != np.floor(replicas)), "replicas must be whole numbers", replicas)
    desired = columns.pop("desired", np.full(len(at), np.nan))
    values = {_metric_and_pod(name): column.tolist() for name, column in columns.items()}
    return RecordedSignals(at_s.tolist(), replicas.astype(int).tolist(), values, silent_s), desired


def _header(path: Path) -> list[str]:
    if not path.is_file():
        what = "is a folder; name the file in it" if path.is_dir() else "no such file; give a CSV or parquet of signals"
        raise TraceError(f"{path}: {what}")
    lines = (line for line in head(path).splitlines() if line.strip())
    return [name.strip() for name in next(csv.reader(lines), [])]


def _metric_and_pod(name: str) -> tuple[str, str]:
    metric, _, pod = name.partition("/")
    return metric, pod


def _ours(path: Path, header: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of the file by our names. Raises TraceError for a needed one that is missing."""
    for name, theirs in given.items():
        if theirs not in header:
            raise TraceError(f"{path}: --map {name}={theirs}: no such column; {did_you_mean(theirs, header)}")
    every = {name: name for name in header if name not in given.values()} | dict(given)
    known = {name: at for name, at in every.items() if name in FIXED or _metric_and_pod(name)[0] in METRICS}
    needs = {"at_s or time": TIMES, "replicas": ["replicas"], "of a metric": known.keys() - FIXED.keys()}
    for what, names in needs.items():
        if not known.keys() & set(names):
            rule, remedy = f"a column {what} is missing, got {names_shown(header)}", "name yours by --map OURS=THEIRS"
            raise TraceError(f"{path}: {rule}; {remedy}; metrics are {', '.join(METRICS)}")
    return {name: at for name, at in known.items() if name != "time" or "at_s" not in known}
