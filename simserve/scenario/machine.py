"""Machine: the model, GPU and engine of a pool; the calibration section: the file behind its costs, and its rules."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from simserve import catalog
from simserve.catalog.dtypes import COMPUTES_IN, NEEDS_RATE
from simserve.catalog.engine_spec import Engine, EngineSpec
from simserve.catalog.specs import GpuSpec, ModelSpec
from simserve.catalog.types import Section
from simserve.cost.calibration import (
    NO_CALIBRATION,
    Calibration,
    calibration_path,
    host_constants,
    nearest,
    read_calibration,
    shipped_names,
)
from simserve.errors import CalibrationError
from simserve.plugins.validation import ValueProblem
from simserve.scenario.draft import Draft

ROOFLINE_KEYS = ("compute_efficiency", "memory_efficiency", "launch_s")
"""Constants of the plain roofline; an engine section that sets one selects the roofline."""


class CalibrationFile(Section):
    """Fitted kernel costs: the path of a file, the name `<gpu>/<engine>` of a shipped one, or `none`."""

    file: str
    """Path of a file, the name `<gpu>/<engine>` of a shipped one, or `none` for a plain roofline."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the file: a resolved scenario keeps its costs, or reports that the file has changed; null: not
    checked."""


@dataclass(frozen=True)
class Machine:
    """Model, GPU and engine of a pool."""

    model: ModelSpec
    gpu: GpuSpec
    engine: EngineSpec


def engine_of(engine: Engine, calibration: Calibration | None = None, n_gpus: int | None = None) -> EngineSpec:
    """Return the catalog's engine with its fitted constants, on `n_gpus` a replica, and those of the scenario."""
    fitted = None if calibration is None else host_constants(calibration, engine.name)
    # A fit of one's own is of servers like these, and comes before what the catalog says of one GPU.
    is_own = calibration is not None and fitted != host_constants(replace(calibration, host={}), engine.name)
    fit: dict[str, Any] = {"fitted": fitted, "fitted_version": calibration and calibration.host_version}
    fit["n_gpus"] = None if is_own else n_gpus
    return catalog.load_engine(engine.name, version=engine.version, **fit, **engine.constants)


def with_version(draft: Draft, engine: Engine) -> Engine:
    """Return an engine with its version, so that a later default does not change what a stored scenario means."""
    if engine.version is not None or engine.name not in catalog.names("engines"):
        return engine
    draft.set_origin(("version",), f"default of engine {engine.name}")
    return engine.model_copy(update={"version": catalog.default_version(engine.name)})


def check_rate(draft: Draft, dtype: str, gpu: GpuSpec) -> None:
    """Report a dtype of weights and activations that the card's tensor cores do not multiply."""
    if dtype in NEEDS_RATE and not gpu.multiplies(dtype) and not draft.touched():
        rule = f"computes in {COMPUTES_IN[dtype]}, for which {gpu.name} has no rate by its data sheet"
        remedy = f"use {NEEDS_RATE[dtype]}, which is weight-only, or another gpu"
        draft.problem((), rule, dtype, remedy)


def calibration_of(named: CalibrationFile | None) -> Calibration | None:
    """Return the calibration that a resolved pool names. Raises CalibrationError."""
    return None if named is None or named.file == NO_CALIBRATION else read_calibration(calibration_path(named.file))


def resolve_calibration(
    draft: Draft, given: CalibrationFile | None, section: Engine, runs: tuple[GpuSpec | None, EngineSpec | None]
) -> CalibrationFile | None:
    """Return the user's calibration, the shipped one, or the nearest one, scaled, with its SHA-256; report one that
    cannot be used."""
    gpu, engine = runs
    if gpu is None or engine is None:
        return given
    if given is None:
        is_roofline = engine.name == "ideal" or any(key in section.constants for key in ROOFLINE_KEYS)
        name = NO_CALIBRATION if is_roofline else nearest(gpu.name, engine.name, gpu.kernels_like)
        draft.set_origin(("file",), _origin(name, gpu, engine))
    else:
        is_name = given.file in (NO_CALIBRATION, *shipped_names())
        name = given.file if is_name else draft.absolute(given.file)
    if name == NO_CALIBRATION:
        return CalibrationFile(file=name)
    try:
        calibration = read_calibration(calibration_path(name))
    except CalibrationError as error:
        draft.problems.add(ValueProblem(draft.at, str(error)))
        return given
    if given is not None:
        _check_file(draft, (given, calibration), gpu, engine)
    draft.set_origin(("sha256",), "the file")
    return CalibrationFile(file=name, sha256=calibration.sha256)


def _origin(name: str, gpu: GpuSpec, engine: EngineSpec) -> str:
    if name == NO_CALIBRATION:
        return "plain roofline selected"
    return "shipped" if name == f"{gpu.name}/{engine.name}" else f"scaled to {gpu.name}, which has none of its own"


def _check_file(draft: Draft, files: tuple[CalibrationFile, Calibration], gpu: GpuSpec, engine: EngineSpec) -> None:
    """Check that a given file has the expected SHA-256, GPU and engine."""
    given, calibration = files
    if given.sha256 is not None and given.sha256 != calibration.sha256:
        rule = f"{given.file} has changed since the scenario was resolved"
        draft.problem(("sha256",), rule, given.sha256, "leave sha256 out to use it as it is now")
    near = (nearest(gpu.name, engine.name, gpu.kernels_like, own=own) for own in (True, False))
    is_shipped_scaled = given.sha256 is not None and given.file in near
    if calibration.gpu != gpu.name and not is_shipped_scaled:
        rule = f"must be of {gpu.name}"
        draft.problem(("file",), rule, f"one of {calibration.gpu}", "leave it out to scale the nearest one")
