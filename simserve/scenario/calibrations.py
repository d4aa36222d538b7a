"""Resolve the calibration behind a pool's costs: the user's, the shipped one, or the nearest one, scaled."""

from simserve.catalog.engine_spec import Engine, EngineSpec
from simserve.catalog.specs import GpuSpec
from simserve.cost.calibration import (
    NO_CALIBRATION,
    Calibration,
    calibration_path,
    nearest,
    read_calibration,
    shipped_names,
)
from simserve.errors import CalibrationError
from simserve.plugins.validation import Path, ValueProblem
from simserve.scenario.draft import Draft, PoolDraft
from simserve.scenario.machine import calibration_of, step_cost_of
from simserve.scenario.servers import CalibrationFile, Pool

DTYPES: tuple[Path, ...] = (("weight_dtype",), ("kv_dtype",))

ROOFLINE_KEYS = ("compute_efficiency", "memory_efficiency", "launch_s")
"""Constants of the plain roofline; an engine section that sets one selects the roofline."""


def resolve_calibration(draft: Draft, pool: Pool, at: Path, runs: tuple[GpuSpec | None, EngineSpec | None]) -> Pool:
    """Return the pool with its calibration and SHA-256 filled in; report one that cannot be used."""
    gpu, engine = runs
    if gpu is None or engine is None:
        return pool
    given = pool.calibration
    name = _default(draft, pool, gpu, engine) if given is None else _given(draft, given.file)
    if given is None:
        draft.origins[*at, "calibration", "file"] = _origin(name, gpu, engine)
    if name == NO_CALIBRATION:
        return pool.model_copy(update={"calibration": CalibrationFile(file=name)})
    here = (*at, "calibration")
    try:
        calibration = read_calibration(calibration_path(name))
    except CalibrationError as error:
        draft.problems.add(ValueProblem(here, str(error)))
        return pool
    if given is not None:
        _check(draft, here, (given, calibration), gpu, engine)
    draft.origins[*here, "sha256"] = "the file"
    return pool.model_copy(update={"calibration": CalibrationFile(file=name, sha256=calibration.sha256)})


def check_timed(draft: PoolDraft) -> None:
    """Report a kernel that the pool's model needs and its calibration lacks."""
    wrong_before = draft.touched("calibration", "parallel", "expert_routing", "weight_dtype")
    if wrong_before or draft.whole.problems.touch(*DTYPES) or calibration_of(draft.pool) is None:
        return
    try:
        step_cost_of(draft.whole.scenario, draft.pool, draft.machine).check()
    except CalibrationError as error:
        draft.whole.problems.add(ValueProblem((*draft.at, "calibration"), str(error)))


def _default(draft: Draft, pool: Pool, gpu: GpuSpec, engine: EngineSpec) -> str:
    section: Engine = pool.engine or draft.scenario.engine
    if engine.name == "ideal" or any(key in section.constants for key in ROOFLINE_KEYS):
        return NO_CALIBRATION
    return nearest(gpu.name, engine.name, gpu.kernels_like)


def _origin(name: str, gpu: GpuSpec, engine: EngineSpec) -> str:
    if name == NO_CALIBRATION:
        return "plain roofline selected"
    return "shipped" if name == f"{gpu.name}/{engine.name}" else f"scaled to {gpu.name}, which has none of its own"


def _given(draft: Draft, written: str) -> str:
    """Return a shipped name as it is, and the path of an existing file made absolute."""
    if written == NO_CALIBRATION or written in shipped_names():
        return written
    file = draft.find_file(written)
    return written if file is None else str(file)


def _check(
    draft: Draft, at: Path, files: tuple[CalibrationFile, Calibration], gpu: GpuSpec, engine: EngineSpec
) -> None:
    """Check that a given file has the expected SHA-256, GPU and engine."""
    given, calibration = files
    if given.sha256 is not None and given.sha256 != calibration.sha256:
        rule = f"{given.file} has changed since the scenario was resolved"
        draft.problem((*at, "sha256"), rule, given.sha256, "leave sha256 out to use it as it is now")
    near = (nearest(gpu.name, engine.name, gpu.kernels_like, own=own) for own in (True, False))
    is_shipped_scaled = given.sha256 is not None and given.file in near
    if calibration.gpu != gpu.name and not is_shipped_scaled:
        rule = f"must be of {gpu.name}"
        draft.problem((*at, "file"), rule, f"one of {calibration.gpu}", "leave it out to scale the nearest one")
