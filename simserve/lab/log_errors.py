"""Errors of a replayed log: measured latencies of a real server against the simulator's for the same requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from simserve.lab.runs import Errors, errors_of
from simserve.lab.server import STAND_IN
from simserve.metrics.results import Results
from simserve.scenario import Scenario
from simserve.scenario.loader import load_scenario
from simserve.simulation import simulate
from simserve.study.intervals import Estimate, around, blocks_of, leave_one_out, standard_error
from simserve.study.progress import of_run
from simserve.tables.columns import Flags, Floats, Ints
from simserve.workload.load import Load
from simserve.workload.readers.logs.base import METRICS, Log

LEVELS = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True)
class Sides:
    """One number as measured and as predicted; NaN where missing."""

    measured: float
    predicted: float

    @property
    def error_frac(self) -> float:
        """The error as a share of the measured value."""
        return self.predicted / self.measured - 1 if self.measured else float("nan")


@dataclass(frozen=True)
class RequestGroup:
    """Requests that share a property, and the errors of their predictions."""

    lowest: float
    highest: float
    errors: Errors


@dataclass(frozen=True)
class ReplayedLog:
    """A log and the run of its requests. Row i of `log` and of `results.columns["requests"]` are the same request."""

    log: Log
    scenario: Scenario
    results: Results
    unit: Literal["requests"] = "requests"

    @cached_property
    def predicted(self) -> Mapping[str, Floats]:
        """Predicted latencies by METRICS, `(n_requests,)`; NaN where the simulated server did not finish."""
        requests = self.results.columns["requests"]
        is_finished = requests["status"].is_("finished")
        return {name: np.where(is_finished, requests[name], np.nan) for name in METRICS}

    @cached_property
    def is_answered(self) -> Flags:
        """Whether the real server answered each request, `(n_requests,)`."""
        has = [~np.isnan(column) for column in self.log.measured.values()]
        answered: Flags = np.logical_or.reduce(has)
        return answered

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics with values to compare."""
        return tuple(name for name in self.log.measured if self.compared(name).any())

    def compared(self, metric: str) -> Flags:
        """Mark requests with both a measured and a predicted value, `(n_requests,)`."""
        both: Flags = ~np.isnan(self.log.measured[metric]) & ~np.isnan(self.predicted[metric])
        return both

    def distribution(self, metric: str) -> dict[str, Sides]:
        """Return mean and percentiles over the same requests on both sides."""
        rows = self.compared(metric)
        measured, predicted = self.log.measured[metric][rows], self.predicted[metric][rows]
        levels = zip(LEVELS, np.percentile(measured, LEVELS), np.percentile(predicted, LEVELS), strict=True)
        sides = {"mean": Sides(float(measured.mean()), float(predicted.mean()))}
        return sides | {f"p{level:g}": Sides(float(one), float(other)) for level, one, other in levels}

    def signed(self, metric: str) -> Floats:
        """Return predicted / measured - 1 of each request, `(n_requests,)`; NaN without both."""
        measured = self.log.measured[metric]
        is_known = self.compared(metric) & (measured > 0)
        ratio = np.divide(self.predicted[metric], measured, out=np.full(len(measured), np.nan), where=is_known)
        errors: Floats = ratio - 1
        return errors

    def error_of_mean(self, metric: str) -> Estimate:
        """Return the error of the mean with its interval, from blocks of requests; NaN as ends where they are few."""
        kept = np.flatnonzero(self.compared(metric))
        measured, predicted = self.log.measured[metric][kept], self.predicted[metric][kept]

        def error(rows: Flags) -> float:
            return Sides(float(measured[rows].mean()), float(predicted[rows].mean())).error_frac

        value, blocks = error(np.ones(len(kept), np.bool_)), blocks_of(len(kept))
        if blocks is None:
            return Estimate(value, float("nan"), float("nan"))
        without = leave_one_out(error, blocks)
        return around(value, standard_error(without), len(without) - 1)

    def errors(self, metric: str) -> Errors | None:
        """Return the errors of single requests; None where they cannot be paired."""
        signed = self.signed(metric)
        signed = signed[~np.isnan(signed)]
        return errors_of(signed) if len(signed) and self.log.is_paired else None

    def groups(self, metric: str, feature: Floats | None) -> list[RequestGroup]:
        """Group by quartile of one of the features; [] where it is unknown."""
        if feature is None or not self.log.is_paired:
            return []
        signed = self.signed(metric)
        is_known = ~np.isnan(signed) & ~np.isnan(feature)
        values, signed = feature[is_known], signed[is_known]
        groups = [(values[rows], signed[rows]) for rows in (quartiles(values) if len(values) else [])]
        return [RequestGroup(float(of.min()), float(of.max()), errors_of(errors)) for of, errors in groups]

    @property
    def features(self) -> dict[str, Floats | None]:
        """What groups of a metric have in common: TPOT, the requests in flight, and TTFT, the length of the prompt."""
        return {"tpot_s": self.in_flight, "ttft_s": self.log.trace.prompt_tokens.astype(np.float64)}

    @cached_property
    def in_flight(self) -> Floats | None:
        """Requests in flight at each arrival, as measured, `(n_requests,)`; None where unknown."""
        if not self.log.has_instants or "e2e_s" not in self.log.measured:
            return None
        sent_s, e2e_s = self.log.trace.arrival_s, self.log.measured["e2e_s"]
        is_known = ~np.isnan(e2e_s)
        n_sent = np.cumsum(is_known) - is_known
        n_answered = np.searchsorted(np.sort((sent_s + e2e_s)[is_known]), sent_s, side="right")
        return np.maximum(n_sent - n_answered, 0).astype(np.float64)

    @cached_property
    def token_floor_s(self) -> float:
        """Least time of computing a prompt token: its matrices on all GPUs of a replica at the data sheet's peak."""
        prefills = [setup for setup in self.scenario.setups if setup.role != "decode"]
        works = [(setup.step_cost().work, setup.parallel.tensor, setup.gpus_per_replica) for setup in prefills]
        return min(work.flop_per_token / work.peak_flop_per_s * tensor / n_gpus for work, tensor, n_gpus in works)

    def some(self, rows: Flags) -> str:
        """Format `3 requests (row 4 first)`."""
        place, numbers = self.log.place, self.log.place.numbers[rows]
        first = "1 request" if len(numbers) == 1 else f"{len(numbers)} requests"
        return f"{first} ({place.word} {numbers[0]}{'' if len(numbers) == 1 else ' first'})"

    @property
    def makespan_s(self) -> Sides:
        """Time from the first request sent to the last answer."""
        sent_s, e2e_s = self.log.trace.arrival_s, self.log.measured.get("e2e_s")
        is_whole = self.log.has_instants and e2e_s is not None and not np.isnan(e2e_s).all()
        measured = float(np.nanmax(sent_s + e2e_s)) if is_whole and e2e_s is not None else self.log.duration_s
        requests = self.results.columns["requests"]
        ends = requests["finish_s"][self.is_answered]
        predicted = float(np.nanmax(ends) - requests["arrival_s"][0]) if not np.isnan(ends).all() else float("nan")
        return Sides(float("nan") if measured is None else measured, predicted)

    @property
    def output_tokens_per_s(self) -> Sides:
        """Tokens of answered requests over the makespan of each side."""
        requests, makespan = self.results.columns["requests"], self.makespan_s
        is_predicted = self.is_answered & requests["status"].is_("finished")
        measured = float(self.log.trace.output_tokens[self.is_answered].sum())
        predicted = float(requests["output_tokens"][is_predicted].sum())
        pairs = ((measured, makespan.measured), (predicted, makespan.predicted))
        return Sides(*(n_tokens / span_s if span_s > 0 else float("nan") for n_tokens, span_s in pairs))

    def worst(self, metric: str, n: int) -> Ints:
        """Return the rows with the largest errors, largest first; the earlier row on a tie."""
        signed = self.signed(metric)
        off = np.abs(np.log1p(signed, out=np.full(len(signed), np.nan), where=signed > -1))
        known = np.flatnonzero(~np.isnan(off))
        return known[np.argsort(-off[known], kind="stable")][:n] if self.log.is_paired else known[:0]


def quartiles(values: Floats) -> list[Flags]:
    """Mark which of `(n,)` values, n > 0, are in each quartile; equal values stay together, so there may be fewer."""
    edges = np.unique(np.percentile(values, [25, 50, 75]))
    place = np.searchsorted(edges, values, side="left")
    return [place == i for i in range(len(edges) + 1) if (place == i).any()]


def server_of(path: Path) -> Scenario:
    """Load a scenario without its workload, which may be missing. Raises ScenarioError."""
    return load_scenario(path, overrides=STAND_IN)


def replay_log(log: Log, scenario: Scenario) -> ReplayedLog:
    """Send the requests of a log to the server of a scenario."""
    results = simulate(scenario, load=Load(log.trace, log.concurrency), progress=of_run())
    return ReplayedLog(log, scenario, results)
