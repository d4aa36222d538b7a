"""Folder: the result folder of each command. A result is written beside its place and swapped in whole; the earlier one
stays until then."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from simserve.errors import OutputError
from simserve.input_files import open_file
from simserve.interruptions import uninterrupted
from simserve.tables.schema import MORE_TABLES, TABLES
from simserve.tables.swap import new_folders, partial_folder, recover, swap, unwritable


@dataclass(frozen=True)
class Kind:
    """Contents of a command's result folder."""

    name: str
    """Name of the command."""
    files: frozenset[str]
    """All files that it may hold."""
    required_files: frozenset[str]
    """Files that it always holds; a folder without them is not a result."""
    option: str = "--out"
    """Option that names the folder."""
    journal: str | None = None
    """Name of the file of finished runs, which the folder of an unfinished study holds alone."""


RUN = Kind(
    "run",
    frozenset({f"{name}.parquet" for name in TABLES | MORE_TABLES})
    | {"summary.json", "vllm_bench.json", "scenario.yaml", "report.html"},
    frozenset({"requests.parquet", "summary.json"}),
)


def _study(name: str, answer: str, *more: str, journal: str | None = None) -> Kind:
    """Return the kind of a study: its answer as JSON, a page, and the journal of one that can go on."""
    kept = (journal,) if journal is not None else ()
    return Kind(name, frozenset({answer, "report.html", *more, *kept}), frozenset({answer}), journal=journal)


CAPACITY = _study("capacity", "capacity.json", "capacity.parquet", "scenario.yaml")
CHECK = _study("check", "check.json")
COMPARISON = _study("compare", "comparison.json")
PLAN = _study("plan", "plan.json", "plan.parquet", "plan.xlsx", "scenario.yaml")
SWEEP = Kind(
    "sweep",
    frozenset({"sweep.jsonl", "sweep.json", "sweep.parquet", "report.html"}),
    frozenset({"sweep.json", "sweep.parquet"}),
    journal="sweep.jsonl",
)
TWIN = _study("twin", "twin.json", "twin.parquet", "scenario.yaml", "load.csv")
"""Beside them the folder of the GPU, with the fitted calibration."""
TUNE = _study("tune", "tune.json", "tune.parquet", "scenario.yaml", journal="tune.jsonl")
MANIFEST = "manifest.yaml"
AUTOSCALE = _study("autoscale", "autoscale.json", "autoscale.parquet", MANIFEST, journal="autoscale.jsonl")
RESILIENCE = _study("resilience", "resilience.json", "resilience.parquet", journal="resilience.jsonl")

KINDS = (RUN, CAPACITY, CHECK, COMPARISON, PLAN, SWEEP, TWIN, TUNE, AUTOSCALE, RESILIENCE)

_SHEETS = (
    *("summary", "percentiles", "time_series", "capacity_curve", "comparison", "fleet_options"),
    *("simulated_fleets", "cost", "growth"),
)
EXPORT = Kind("export", frozenset(f"{name}.csv" for name in _SHEETS), frozenset({"summary.csv"}), "--csv")
"""Results as CSV files; simserve never reads them."""

OLDER = b'{"answer":"older than the runs below"}\n'
"""Line of a journal: the answer in its folder was made before the runs that follow."""


@contextmanager
def result_folder(directory: Path, kind: Kind = RUN) -> Iterator[Path]:
    """Yield an empty folder to fill; if the block succeeds, it replaces `directory`, otherwise it is removed. Raises
    OutputError if `directory` holds anything but an earlier result of the same kind, or cannot be written."""
    check_folder(directory, kind)
    place = Path(os.path.realpath(directory))  # Path.resolve raises for cyclic links
    with _plain_error(directory, kind), new_folders(place.parent), partial_folder(place) as partial:
        if partial is None:
            rule = "another command is writing there now"
            raise OutputError(f"{directory}: {rule}; wait for it, or choose another {kind.option}")
        yield partial
        with uninterrupted():
            if kind.journal is not None and (place / kind.journal).exists():
                kept = (place / kind.journal).read_bytes().replace(OLDER, b"")  # the answer is newer now
                (partial / kind.journal).write_bytes(kept)
            swap(partial, place)


