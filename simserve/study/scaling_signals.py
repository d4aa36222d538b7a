"""Scaling signals: which of them scales a pool at the least cost, and what policies want of recorded ones.

The rule is `target` with its guard: enough replicas for the target, and one less at a time if the load fits on the
others. Targets are shares of what a replica bears: of the signal in busy times of the smallest fixed fleet that
reaches the goal.
"""

import csv
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import Problem, ScenarioError, TraceError, did_you_mean
from simserve.metrics.answers.autoscale import AutoscaleAnswer, RecordedFleet, ReplayedPolicy, SignalRank
from simserve.metrics.decision import Effort
from simserve.metrics.outcomes import outcomes
from simserve.metrics.results import Results
from simserve.scenario import Scenario
from simserve.scenario.dump import yaml_text
from simserve.scenario.fleet import Startup
from simserve.scenario.template import Template
from simserve.simulation import RecordedSignals, ReplicaFacts, simulate
from simserve.study.autoscale import MOST_RUNS, AutoscaleQuestion, Policy, most_of, pool_of
from simserve.study.run_seeds import MEASURED
from simserve.tables.columns import Floats
from simserve.workload.readers.base import items, names_shown, refuse_rows
from simserve.workload.readers.cells import AMOUNT, INSTANT, NUMBER, CellKind, seconds_since_first
from simserve.workload.readers.csv_rows import read_csv
from simserve.workload.readers.logs.glossary import given_names
from simserve.workload.readers.simserve import parquet_columns
from simserve.workload.readers.text_lines import head

SHARES = (2 / 3, 1.0, 3 / 2)
"""Targets, as shares of what a replica bears at least: the fleet may have a part of one more than it needs."""

BUSY = 0.95
"""Quantile over time at which a fleet is busy."""

WINDOW_S = 60.0
"""[s] Window of rates."""

METRICS = RecordedSignals.metrics

FIXED: Mapping[str, CellKind] = {"at_s": INSTANT, "time": INSTANT, "replicas": NUMBER, "desired": AMOUNT}
"""Columns of a recording that are no metrics; of `at_s` and `time` the first that is there is read."""


