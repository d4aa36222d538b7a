"""Factors on the kernels of another card, and the calibration file that has them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simserve.cost.calibration import FORMS, calibration_path, launch_factor, nearest, read_calibration
from simserve.errors import CalibrationError
from simserve.input_files import read_json
from simserve.lab.card_runs import Run

FACTORS: Mapping[str, tuple[str, ...]] = {
    "matrices": ("gemm", "moe"),
    "attention": ("prefill_attention", "decode_attention", "mla_prefill", "mla_decode"),
    "collectives": ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    "launches": (),
}
"""Operations with work that each factor slows; launches: what kernels take whatever their work, and gaps."""

APART = ("matrices", "launches")
"""Factors that runs with prefill and decode apart may tell, as their TTFT has the hand-over in it."""

ANY_VERSION = "0"
"""Version of launches of runs that do not all name theirs."""

DIGITS = 4

Theta = Mapping[str, float]


@dataclass(frozen=True)
class FittedFactor:
    """A factor on the kernels of another card; low and high: the ends of fits that each leave a part out."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LeftOutRuns:
    """Mean absolute errors over the runs, each predicted by a fit without its part."""

    scaled_frac: float
    """Error of kernels scaled by the data sheet alone."""
    fitted_frac: float
    spread: float
    """Root mean square of the log ratios of the fitted ones."""


@dataclass(frozen=True)
class CardFit:
    """Factors by name, those of launches by version, and what they are worth."""

    base: str
    """The calibration with the kernels that the factors slow."""
    fitted: Mapping[str, FittedFactor]
    as_scaled: Mapping[str, str]
    """Why each other factor stays 1."""
    errors: Mapping[str, LeftOutRuns]
    parts: tuple[str, ...]
    versions: tuple[str, ...]
    """Versions with launches of their own, the newest last."""


def factors_for(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the factors that runs may tell: where prefill and decode are apart, those of matrices and launches."""
    return APART if any(run.is_disaggregated for run in runs) else tuple(FACTORS)


def base_of(gpu: str, engine: str, donor: str | None) -> str:
    """Name the timed calibration that is scaled to a card. Raises CalibrationError for a card with its own."""
    name = nearest(gpu, engine, donor)
    if read_calibration(calibration_path(name)).runs is not None:
        name = nearest(gpu, engine, donor, own=False)
    if name == f"{gpu}/{engine}":
        rule = f"{name} has timed kernels, which serving runs do not replace"
        raise CalibrationError(f"{rule}; fit the engine's host with --host or --logs")
    return name


def content(base: Mapping[str, Any], gpu: str, theta: Theta, versions: Sequence[str]) -> dict[str, Any]:
    """Return a calibration of a card: kernels of another with the factors on their work, and launches by version."""
    slow = {op: theta.get(name, 1.0) for name, ops in FACTORS.items() for op in ops}
    kernels = []
    for row in base["kernels"]:
        form = FORMS[row["op"]](**row["coefficients"]).slowed(slow[row["op"].removesuffix("_module")])
        kernels.append({**row, "coefficients": {name: rounded(value) for name, value in asdict(form).items()}})
    before = launch_factor(base.get("launches", {}), "")
    named = {each: f"launches {each}" for each in versions} or {ANY_VERSION: "launches"}
    launches = {each: rounded(before * theta.get(key, 1.0)) for each, key in named.items()}
    return {**base, "gpu": gpu, "kernels": kernels, "host": {}, "launches": launches}


def card_data(fit: CardFit, runs: Sequence[Run], files: Sequence[Mapping[str, Any]], unused: Theta) -> dict[str, Any]:
    """Return the content of the file; files: the tables with their SHA-256; unused: rows of these by reason."""
    path = calibration_path(fit.base)
    base = read_json(path)
    theta = {name: each.value for name, each in fit.fitted.items()}
    section = {
        "n_rows": len(runs),
        "models": sorted({run.model for run in runs}),
        "files": list(files),
        "unused": dict(unused),
        "kernels_of": {"name": fit.base, "sha256": read_calibration(path).sha256},
        "fitted": {name: asdict(each) for name, each in fit.fitted.items()},
        "as_scaled": dict(fit.as_scaled),
        "left_out": {"parts": list(fit.parts), "errors": {name: asdict(each) for name, each in fit.errors.items()}},
    }
    data = content(base, runs[0].gpu, theta, fit.versions)
    made = {key: value for key, value in base["made"].items() if key != "date"}
    return {**data, "made": made, "runs": section}


def rounded(value: float) -> float:
    """Round to few digits."""
    return float(f"{value:.{DIGITS}g}")
