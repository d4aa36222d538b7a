"""Trust: what the errors of a validation allow: a word, its numbers, the likely cause and the next command."""

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from simserve.lab.runs import Prediction, errors
from simserve.metrics.answers.struct import Struct
from simserve.report.formats import interval, listed, share

TrustWord = Literal["trusted", "comparisons", "untrusted", "too_few"]

TITLES: dict[TrustWord, tuple[str, str]] = {
    "trusted": ("Trusted", "met"),
    "comparisons": ("Usable for comparisons", "edge"),
    "untrusted": ("Not to be trusted", "missed"),
    "too_few": ("Too few to tell", "edge"),
}
"""Each word on a page, and its sign."""

LIMITS: dict[TrustWord, tuple[float, float]] = {"trusted": (0.10, 0.20), "comparisons": (0.25, 0.50)}
"""The upper end of the error's interval, and the error of the tail, that a word allows; see docs/validation.md."""

RUNS_ENOUGH, REQUESTS_ENOUGH = 5, 100
"""Runs of a table and requests of a log below which nothing is said."""

ONE_GROUP = "Runs of one server alone have no interval of their error: other servers may be further off."

CAUSES = {
    ("TPOT", True): "Steps are too short: host time is the likely cause.",
    (
        "TPOT",
        False,
    ): "Steps are too long: kernels or host time that the scenario's calibration has not is the likely cause.",
    ("TTFT", True): "TTFT is too short: time before the engine, or host time, is the likely cause.",
    ("TTFT", False): "TTFT is too long: prompts that the server had cached, or queueing, are the likely cause.",
    ("E2E", True): "E2E is too short: host time is the likely cause.",
    ("E2E", False): "E2E is too long: a batch that grows too large is the likely cause.",
}
"""The likely cause by the latency that is furthest off, and whether it is predicted too short."""


class LatencyError(Struct):
    """How far predictions of one latency are off, as shares of the measured value."""

    latency: str
    n: int
    error_frac: float
    low_frac: float | None = None
    high_frac: float | None = None
    """Ends of the error's interval; None where it is unknown."""
    tail_frac: float | None = None
    """Error that 90% of runs stay below, or error of the p99 of requests."""
    bias_frac: float
    """Signed mean error; below 0 it is predicted too short."""

    @property
    def most_frac(self) -> float:
        """Return the error up to the upper end of its interval."""
        return self.error_frac if self.high_frac is None else self.high_frac

    def is_within(self, word: TrustWord) -> bool:
        """Return whether the errors are within the limits of a word."""
        most, tail = LIMITS[word]
        return self.most_frac <= most and (self.tail_frac or 0.0) <= tail


class Trust(Struct):
    """What may be done with predictions, and why."""

    word: TrustWord
    errors: Sequence[LatencyError]
    n_enough: int
    """Runs or requests below which nothing is said."""
    cause: str
    next_command: str
    sentence: str

    @property
    def title(self) -> str:
        """Return the decision."""
        return TITLES[self.word][0]

    @property
    def state(self) -> str:
        """Return the key of its sign on a page."""
        return TITLES[self.word][1]


def trust_in(errors: Sequence[LatencyError], unit: str, n_enough: int, calibrate: str) -> Trust:
    """Return the decision about predictions of `unit` ("runs"), by the worst of its latencies."""
    n = min((error.n for error in errors), default=0)
    if not errors or n < n_enough:
        word: TrustWord = "too_few"
        cause, command = f"A decision takes {n_enough} {unit}.", ""
    else:
        has_ends = all(error.high_frac is not None for error in errors)  # trust takes an interval of each error
        allowed: tuple[TrustWord, ...] = ("trusted", "comparisons") if has_ends else ("comparisons",)
        word = next((word for word in allowed if all(error.is_within(word) for error in errors)), "untrusted")
        worst = max(errors, key=lambda error: error.most_frac)
        is_small = all(error.is_within("trusted") for error in errors)
        cause = CAUSES[worst.latency, worst.bias_frac < 0] if not is_small else "" if word == "trusted" else ONE_GROUP
        command = "" if is_small else calibrate
    numbers = f"{listed([_words(error, unit) for error in errors])}." if errors else ""
    sentence = " ".join(filter(None, (numbers, cause, f"Calibrate: {command}" if command else "")))
    return Trust(word=word, errors=errors, n_enough=n_enough, cause=cause, next_command=command, sentence=sentence)


def trust_in_runs(points: Sequence[Prediction], rows: str = "") -> Trust:
    """Return the decision about runs of a table, refused ones left out; rows: the table, if `calibrate` reads it."""
    known = [point for point in points if point.predicted_s is not None]
    known_errors = []
    for metric in ("tpot", "ttft"):
        if own := [point for point in known if metric in point.run.measured_s]:
            error = errors(own, metric)
            low, high = error.interval or (None, None)
            of = {"error_frac": error.mape_frac, "tail_frac": error.p90_frac, "bias_frac": error.bias_frac}
            known_errors.append(LatencyError(latency=metric.upper(), n=error.n, low_frac=low, high_frac=high, **of))
    servers = Counter((point.run.gpu, point.run.engine) for point in known)
    (gpu, engine), _ = max(servers.items(), key=lambda item: item[1], default=(("GPU", "vllm"), 0))
    command = f"simserve calibrate {shlex.quote(gpu)} --engine {engine} --host {shlex.quote(rows)}"
    return trust_in(known_errors, "runs", RUNS_ENOUGH, command if rows else "")


def _words(error: LatencyError, unit: str) -> str:
    """Return `TPOT 4.2% off (CI 3.1–5.5%; 90% of runs within 9.0%; 2.0% too short)`."""
    notes = []
    if error.low_frac is not None and error.high_frac is not None:
        notes.append(f"CI {interval(error.low_frac, error.high_frac)}")
    if error.tail_frac is not None:
        notes.append(
            f"90% of runs within {share(error.tail_frac)}" if unit == "runs" else f"p99 {share(error.tail_frac)}"
        )
    notes.append(f"bias {error.bias_frac:+.1%}")
    return f"{error.latency} {share(error.error_frac)} off ({'; '.join(notes)})"
