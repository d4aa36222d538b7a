"""Calibration: the fitted forms of a GPU's kernels under one engine, in a readable file."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from simserve.catalog.engine_spec import CONSTANTS
from simserve.catalog.types import MOST_HOST_S
from simserve.cost.forms.attention import DecodeAttention, PrefillAttention
from simserve.cost.forms.base import Form
from simserve.cost.forms.collective import COLLECTIVES
from simserve.cost.forms.gemm import Gemm
from simserve.cost.forms.mla import LATENT
from simserve.cost.forms.moe import MoeLayer
from simserve.cost.forms.sparse import SPARSE
from simserve.cost.forms.state import STATES
from simserve.errors import CalibrationError, did_you_mean
from simserve.input_files import ANSWER_BYTES, parse_json, read_file

SCHEMA = "simserve.calibration/1"

NO_CALIBRATION = "none"
"""Name of the plain roofline, in place of a file."""

DEFAULT_GPU, DEFAULT_ENGINE = "h100-sxm", "vllm"
"""The calibration with the most operations."""

FAR = 100.0
"""Coefficients of no kernel are so many times outside of the bounds of the fits."""

FORMS: Mapping[str, type[Form]] = {
    "gemm": Gemm,
    "prefill_attention": PrefillAttention,
    "decode_attention": DecodeAttention,
    **COLLECTIVES,
    "moe": MoeLayer,
    **LATENT,
    **SPARSE,
    **STATES,
}
"""The form of each operation."""


@dataclass(frozen=True)
class ResidualSpread:
    """Residuals on held-out rows, as ratios predicted / measured."""

    mape_frac: float
    bias_frac: float
    p05: float
    p95: float


@dataclass(frozen=True)
class ServingRuns:
    """The serving runs that factors on the kernels of another card were fitted to, and the errors left out."""

    n_rows: int
    kernels_of: str
    """The calibration with the timed kernels."""
    fitted: Mapping[str, float]
    """Factors by name: matrices, attention, collectives, launches."""
    errors: Mapping[str, float]
    """Mean absolute error of tpot_s and ttft_s over runs that were left out of the fit."""
    spreads: Mapping[str, float]
    """Root mean square of the log ratios of these runs."""
    models: tuple[str, ...]
    """Models of the runs."""


@dataclass(frozen=True)
class Calibration:
    """Forms by operation and dtype (by number of GPUs for collectives); coefficients are shares and seconds."""

    gpu: str
    engine: str
    engine_version: str
    """The engine version with the timed kernels."""
    forms: Mapping[tuple[str, str], Form]
    spreads: Mapping[tuple[str, str], ResidualSpread]
    host: Mapping[str, float]
    """Fitted constants of the engine's host side, by their names in the catalog."""
    sha256: str
    """SHA-256 of the file."""
    host_version: str | None = None
    """Version of the servers that these constants were fitted to; None: the catalog's first."""
    runs: ServingRuns | None = None
    """None: kernels were timed on the card."""
    launches: Mapping[str, float] = field(default_factory=dict)
    """Factors on the launches that were timed, by version of the engine."""

    def of_version(self, version: str) -> "Calibration":
        """Return the calibration with the launches of a version."""
        factor = launch_factor(self.launches, version)
        return self if factor == 1 else replace(self, forms={k: f.slowed(1.0, factor) for k, f in self.forms.items()})

    def form(self, op: str, dtype: str, *others: str) -> Form:
        """Return the form of an operation for the first of these dtypes that was measured. Raises CalibrationError."""
        for each in (dtype, *others):
            if (form := self.forms.get((op, each))) is not None:
                return form
        known = ", ".join(sorted(key for name, key in self.forms if name == op)) or "nothing"
        rule = f"calibration {self.gpu}/{self.engine}: {op} was not measured for {dtype}, only for {known}"
        raise CalibrationError(f"{rule}; use one of these, or calibration: none")


