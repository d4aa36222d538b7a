"""League: errors and interval coverage of public data sets as plain data, beside the errors that peers published."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from simserve.lab.public import METRICS, DataSet, PublicRun
from simserve.lab.public_knowledge import Knowledge
from simserve.lab.validate import errors_of
from simserve.study.cost_draws import CONFIDENCE


def league_facts(runs: Sequence[PublicRun], n_of: Mapping[DataSet, int], skipped: Sequence[str]) -> dict[str, Any]:
    """Return the league of runs; `n_of` are the cases of each set in the folder, `skipped` what is not in it."""
    by_set: dict[DataSet, list[PublicRun]] = {}
    for run in runs:
        by_set.setdefault(run.data_set, []).append(run)
    return {
        "confidence": CONFIDENCE,
        "not_fitted": _figures(run for run in runs if run.data_set.knowledge.in_sample == "no"),
        "partly_fitted": _figures(run for run in runs if run.data_set.knowledge.in_sample == "partly"),
        "sets": [_set(data_set, mine, n_of[data_set]) for data_set, mine in sorted(by_set.items())],
        "peers": _peers(by_set),
        "skipped": list(skipped),
        "runs": [_run(run) for run in runs],
    }


def _set(data_set: DataSet, runs: Sequence[PublicRun], n_of: int) -> dict[str, Any]:
    knowledge = data_set.knowledge
    versions = list(dict.fromkeys(run.version for run in runs if run.version))
    about = {"versions": versions, "n_in_folder": n_of, "in_sample": knowledge.in_sample, "why": knowledge.why}
    return asdict(data_set) | about | _figures(runs) | {"published": [asdict(peer) for peer in knowledge.peers]}


def _peers(by_set: Mapping[DataSet, Sequence[PublicRun]]) -> list[dict[str, Any]]:
    """Return our figures over all sets that peers' published errors are about, and those errors."""
    runs_of: dict[str, list[PublicRun]] = {}
    knowledge_of: dict[str, Knowledge] = {}
    for data_set, runs in by_set.items():
        knowledge = data_set.knowledge
        knowledge_of[knowledge.label] = knowledge
        runs_of.setdefault(knowledge.label, []).extend(runs)
    return [
        {
            "runs": label,
            "in_sample": knowledge.in_sample,
            **_figures(runs_of[label]),
            "published": [asdict(peer) for peer in knowledge.peers],
        }
        for label, knowledge in knowledge_of.items()
        if knowledge.peers
    ]


def _figures(runs: Iterable[PublicRun]) -> dict[str, Any]:
    """Return the errors, and the share of measured means in their prediction intervals, by METRICS."""
    all_runs = list(runs)
    errors: dict[str, Any] = {}
    within_frac: dict[str, float | None] = {}
    for name in METRICS:
        pairs = [(run, run.predicted_s[name]) for run in all_runs if run.predicted_s and name in run.measured_s]
        signed = np.array([predicted_s / run.measured_s[name] - 1 for run, predicted_s in pairs])
        errors[name] = asdict(errors_of(signed)) if pairs else None
        inside = [_is_inside(run, name) for run, _ in pairs if name in run.spread.intervals_s]
        within_frac[name] = float(np.mean(inside)) if inside else None
    n_refused = sum(run.predicted_s is None for run in all_runs)
    return {"n_runs": len(all_runs), "n_refused": n_refused, "errors": errors, "within_frac": within_frac}


def _is_inside(run: PublicRun, name: str) -> bool:
    low_s, high_s = run.spread.intervals_s[name]
    return low_s <= run.measured_s[name] <= high_s


def _run(run: PublicRun) -> dict[str, Any]:
    about = {"version": run.version, "label": run.label, "in_sample": run.data_set.knowledge.in_sample}
    return {
        **asdict(run.data_set),
        **about,
        "refused": run.reason or None,
        **_latencies(run),
    }


def _latencies(run: PublicRun) -> dict[str, Any]:
    return {
        name: {
            "measured_s": run.measured_s[name],
            "predicted_s": run.predicted_s and run.predicted_s[name],
            "interval_s": run.spread.intervals_s.get(name),
        }
        for name in METRICS
        if name in run.measured_s
    }
