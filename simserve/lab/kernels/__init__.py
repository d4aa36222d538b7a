"""Kernels of cards: forms are fitted by least squares of log ratios, so a short kernel counts as much as a long one."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from simserve.cost.forms.base import Coefficient, Form
from simserve.tables.columns import Flags, Floats

F = TypeVar("F", bound=Form)

OUTLIER = 0.1
"""Log ratio beyond which a row has less weight: a tenth, twice the difference of two campaigns of the same kernels."""

DIGITS = 4
"""Significant digits of a coefficient: more than the data determine, few enough to read."""


def fixed(value: float) -> Coefficient:
    """Return the bounds of a coefficient that is not fitted."""
    return Coefficient(value, value, value)


def fit_form(
    form: type[F], seconds: Callable[[F], Any], measured: Floats, bounds: Mapping[str, Coefficient] | None = None
) -> F:
    """Return the coefficients, within the form's own bounds or others, that bring `seconds`, `(n_rows,)`, closest to
    the measured ones. Deterministic."""
    bounds = bounds or form.BOUNDS
    free = [name for name, (_, least, most) in bounds.items() if least < most]
    scale = {name: max(abs(bounds[name][0]), 1e-30) for name in free}
    given = {name: start for name, (start, least, most) in bounds.items() if least == most}

    def at(values: Floats) -> F:
        return form(**given, **{name: float(v) * scale[name] for name, v in zip(free, values, strict=True)})

    def residuals(values: Floats) -> Any:
        return np.log(np.asarray(seconds(at(values)), np.float64) / measured)

    start, least, most = (np.array([bounds[name][i] / scale[name] for name in free]) for i in range(3))
    result = least_squares(residuals, start, bounds=(least, most), loss="soft_l1", f_scale=OUTLIER, x_scale="jac")
    return rounded(at(result.x))


def rounded(form: F) -> F:
    """Round the coefficients to few digits."""
    return type(form)(**{f.name: float(f"{getattr(form, f.name):.{DIGITS}g}") for f in fields(form)})


def held_out(rows: pd.DataFrame, keys: Sequence[str], share: float = 0.3) -> Flags:
    """Mark whole shapes as held out, `(n_rows,)`, by a hash of `keys`, so always the same ones."""
    shapes = _shapes(rows, keys)
    chosen = {shape: _hash_frac(shape) < share for shape in sorted(set(shapes))}
    return shapes.map(chosen).to_numpy(dtype=bool)


def sample(rows: pd.DataFrame, keys: Sequence[str], most: int) -> pd.DataFrame:
    """Return about `most` of the rows at most, chosen by a hash of `keys`, so always the same ones."""
    if len(rows) <= most:
        return rows
    shapes = _shapes(rows, keys)
    return rows[shapes.map(lambda shape: _hash_frac(f"sample/{shape}") < most / len(rows)).to_numpy(dtype=bool)]


def _shapes(rows: pd.DataFrame, keys: Sequence[str]) -> "pd.Series[str]":
    """Name the shape of each row."""
    columns = (rows[key].astype(str) for key in keys)
    return pd.Series(["/".join(each) for each in zip(*columns, strict=True)], index=rows.index, dtype=str)


def _hash_frac(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


@dataclass(frozen=True)
class Residuals:
    """Errors of a form on held-out measurements; ratios are predicted / measured."""

    n_rows: int
    mape_frac: float
    median_ape_frac: float
    bias_frac: float
    """Mean of the signed errors."""
    p05: float
    """5th percentile of the ratios."""
    p95: float

    @classmethod
    def of(cls, predicted: Any, measured: Floats) -> "Residuals":
        """Compare seconds, `(n_rows,)` each."""
        ratio = np.asarray(predicted, np.float64) / measured
        error = np.abs(ratio - 1)
        p05, p95 = np.percentile(ratio, [5, 95])
        numbers = (error.mean(), np.median(error), ratio.mean() - 1, p05, p95)
        return cls(len(ratio), *(round(float(x), 4) for x in numbers))


@dataclass(frozen=True)
class KernelFit:
    """A form with its coefficients, rows and residuals."""

    op: str
    dtype: str
    form: Form
    n_rows: int
    """Rows fitted to."""
    excluded: Mapping[str, int]
    """Excluded rows by reason."""
    residuals: Residuals
    """Residuals on rows held out of the fit."""
