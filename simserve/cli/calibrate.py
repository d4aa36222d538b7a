"""`simserve calibrate`: fit the costs of kernels to measurements."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from simserve.calibrate.fit import Fit

FOLDER = Path("calibration")


def calibrate(
    gpu: Annotated[str, typer.Argument(metavar="GPU", help="A GPU of the catalog: h100-sxm.", show_default=False)],
    engine: Annotated[str, typer.Option("--engine", help="Whose kernels: vllm, sglang, trtllm.")] = "vllm",
    table: Annotated[
        Path | None,
        typer.Option("--from", metavar="TABLE", help="Your own timings, .csv or .parquet (docs/calibration.md)."),
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option("--engine-version", help="With --from: the version that was timed.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Writes DIR/GPU/ENGINE.json.")] = FOLDER,
) -> None:
    """Fit a GPU's kernels to timings: those of the package aiconfigurator-core, or your own table."""
    from simserve import catalog
    from simserve.calibrate.write import calibrate as fit_all
    from simserve.calibrate.write import calibration_data, write_calibration
    from simserve.cli import terminal

    card = catalog.load_gpu(gpu)
    name = catalog.load_engine(engine).name
    timings, version, made = _timings(gpu, name, table, engine_version)
    fits = fit_all(timings, card)
    path = out / gpu / f"{name}.json"
    changed = write_calibration(path, calibration_data(gpu, name, version, fits, made), today=date.today().isoformat())
    terminal.result(terminal.table(_lines(fits)))
    terminal.message(f"{'wrote' if changed else 'unchanged:'} {path}")
    terminal.warnings(
        f"{fit.op} {fit.dtype}: {n} rows left out: {reason}"
        for fit in fits
        for reason, n in fit.excluded.items()
        if n and reason.startswith("faster")
    )


def _timings(gpu: str, engine: str, table: Path | None, engine_version: str | None) -> tuple[Any, str, dict[str, Any]]:
    """The timings, the version of the engine, and where they come from."""
    from dataclasses import asdict
    from hashlib import sha256

    from simserve.calibrate.package import PACKAGE, package_version, read_package
    from simserve.calibrate.table import read_timings

    if table is not None:
        source = {"file": table.name, "sha256": sha256(table.read_bytes()).hexdigest()} if table.is_file() else {}
        timings = read_timings(table)
        return timings, engine_version or "unknown", {"from": [source | {"n_rows": len(timings)}]}
    timings, sources, version = read_package(gpu, engine)
    made = {"package": PACKAGE, "package_version": package_version(), "from": [asdict(each) for each in sources]}
    return timings, version, made


def _lines(fits: "list[Fit]") -> list[tuple[str, ...]]:
    """A line a fit: rows, and how far off on those held out."""
    head: tuple[str, ...] = ("operation", "dtype", "rows", "left out", "held out", "mean error", "median", "bias")
    rows: list[tuple[str, ...]] = [
        (
            fit.op,
            fit.dtype,
            f"{fit.n_rows:,}",
            f"{sum(fit.excluded.values()):,}",
            f"{fit.residuals.n_rows:,}",
            f"{fit.residuals.mape_frac:.1%}",
            f"{fit.residuals.median_ape_frac:.1%}",
            f"{fit.residuals.bias_frac:+.1%}",
        )
        for fit in fits
    ]
    return [head, *rows]
