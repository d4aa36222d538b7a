"""Runs that were measured on real servers, their predictions, and the errors of these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import CalibrationError, CatalogError, ScenarioError
from simserve.metrics.results import Results
from simserve.scenario import PoolSetup, Scenario
from simserve.simulation import simulate
from simserve.tables.columns import Floats

METRICS = ("tpot", "ttft", "e2e")
"""Means of latencies that are compared; some sources have the median TTFT too."""

RESAMPLES = 2000
"""Bootstrap resamples of whole groups for the interval of a mean error."""

MEASURED_PER_CLIENT = 10
"""Requests of a client in all campaigns."""

Means = Mapping[str, float]
"""Seconds by METRICS."""


@dataclass(frozen=True)
class MeasuredRun:
    """A run of a real server: where it comes from, what was measured, and how it is said as a scenario."""

    source: str
    """File that it was read from."""
    engine: str
    version: str
    """The engine's; empty where the source does not tell."""
    gpu: str
    model: str
    weight_dtype: str
    label: str
    """The run in one line."""
    measured_s: Means
    pools: Sequence[Mapping[str, Any]] = ()
    """Its servers, as in a scenario."""
    engine_section: Mapping[str, Any] = field(default_factory=dict)
    """The engine of a scenario, without its name."""
    kv_dtype: str = "bf16"
    read: Mapping[str, object] = field(default_factory=dict)
    """All that its source says of it."""
    server: str = ""
    """Model, dtype and parallelism."""
    kind: str = "aggregated"
    """Whether prefill and decode are disaggregated, and whether tokens are proposed."""
    tensor: int = 1
    """GPUs of rows, which are cross-validated; other runs have theirs in pools."""
    isl: int = 0
    osl: int = 0
    concurrency: int = 0
    requests_per_client: int = 10
    """Requests of a client in a replay; all clients send their first one at once."""
    shortest_frac: float = 1.0
    """Lengths are uniform between this share of isl and osl, and all of it."""
    cold_s: float = 0.0
    """What a cold start adds to mean TTFT and E2E: the first request of each client waits for the first step."""

    @property
    def group(self) -> tuple[str, str, str, int]:
        """The unit of cross-validation: engine, model, dtype and number of GPUs."""
        return (self.engine, self.model, self.weight_dtype, self.tensor)

    @property
    def is_disaggregated(self) -> bool:
        """Whether prefill and decode have servers of their own."""
        return self.kind.startswith("disaggregated")

    def scenario(self, constants: Mapping[str, float] | None = None, calibration: Path | None = None) -> Scenario:
        """Return the run as a scenario, with other constants of the engine or another calibration. Raises
        ScenarioError."""
        own = {} if calibration is None else {"calibration": str(calibration)}
        lengths = {
            name: [max(1, round(self.shortest_frac * most)), most]
            for name, most in (("prompt_tokens", self.isl), ("output_tokens", self.osl))
        }
        return Scenario.from_dict(
            {
                "schema": "simserve/1",
                "model": self.model,
                "gpu": self.gpu,
                "engine": {"name": self.engine, **self.engine_section, **(constants or {})},
                "weight_dtype": self.weight_dtype,
                "kv_dtype": self.kv_dtype,
                "cluster": {"pools": [{**pool, **own} for pool in self.pools]},
                "workload": {
                    "client": {"kind": "closed_loop", "concurrency": self.concurrency},
                    "lengths": {"kind": "uniform", **lengths},
                    "n_requests": self.requests_per_client * self.concurrency,
                    "max_tokens": self.osl,
                },
            }
        )

    def means(self, results: Results) -> Means:
        """Return mean latencies of a replay. With fewer requests than were measured, all but the first and last of a
        client count more. Disaggregated, the first token comes from the decode server, with the KV cache."""
        requests, n, per_client = results.columns["requests"], self.concurrency, self.requests_per_client
        e2e_s, ttft_s, tpot_s = (requests[f"{name}_s"] for name in ("e2e", "ttft", "tpot"))
        if self.is_disaggregated:
            ttft_s = ttft_s + requests["transfer_s"]
            tpot_s = (e2e_s - ttft_s) / np.maximum(requests["output_tokens"] - 1, 1)
        weights = np.ones(len(e2e_s))
        if 2 < per_client < MEASURED_PER_CLIENT:
            weights[n:-n] = (MEASURED_PER_CLIENT - 2) / (per_client - 2)
        known = ((each, weights * ~np.isnan(each)) for each in (ttft_s, tpot_s, e2e_s))
        ttft, tpot, e2e = (float(np.average(np.nan_to_num(each), weights=counted)) for each, counted in known)
        late_s, median_s = self.cold_s, float(np.nanmedian(ttft_s))
        return {"ttft": ttft + late_s, "tpot": tpot, "e2e": e2e + late_s, "median_ttft": median_s}


@dataclass(frozen=True)
class PredictedSpread:
    """How far mean latencies may be off, by METRICS."""

    intervals_s: Mapping[str, tuple[float, float]]
    """90% prediction intervals."""
    costs_sd: Means
    """Standard deviations of their logarithms over draws of costs and loads, without errors of servers."""


