"""Which forms stand in for kernels that were not timed: of a similar dtype, or of the default calibration."""

from collections.abc import Iterable, Mapping

from simserve.catalog.specs import ModelSpec
from simserve.cost.calibration import DEFAULT_ENGINE, DEFAULT_GPU, Calibration, calibration_path, read_calibration
from simserve.cost.forms.base import Form
from simserve.errors import CalibrationError

SIXTEEN_BITS = ("bf16", "fp16")

ALIKE: Mapping[str, tuple[str, ...]] = {
    "fp8_block": ("fp8",),
    "fp8": ("fp8_block",),
    "mxfp4": ("int4",),
    "w8a8": ("fp8", "fp8_block"),
    "nvfp4": ("fp8", "fp8_block"),
}
"""Timed dtypes that one without timings is assumed to resemble: its kernels reach the same shares of its own rate."""


def borrowed(calibration: Calibration, model: ModelSpec) -> list[str]:
    """List the parts of a model that were not timed there, so that the default calibration is used."""
    ops = {op for op, _ in calibration.forms}
    needs = {"experts": {"moe"}} if model.experts else {}
    if model.indexer or any(group.indexer for group in model.groups):
        needs["sparse attention"] = {"sparse_decode_module"}
    elif model.mla:
        needs["latent attention"] = {"mla_decode", "mla_decode_module"}
    if model.has_timed_states:
        needs["layers with a state"] = {"gdn_prefill"}
    return [what for what, any_of in needs.items() if not any_of & ops]


def timed_form(calibration: Calibration, wanted: Mapping[str, Iterable[str]]) -> Form | None:
    """Return the first of the operations and dtypes that was timed, here or in the default calibration; else None."""
    both = calibration, read_calibration(calibration_path(f"{DEFAULT_GPU}/{DEFAULT_ENGINE}"))
    kernels = [(op, key) for op, keys in wanted.items() for key in keys]
    return next((each.forms[kernel] for each in both for kernel in kernels if kernel in each.forms), None)


def first_form(calibration: Calibration, wanted: Mapping[str, Iterable[str]]) -> Form:
    """Return the first of the operations and dtypes that was timed, here or in the default calibration."""
    form = timed_form(calibration, wanted)
    if form is not None:
        return form
    raise CalibrationError(
        f"calibration {calibration.gpu}/{calibration.engine}: {' or '.join(wanted)} was not measured"
    )


def measured_as(dtype: str) -> tuple[str, ...]:
    """List the dtypes to look for: its own, else a similar one; weight-only dtypes multiply in 16 bits."""
    return tuple(dict.fromkeys((dtype, *ALIKE.get(dtype, ()), *SIXTEEN_BITS)))