def launch_factor(by_version: Mapping[str, float], version: str) -> float:
    """Return the factor of the newest listed version that is not newer, or of the oldest where all are; of the newest
    for a version without a patch release. 1 without any."""
    wanted = release(version)
    older = [each for each in by_version if release(each) <= wanted or len(wanted) < 3]
    return by_version[max(older, key=release) if older else min(by_version, key=release)] if by_version else 1.0


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: 0.5.12.post1 is (0, 5, 12)."""
    return tuple(int(each) for each in re.findall(r"\d+", version)[:3])


def nearest(gpu: str, engine: str, donor: str | None, *, own: bool = True) -> str:
    """Name the shipped calibration that is closest to a GPU under an engine: its own, else that of the same kernels on
    the GPU it resembles, else on the default one. Without `own`, those that other GPUs were fitted to."""
    names = shipped_names()
    donors = [each for each in (gpu if own else None, donor, DEFAULT_GPU) if each is not None]
    wanted = [f"{each}/{name}" for each in donors for name in (engine, DEFAULT_ENGINE)]
    return next((name for name in wanted if name in names), NO_CALIBRATION)


def calibration_path(name: str) -> Path:
    """Return the path of a shipped calibration, or of any file."""
    own = _folder() / f"{name}.json"
    return own if own.is_file() else Path(name)


def shipped_names() -> list[str]:
    """List the shipped calibrations as `<gpu>/<engine>`."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in _folder().glob("*/*.json"))


@cache
def _folder() -> Path:
    """Return the folder inside the installed package, or at the top of a checkout."""
    installed = Path(__file__).resolve().parents[1] / "calibration"
    return installed if installed.is_dir() else Path(__file__).resolve().parents[2] / "calibration"


def host_constants(calibration: Calibration, engine: str) -> Mapping[str, float]:
    """Return fitted host constants: the file's own, else those of the engine on the default GPU."""
    path = calibration_path(f"{DEFAULT_GPU}/{engine}")
    if calibration.host or not path.is_file():
        return calibration.host
    return read_calibration(path).host


def read_calibration(path: Path) -> Calibration:
    """Read the current content of a calibration file. Raises CalibrationError."""
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        known = ", ".join(shipped_names())
        raise CalibrationError(f"{path}: no such calibration; there are {known}; or leave it out") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        rule = f"must be a calibration as JSON ({getattr(error, 'strerror', None) or error})"
        raise CalibrationError(f"{path}: {rule}; run simserve calibrate") from None


@cache
def _parsed(path: Path, _changed_at_ns: int) -> Calibration:
    raw = read_file(path, ANSWER_BYTES)
    try:
        data = parse_json(raw)
    except ValueError as error:
        raise CalibrationError(f"{path}: must be a calibration as JSON ({error}); run simserve calibrate") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise CalibrationError(f"{path}: must have schema {SCHEMA}, got {schema}; run simserve calibrate again")
    try:
        launches = data.get("launches", {}).items()
        kernels = {(row["op"], row["dtype"]): row for row in data["kernels"]}
        if not all(isinstance(text, str) for key in kernels for text in key):
            raise TypeError("op and dtype must be text")
        return Calibration(
            gpu=str(data["gpu"]),
            engine=str(data["engine"]),
            engine_version=str(data["engine_version"]),
            forms={key: _form(path, key[0], row["coefficients"]) for key, row in kernels.items() if key[0] in FORMS},
            spreads={
                key: ResidualSpread(**{each.name: float(row["held_out"][each.name]) for each in fields(ResidualSpread)})
                for key, row in kernels.items()
            },
            host={name: _host(path, name, float(each["value"])) for name, each in data.get("host", {}).items()},
            sha256=hashlib.sha256(raw).hexdigest(),
            host_version=None if data.get("host_version") is None else str(data["host_version"]),
            runs=None if data.get("runs") is None else _runs(data["runs"]),
            launches={name: _within(path, f"launches.{name}", float(each), 1 / FAR, FAR) for name, each in launches},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CalibrationError(
            f"{path}: is not a whole calibration ({type(error).__name__}: {error}); run simserve calibrate again"
        ) from None


def _form(path: Path, op: str, coefficients: Mapping[str, Any]) -> Form:
    form = FORMS[op]
    known = {field.name for field in fields(form)}
    needed = {field.name for field in fields(form) if field.default is MISSING}
    if not needed <= coefficients.keys() <= known:
        wrong = sorted(needed - coefficients.keys() | coefficients.keys() - known)
        raise CalibrationError(f"{path}: {op} must have the coefficients of this version, differs in {wrong}")
    values = {name: float(value) for name, value in coefficients.items()}
    for name, (_, low, high) in form.BOUNDS.items():
        if low < high and name in values:  # equal ones are a choice, not fitted
            _within(path, f"{op}.{name}", values[name], low / FAR, high * FAR)
    if not all(isfinite(value) and value >= 0 for value in values.values()):
        raise ValueError(f"coefficients of {op} must be finite and not negative")
    return form(**values)


def _host(path: Path, name: str, value: float) -> float:
    """Return a constant of the host: seconds, or a share of speed or of waiting. Raises CalibrationError."""
    known = [each for each in CONSTANTS if each.endswith(("_s", "_frac"))]
    if name not in known:
        raise CalibrationError(f"{path}: host.{name}: no such constant of a host; {did_you_mean(name, known)}")
    share = (0.0, FAR) if name == "wait_frac" else (1 / FAR, 1.0)
    return _within(path, f"host.{name}", value, *(share if name.endswith("_frac") else (0.0, MOST_HOST_S)))


def _within(path: Path, name: str, value: float, least: float, most: float) -> float:
    """Return the value. Raises CalibrationError where it is outside of its limits."""
    if not least <= value <= most:
        rule = f"{name} must be between {least:g} and {most:g}, got {value:g}"
        raise CalibrationError(f"{path}: {rule}; run simserve calibrate again")
    return value


def _runs(data: Mapping[str, Any]) -> ServingRuns:
    errors = data["left_out"]["errors"]
    return ServingRuns(
        n_rows=int(data["n_rows"]),
        kernels_of=str(data["kernels_of"]["name"]),
        fitted={name: float(each["value"]) for name, each in data["fitted"].items()},
        errors={name: float(each["fitted_frac"]) for name, each in errors.items()},
        spreads={name: float(each["spread"]) for name, each in errors.items()},
        models=tuple(map(str, data["models"])),
    )
