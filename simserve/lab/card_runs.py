"""Runs of servers with one card, from a table of serving runs or of InferenceX's settings, ready to be replayed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simserve.errors import CalibrationError
from simserve.lab.host_fit import TTFT_IS_USABLE
from simserve.lab.serving import CAMPAIGNS, Campaign, ServingRow, read_rows, replay_run
from simserve.lab.settings import Setting, is_table_of_settings, read_settings, replay_setting

MOST_IN_FLIGHT = 300
"""Requests in flight of a setting, at most: servers of more lose time in other places than kernels."""

DISAGGREGATED_REQUESTS = 2
"""Requests per client in replays of disaggregated settings, which take long."""


@dataclass(frozen=True)
class Run:
    """One closed-loop run: what was measured, and how to replay it with a calibration."""

    gpu: str
    model: str
    label: str
    server: str
    """Model, dtype and parallelism."""
    version: str
    lengths: str
    is_disaggregated: bool
    measured_s: Mapping[str, float]
    """tpot_s, and ttft_s where it reflects kernels: without hand-overs, the median where there is one."""
    replay: Callable[[Path], Mapping[str, float]]

    def part(self, keys: Sequence[str]) -> str:
        """Name the part of the runs that this one is left out with."""
        return " ".join(str(getattr(self, key)) for key in keys)


def read_runs(path: Path, gpu: str, engine: str, campaign: str) -> tuple[list[Run], dict[str, int]]:
    """Return the runs of an engine on a card, and how many others there are by reason. Raises CalibrationError."""
    left_out: dict[str, int] = {}
    if is_table_of_settings(path):
        settings, left_out = read_settings(path)
        runs = [_of_setting(each) for each in settings if (each.gpu, each.engine) == (gpu, engine)]
        n_others = len(settings) - len(runs)
        busy = [each for each in settings if (each.gpu, each.engine) == (gpu, engine)]
        kept = [run for run, each in zip(runs, busy, strict=True) if _is_of_kernels(each)]
        left_out[f"more than {MOST_IN_FLIGHT} in flight, or ranks that wait for each other"] = len(runs) - len(kept)
    else:
        rows = read_rows(path)
        points = [replay_run(row, CAMPAIGNS[campaign]) for row in rows if (row.gpu, row.engine) == (gpu, engine)]
        kept = [_of_row(point.row, CAMPAIGNS[campaign]) for point in points if not point.is_limited_by_memory]
        left_out["limited by the KV cache"] = len(points) - len(kept)
        n_others = len(rows) - len(points)
    left_out["of other cards or engines"] = n_others
    if not kept:
        rule = f"must have runs of {engine} on {gpu} that tell the time of kernels"
        raise CalibrationError(f"{path}: {rule}, got none; give runs of this card, or another GPU")
    return kept, {reason: n for reason, n in left_out.items() if n}


def _is_of_kernels(setting: Setting) -> bool:
    return setting.concurrency <= MOST_IN_FLIGHT and all("data" not in side.parallel for side in setting.sides)


def _of_setting(setting: Setting) -> Run:
    is_disaggregated = len(setting.sides) > 1
    n = DISAGGREGATED_REQUESTS if is_disaggregated else CAMPAIGNS["inferencemax"].requests_per_client

    def replay(calibration: Path) -> Mapping[str, float]:
        point = replay_setting(setting, n, calibration)
        if point.predicted_s is None:
            raise CalibrationError(f"{setting.label}: {point.reason}; correct the row or remove it")
        return {"tpot_s": point.predicted_s["tpot"], "ttft_s": point.predicted_s["median_ttft"]}

    measured = {"tpot_s": setting.measured_s["tpot"]}
    if not is_disaggregated and setting.engine in TTFT_IS_USABLE:
        measured["ttft_s"] = setting.measured_s["median_ttft"]
    return Run(
        gpu=setting.gpu,
        model=setting.model,
        label=setting.label,
        server=_server(setting),
        version=setting.version,
        lengths=f"{setting.isl}/{setting.osl}",
        is_disaggregated=is_disaggregated,
        measured_s=measured,
        replay=replay,
    )


def _server(setting: Setting) -> str:
    sides = [f"{side.role} " + " ".join(f"{name} {n}" for name, n in side.parallel.items()) for side in setting.sides]
    mtp = "" if setting.tokens_per_step is None else " MTP"
    return f"{setting.model} {setting.weight_dtype}{mtp}: {', '.join(sides)}"


def _of_row(row: ServingRow, campaign: Campaign) -> Run:
    def replay(calibration: Path) -> Mapping[str, float]:
        point = replay_run(row, campaign, calibration=calibration)
        return {"tpot_s": point.tpot_s, "ttft_s": point.ttft_s}

    measured = {"tpot_s": row.tpot_s}
    if row.engine in TTFT_IS_USABLE:
        measured["ttft_s"] = row.ttft_s
    split = f"tensor {row.tp}" if row.ep == 1 else f"tensor {row.tp} expert {row.ep}"
    return Run(
        gpu=row.gpu,
        model=row.model,
        label=row.label,
        server=f"{row.model} {row.weight_dtype}: {split}",
        version=row.engine_version,
        lengths=f"{row.isl}/{row.osl}",
        is_disaggregated=False,
        measured_s=measured,
        replay=replay,
    )
