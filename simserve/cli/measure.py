"""`simserve lab measure`: time the kernels of the card at hand."""

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.cli import terminal

if TYPE_CHECKING:
    from simserve.lab.kernels.measure import Measurement

COMPLETE, NOT_COMPLETE = 0, 1


def measure_card(
    gpu: Annotated[str, typer.Argument(help="GPU in the catalog that the card at hand is.", show_default=False)],
    table: Annotated[Path, typer.Argument(metavar="TABLE.csv", help="Table to write.", show_default=False)],
    models: Annotated[
        str, typer.Option("--models", metavar="MODEL,...", help="Models with layers that are timed too.")
    ] = "",
    minutes: Annotated[float, typer.Option("--minutes", min=0.0, help="Time limit.")] = 60.0,
) -> None:
    """Time the kernels of the card at hand, with PyTorch, for `calibrate --from`. Exit code 1: the time was up."""
    from simserve import catalog
    from simserve.lab.kernels.measure import check_card, measure, partial_path
    from simserve.lab.kernels.shapes import MODELS, shapes_to_time
    from simserve.lab.kernels.torch_device import open_device

    if table.suffix != ".csv":
        raise typer.BadParameter(f"must be a table .csv, got {table}; rename it", param_hint="TABLE.csv")
    names = dict.fromkeys([*MODELS, *(name.strip() for name in models.split(",") if name.strip())])
    specs = [catalog.load_model(name) for name in names]
    card = catalog.load_gpu(gpu)
    with closing(open_device(card.l2_bytes)) as device, terminal.progress_bar() as bar:
        check_card(device, card)
        shapes = shapes_to_time(specs, card, device.dtypes, device.n_gpus)
        started_s, first = time.monotonic(), [-1]

        def show(result: "Measurement") -> None:
            first[0] = result.n_ended - 1 if first[0] < 0 else first[0]
            each_s = (time.monotonic() - started_s) / (result.n_ended - first[0])
            left_s = each_s * (result.n_shapes - result.n_ended)
            bar.show(f"{result.n_ended:,} of {result.n_shapes:,} shapes timed, {left_s / 60:.0f} min left")

        try:
            result = measure(shapes, device, table, minutes * 60, show)
        except KeyboardInterrupt:
            terminal.message(f"{partial_path(table)} has what was timed; run the same command again to go on")
            raise
    _report(result, card.name, table, partial_path(table))
    if not result.is_complete:
        raise typer.Exit(NOT_COMPLETE)


def _report(result: "Measurement", gpu: str, table: Path, partial: Path) -> None:
    """Print what was timed, what could not be, and the next command."""
    from simserve.lab.kernels.measure import UNSTEADY_FRAC

    timed = f"{result.n_done:,} of {result.n_shapes:,} shapes timed"
    if result.is_complete:
        terminal.result(f"{timed}. Fit them: simserve calibrate {gpu} --from {table} --out mine")
        terminal.message(f"wrote {table}")
    else:
        terminal.result(f"{timed}: time is up. Run the same command again to go on, or give more --minutes.")
        terminal.message(f"wrote {partial}, which is not complete")
    terminal.warnings(f"{op}: {n:,} shapes left out: {reason}" for (op, reason), n in result.not_timed.items())
    if result.n_unsteady:
        rule = f"{result.n_unsteady:,} medians are uncertain by more than {UNSTEADY_FRAC:.0%}"
        terminal.warnings([f"{rule}: stop other work on the card, and lock its clocks (nvidia-smi --lock-gpu-clocks)"])