def signal_question(
    template: Template, wanted: tuple[str | None, int | None], n_seeds: int | None, goal_frac: float, effort: Effort
) -> tuple[AutoscaleQuestion, int]:
    """Return the question about each signal with each target, and how many fixed fleets ran for the targets.

    wanted: the pool, and its most replicas. n_seeds: None: as many as MOST_RUNS allows. Raises SimserveError.
    """
    scenario = Scenario.of(template)
    pool = pool_of(scenario, wanted[0])
    most, own = most_of(scenario, pool, wanted[1]), scenario.setups[pool].autoscaler

    @cache
    def fixed(n: int) -> tuple[float, Mapping[str, float]]:
        here = Scenario.of(template.with_options(Policy(f"fixed:{n}", None, n).overrides(pool)))
        results = simulate(here)
        shares = [each.attained_frac for each in outcomes(results.part(MEASURED)).values()]
        if not shares:
            raise ScenarioError([Problem("command line --signals", "needs an slo", None, "give the scenario one")])
        return min(shares), levels_of(results, here.cluster.pools[pool].name, n)

    place = bisect_left(range(1, most + 1), goal_frac, key=lambda n: fixed(n)[0])
    levels, n_fixed = fixed(min(most, place + 1))[1], fixed.cache_info().currsize
    pairs = [(signal, float(f"{share * level:.3g}")) for signal, level in levels.items() for share in SHARES]
    rule = {"kind": "target", "min_replicas": 1 if own is None else max(1, own.min_replicas), "max_replicas": most}
    settings = [rule | {"metric": signal, "target": target, "down_below": target} for signal, target in pairs]
    seeds = n_seeds or max(1, (MOST_RUNS - n_fixed) // len(settings))
    effort = replace(effort, most_runs=seeds)
    question = AutoscaleQuestion.of(template, settings, wanted, seeds, goal_frac, effort)
    return replace(question, names=[f"{signal} at {target:g}" for signal, target in pairs]), n_fixed


def levels_of(results: Results, pool: str, n: int) -> Mapping[str, float]:
    """Return each signal that a pool has, as a query, and its value per replica in busy times of a fixed fleet."""
    series, requests = results.timeseries, results.requests
    series = series[series.pool == pool]
    done = requests[requests.finish_s.notna()]
    is_own = done.replica.isin(series.replica)
    decoded = done[is_own]
    by_time = series.groupby("start_s")
    total, mean = by_time.sum(numeric_only=True) / n, by_time.mean(numeric_only=True)
    window_s = min(WINDOW_S, max(1.0, float(requests.arrival_s.max())))

    def rates(instants: Any, n_tokens: Any = None) -> Any:
        n_windows = max(1, int(instants.max() / window_s) if len(instants) else 0)
        return np.histogram(instants, n_windows, (0, n_windows * window_s), weights=n_tokens)[0] / window_s / n

    levels = {
        "num_requests_running": total.running,
        "num_requests_waiting": np.maximum(total.queue_len, 1),  # a fleet that reaches the goal may never queue
        "llm_d_epp_request_running": total.running + total.queue_len,
        "kv_cache_usage_perc": mean.kv_frac,
        "rate(gateway_arrival_total[1m])": rates(requests.arrival_s),
        "rate(request_success_total[1m])": rates(done[is_own | done.prefill_replica.isin(series.replica)].finish_s),
        "rate(prompt_tokens_total[1m])": total.prefill_tokens_per_s.groupby(total.index // window_s).mean(),
        "rate(generation_tokens_total[1m])": rates(decoded.finish_s, decoded.output_tokens - 1),
    }
    busy = {name: float(np.quantile(level, BUSY)) for name, level in levels.items()}
    return {name: level for name, level in busy.items() if level > 0}


def ranked(answer: AutoscaleAnswer, n_fixed: int) -> AutoscaleAnswer:
    """Return the answer with the best setting of each signal: those that reach the goal by their GPU-hours, the others
    by what they attain."""
    costs = list[tuple[bool, float, int]]()
    for place, row in enumerate(answer.policies):
        attained, hours = row.attained_frac or 0.0, row.gpu_hours
        misses = hours is None or attained < answer.goal_frac
        costs.append((misses, -attained if misses else hours or 0.0, place))
    ranks = dict[str, SignalRank]()
    none_reaches, least, first = min(costs)
    for misses, cost, place in sorted(costs):
        row = answer.policies[place]
        match row.settings:
            case {"metric": str(signal), "target": float() | int() as target} if signal not in ranks:
                ranks[signal] = SignalRank(
                    signal=signal,
                    target=target,
                    policy=place,
                    gpu_hours=row.gpu_hours,
                    attained_frac=row.attained_frac,
                    regret_h=None if misses else cost - least,
                )
    settings = {"autoscaler": dict(answer.policies[first].settings or {})}
    chosen = {"best": None, "yaml": None} if none_reaches else {"best": first, "yaml": yaml_text(settings, {})}
    return answer.model_copy(update={"signals": [*ranks.values()], "n_runs": n_fixed + (answer.n_runs or 0), **chosen})


def replayed(question: AutoscaleQuestion, path: Path, columns: str | None, silent_s: float | None) -> AutoscaleAnswer:
    """Return what each policy wants at each instant of a recording. Raises SimserveError.

    columns: those of the file by our names, as text. silent_s: from joining to a first sample; None: a typical start.
    """
    setup, section = question.sweep.first.setups[question.pool], question.sweep.first.cluster.pools[question.pool]
    if silent_s is None:
        startup, weights_bytes = section.startup or Startup(), setup.ledger.weights_bytes * setup.gpus_per_replica
        silent_s = startup.typical_s(in_place=False) + weights_bytes / startup.weights.rate
    n_ranks = setup.ranks_per_replica
    kv_tokens = setup.ledger.layout.blocks.tokens_in(setup.ledger.lane_blocks) * n_ranks
    facts = ReplicaFacts(setup.role, setup.gpus_per_replica, n_ranks, setup.max_model_len, kv_tokens)
    signals, theirs = _read(path, given_names(columns, (*FIXED, *METRICS)))
    signals = replace(signals, silent_s=silent_s, replica=facts)
    rows, notes = list[ReplayedPolicy](), list[str]()
    for name, point in zip(question.names, question.sweep.points, strict=True):
        if point.scenario is None:
            raise ScenarioError(point.problems)
        policy, pool = point.scenario.setups[question.pool].autoscaler, point.scenario.cluster.pools[question.pool]
        notes += [] if policy is None else _missing(path, name, {*policy.metric_names}, signals)
        desired = [pool.replicas] * len(signals.at_s) if policy is None else signals.desired_by(policy)
        rows.append(_row(name, pool.autoscaler, signals.at_s, desired, theirs))
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
    return question.answer(n_runs=0, best=None, policies=[], recorded=recorded)


def _missing(path: Path, name: str, reads: set[str], signals: RecordedSignals) -> list[str]:
    """Return which metrics of a policy a file lacks. Raises TraceError where it has none of them."""
    there = {metric for metric, _ in signals.columns}
    lacking = ", ".join(sorted(reads - there))
    if reads and not reads & there:
        rule = f"policy {name} reads {lacking}, got columns of {', '.join(sorted(there))} alone"
        raise TraceError(f"{path}: {rule}; name a column by --map, or leave the policy out")
    return [f"{name} also reads {lacking}, which {path.name} lacks."] if lacking else []


def _row(name: str, settings: Any, at_s: Sequence[float], desired: Sequence[int], theirs: Floats) -> ReplayedPolicy:
    """Return what a policy wants, with its changes, and how it differs from what was recorded."""
    times, known = np.array(at_s), ~np.isnan(theirs)
    changed_s = times[1:][np.diff(desired) != 0].tolist()
    differs_at_s = times[known & (np.array(desired) != theirs)].tolist()
    return ReplayedPolicy(
        policy=name,
        settings=settings,
        desired=desired,
        n_changes=len(changed_s),
        first_change_s=changed_s[0] if changed_s else None,
        replica_s=_replica_s(at_s, desired),
        agreed_frac=1 - len(differs_at_s) / int(known.sum()) if known.any() else None,
        differs_at_s=differs_at_s,
    )


def _replica_s(at_s: Sequence[float], replicas: Sequence[int]) -> float:
    """Return replicas, summed over the time until the last row."""
    return float(np.diff(at_s) @ np.array(replicas)[:-1])


def _read(path: Path, given: Mapping[str, str]) -> tuple[RecordedSignals, Floats]:
    """Read CSV or parquet: its signals, and what was desired, NaN where unknown. Raises TraceError."""
    is_parquet = path.suffix == ".parquet"
    if is_parquet:
        header = parquet_columns(path, lambda _: None)[1]
    else:
        header = [name.strip() for name in next(csv.reader(head(path).lstrip().splitlines()), [])]
    ours = _ours(path, header, given)
    kinds = {theirs: FIXED.get(name, AMOUNT) for name, theirs in ours.items()}
    if is_parquet:
        cells, _ = parquet_columns(path, kinds.get)
        place = items(path, len(next(iter(cells.values()))), "row")
        read = {name: kinds[name].read(place, name, column) for name, column in cells.items()}
    else:
        place, read, _ = read_csv(path, kinds, kinds)
    columns = {name: read[theirs] for name, theirs in ours.items()}
    at, replicas = columns.pop("at_s"), columns.pop("replicas")
    if not len(at):
        raise TraceError(f"{path}: must have at least one row, got none; is it the right file?")
    at_s = seconds_since_first(at) if at.dtype.kind == "M" else at - at.min()
    rule = "times must ascend from row to row, of one run alone"
    refuse_rows(place, np.diff(at_s, prepend=-1.0) <= 0, rule, at.astype(str))
    refuse_rows(place, (replicas < 0) | (replicas != np.floor(replicas)), "replicas must be whole numbers", replicas)
    desired = columns.pop("desired", np.full(len(at), np.nan))
    values = {(metric, pod): columns[name].tolist() for name in columns for metric, _, pod in [name.partition("/")]}
    return RecordedSignals(at_s.tolist(), replicas.astype(int).tolist(), values), desired


def _ours(path: Path, header: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of the file by our names, `time` as `at_s`. Raises TraceError for a missing one."""
    for name, theirs in given.items():
        if theirs not in header:
            raise TraceError(f"{path}: --map {name}={theirs}: no such column; {did_you_mean(theirs, header)}")
    every = {name: name for name in header if name not in given.values()} | dict(given)
    known = {name: at for name, at in every.items() if name in FIXED or name.partition("/")[0] in METRICS}
    needs = {"at_s or time": {"at_s", "time"}, "replicas": {"replicas"}, "of a metric": known.keys() - FIXED.keys()}
    for what, names in needs.items():
        if not known.keys() & names:
            rule, remedy = f"a column {what} is missing, got {names_shown(header)}", "name yours by --map OURS=THEIRS"
            raise TraceError(f"{path}: {rule}; {remedy}; metrics are {', '.join(METRICS)}")
    return {"at_s": known.pop("time", "")} | known