def check_folder(directory: Path, kind: Kind = RUN) -> None:
    """Raise OutputError unless `directory` can be made, is empty, or holds only an earlier result."""
    with _plain_error(directory, kind):
        recover(Path(os.path.realpath(directory)))
        if not directory.exists():
            parent = next(parent for parent in directory.absolute().parents if parent.exists())
            if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
                reason = errno.EACCES if parent.is_dir() else errno.ENOTDIR
                raise OSError(reason, os.strerror(reason))
            return
        if not directory.is_dir():
            raise OutputError(f"{directory}: must be a folder, got a file; choose another {kind.option}")
        unfinished = (directory.glob(f".{name}.*.partial") for name in kind.files)  # `replace_file` was killed
        names = {entry.name for entry in directory.iterdir()} - {file.name for files in unfinished for file in files}
    strangers = sorted(names - kind.files)
    if strangers:
        others = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        raise OutputError(
            f"{directory}: must be empty or hold only an earlier result, got {strangers[0]}{others}; "
            f"choose another {kind.option}"
        )
    if names and kind.journal not in names and not names >= kind.required_files:
        raise OutputError(
            f"{directory}: must be empty or hold an earlier result, got {', '.join(sorted(names))} "
            f"without {' and '.join(sorted(kind.required_files - names))}; choose another {kind.option}"
        )


def kind_of(directory: Path) -> Kind:
    """Return the kind of a result folder. Raises OutputError for a folder without a complete result."""
    if not directory.is_dir():
        raise OutputError(f"{directory}: no such folder; name one that simserve wrote")
    names = {entry.name for entry in directory.iterdir()}
    for kind in KINDS:
        if names >= kind.required_files:
            return kind
    required_files = ", or ".join(" and ".join(sorted(kind.required_files)) for kind in KINDS)
    raise OutputError(
        f"{directory}: must hold {required_files}, got {', '.join(sorted(names)) or 'nothing'}; name a result"
    )


def check_run(directory: Path) -> None:
    """Raise OutputError for no folder, and for the folder of a study, which is no run and has its own page."""
    if not directory.is_dir():
        raise OutputError(f"{directory}: no such folder; name what `simserve run` wrote")
    names = {entry.name for entry in directory.iterdir()}
    for kind in KINDS:
        if kind is not RUN and (names >= kind.required_files or kind.journal in names):
            got = f"got that of `simserve {kind.name}`, which writes its own report.html"
            raise OutputError(f"{directory}: must be the folder of a run, {got}; name what `simserve run` wrote")


def is_older_answer(directory: Path, kind: Kind) -> bool:
    """Return whether the journal has runs that are newer than the answer beside it."""
    if kind.journal is None or not (directory / kind.journal).exists():
        return False
    with open_file(directory / kind.journal) as file:
        return OLDER in file  # by lines


def check_workbook_file(path: Path) -> None:
    """Raise OutputError if no program would open the file, or if it would lie inside a result."""
    if path.suffix != ".xlsx":
        raise OutputError(f"{path}: must end in .xlsx, got {path.name}; spreadsheet programs require it")
    if path.is_dir():
        raise OutputError(f"{path}: must be a file, got a folder; choose another --xlsx")
    if not path.parent.is_dir():
        raise OutputError(
            f"{path}: must be in a folder, got no folder {path.parent}; make it, or choose another --xlsx"
        )
    names = {entry.name for entry in path.parent.iterdir()}
    kind = next((one for one in KINDS if one.required_files <= names <= one.files and path.name not in one.files), None)
    if kind is not None:  # the command would refuse to write there again
        rule = f"must not lie among the files of simserve {kind.name}, got {path.parent}"
        raise OutputError(f"{path}: {rule}; choose another --xlsx")


@contextmanager
def _plain_error(directory: Path, kind: Kind) -> Iterator[None]:
    """Turn an error of the operating system into a message with a remedy."""
    try:
        yield
    except OSError as error:
        nothing = "(nothing was written; an earlier result is unchanged)"
        raise unwritable(directory, error, f"free space there or choose another {kind.option} {nothing}") from error