@dataclass(frozen=True)
class Prediction:
    """A run as predicted; ratios are predicted / measured."""

    run: MeasuredRun
    predicted_s: Means | None
    """None where the simulator refuses the run."""
    reason: str = ""
    """Why it is refused."""
    kv_tokens: int | None = None
    """Capacity of the KV cache of the first pool, where a replay of rows tells it."""
    spread: PredictedSpread = field(default_factory=lambda: PredictedSpread({}, {}))
    setups: tuple[PoolSetup, ...] = ()
    """Pools of its server."""

    @property
    def is_limited_by_memory(self) -> bool:
        """Whether the requests in flight exceed the KV cache."""
        assert self.kv_tokens is not None
        return self.run.concurrency * (self.run.isl + self.run.osl) > self.kv_tokens

    def mean_s(self, metric: str) -> float:
        """Return the predicted mean of a run that is not refused."""
        assert self.predicted_s is not None
        return self.predicted_s[metric]

    def ratio(self, metric: str) -> float:
        """Return predicted / measured of a run that is not refused."""
        return self.mean_s(metric) / self.run.measured_s[metric]


def predict(
    run: MeasuredRun, constants: Mapping[str, float] | None = None, calibration: Path | None = None
) -> Prediction:
    """Replay a run."""
    try:
        scenario = run.scenario(constants, calibration)
    except (ScenarioError, CatalogError) as error:
        return refused(run, error)
    results = simulate(scenario)
    pool = results.summary["pools"][0]
    kv_tokens = int(pool["n_blocks"] // pool["blocks_per_tokens"]) * pool["block_size"]
    return Prediction(run, run.means(results), kv_tokens=kv_tokens, setups=scenario.setups)


def refused(run: MeasuredRun, error: Exception) -> Prediction:
    """Return the prediction of a run that the simulator refuses."""
    return Prediction(run, None, "; ".join(map(str, getattr(error, "problems", None) or (error,))))


def accepted(prediction: Prediction) -> Prediction:
    """Return a prediction. Raises CalibrationError where the run is refused."""
    if prediction.predicted_s is None:
        raise CalibrationError(f"{prediction.run.label}: {prediction.reason}; correct the row or remove it")
    return prediction


def replay(runs: Sequence[MeasuredRun], constants: Mapping[str, float] | None = None) -> list[Prediction]:
    """Predict runs, in order. Raises CalibrationError for one that is refused."""
    return [accepted(predict(run, constants)) for run in runs]


@dataclass(frozen=True)
class Errors:
    """Errors of some predictions in one metric, as shares of the measured value."""

    n: int
    mape_frac: float
    median_frac: float
    p90_frac: float
    bias_frac: float
    """Mean of the signed errors."""
    interval: tuple[float, float] | None
    """90% confidence interval of the mean error, from a bootstrap of whole groups; None for a single group."""


def errors(predictions: Sequence[Prediction], metric: str) -> Errors:
    """Return the errors of some predictions. Raises ValueError without any."""
    signed = np.array([each.ratio(metric) - 1 for each in predictions])
    return errors_of(signed, _interval([each.run.group for each in predictions], np.abs(signed)))


def errors_of(signed: Floats, interval: tuple[float, float] | None = None) -> Errors:
    """Summarize errors `(n,)`, n > 0, each predicted / measured - 1."""
    size = np.abs(signed)
    return Errors(
        n=len(signed),
        mape_frac=float(size.mean()),
        median_frac=float(np.median(size)),
        p90_frac=float(np.percentile(size, 90)),
        bias_frac=float(signed.mean()),
        interval=interval,
    )


def _interval(groups: Sequence[object], size: Floats) -> tuple[float, float] | None:
    """Bootstrap whole groups, as the runs of one server are correlated."""
    names = sorted(set(groups), key=str)
    if len(names) < 2:
        return None
    by_group = [size[[group == name for group in groups]] for name in names]
    generator = np.random.default_rng(0)
    picks = generator.integers(0, len(names), (RESAMPLES, len(names)))
    sums, counts = np.array([part.sum() for part in by_group]), np.array([len(part) for part in by_group])
    means = sums[picks].sum(axis=1) / counts[picks].sum(axis=1)
    low, high = np.percentile(means, [5, 95])
    return float(low), float(high)


def by(predictions: Sequence[Prediction], key: Callable[[MeasuredRun], str]) -> dict[str, list[Prediction]]:
    """Group predictions by a property of their runs, in the order of the keys; without those that are refused."""
    groups: dict[str, list[Prediction]] = {}
    for each in predictions:
        if each.predicted_s is not None:
            groups.setdefault(key(each.run), []).append(each)
    return dict(sorted(groups.items()))


def worst(predictions: Sequence[Prediction], metric: str, n: int) -> list[Prediction]:
    """Return the predictions with the largest errors, largest first."""
    return sorted(predictions, key=lambda each: -abs(np.log(each.ratio(metric))))[:n]
