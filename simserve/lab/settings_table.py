"""Tables of settings of InferenceX, and exports of its page."""

import csv
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from io import StringIO
from pathlib import Path

from simserve import catalog
from simserve.catalog.hub import known_model
from simserve.cost.calibration import release
from simserve.errors import CalibrationError
from simserve.input_files import ANSWER_BYTES, read_file
from simserve.lab.campaigns import of_server
from simserve.lab.inferencex import CAMPAIGN, TRAY, Setting, Side, tokens_per_step

MARK = "decode_dp_attention"
"""A column that only tables of settings have."""

EXPORT_MARK = "Hardware Key"
"""A column that only exports of InferenceX's page have."""

MODELS = {"dsr1": "deepseek-v3", "gptoss": "gpt-oss-120b"}
"""Their names of models, and ours; DeepSeek-R1 is a DeepSeek-V3."""

ENGINES = {"sglang": "sglang", "trt": "trtllm", "vllm": "vllm"}
"""Their names of engines, and ours."""

EXPORTED = {"framework": "Framework", "model": "Model", "precision": "Precision", "spec": "Spec Decoding"}
EXPORTED |= {"hardware": "Hardware", "disagg": "Disaggregated", "decode_dp_attention": "DP Attention"}
EXPORTED |= {"decode_tp": "TP", "decode_ep": "EP", "isl": "ISL", "osl": "OSL", "concurrency": "Concurrency"}
"""Columns of settings, and what exports of InferenceX's page call them."""

EXPORTED_S = {"mean_tpot_s": "Mean TPOT (ms)", "mean_itl_s": "Mean ITL (ms)", "mean_ttft_s": "Mean TTFT (ms)"}
EXPORTED_S |= {"median_ttft_s": "Median TTFT (ms)", "mean_e2el_s": "Mean E2E Latency (ms)"}
"""Columns of times, TPOT first, and what exports call them; those of June 2026 hold seconds."""

ITL = "mean_itl_s"
"""The time between messages, which only settings with multi-token prediction need."""

INTERACTIVITY = "Mean Interactivity (tok/s/user)"
"""Tokens a second of a client, about 1 over TPOT: it tells the unit of times."""

WORDS = {"true": "True", "false": "False"}


def is_table_of_settings(path: Path) -> bool:
    """Tell whether a file is a CSV of settings, or an export of them."""
    return MARK in _header(path) or is_export(path)


def is_export(path: Path) -> bool:
    """Tell whether a file is a CSV that InferenceX's page exports."""
    return EXPORT_MARK in _header(path)


def no_versions(path: Path, settings: Sequence[Setting]) -> str:
    """Return what is assumed of servers without a version, to end a sentence."""
    n = sum(not setting.version for setting in settings)
    reason = "as an export names none" if is_export(path) else f"as the images of {n} of {len(settings)} name none"
    return f"; the catalog's default versions, {reason}" if n else ""


def _header(path: Path) -> list[str]:
    try:
        return read_file(path, ANSWER_BYTES).split(b"\n", 1)[0].decode("utf-8", "replace").strip().split(",")
    except OSError:
        return []


def _row_of_export(row: Mapping[str, str]) -> Mapping[str, str]:
    """Return a row of an export under the names of settings; without workers where they are disaggregated, as exports
    do not tell. Raises KeyError for a missing column, ValueError for a time that is no number."""
    times = {ours: float(row[theirs]) for ours, theirs in EXPORTED_S.items()}
    scale = 1.0 if next(iter(times.values())) * float(row[INTERACTIVITY]) < 30 else 1e-3
    named = {ours: WORDS.get(row[theirs], row[theirs]) for ours, theirs in EXPORTED.items()}
    return named | {"image": "", "decode_workers": "1"} | {ours: str(scale * time) for ours, time in times.items()}


class _LeftOut(Exception):
    """A row that is a setting, but that cannot be replayed."""


def read_settings(path: Path) -> tuple[list[Setting], dict[str, int]]:
    """Read settings, and count by reason those left out. Raises CalibrationError."""
    rows = list(csv.DictReader(StringIO(read_file(path, ANSWER_BYTES).decode("utf-8", "replace"), newline="")))
    settings: list[Setting] = []
    left_out: Counter[str] = Counter()
    for line, row in enumerate(rows, 2):
        try:
            settings.append(_setting(path, line, row))
        except _LeftOut as reason:
            left_out[str(reason)] += 1
    if not settings:
        got = "; ".join(f"{n} left out: {reason}" for reason, n in left_out.items()) or "none"
        raise CalibrationError(f"{path}: must contain settings that can be simulated, got {got}; give others")
    return settings, dict(left_out)


def _setting(path: Path, line: int, row: Mapping[str, str]) -> Setting:
    try:
        row = _row_of_export(row) if EXPORT_MARK in row else row
        names = ("prefill", "decode") if row["disagg"] == "True" else ("decode",)
        if f"{names[0]}_workers" not in row:
            raise _LeftOut("exports do not say how many workers share the GPUs of prefill and of decode")
        framework, model, hardware, fp4 = row["framework"], row["model"], row["hardware"], row["precision"] == "fp4"
        engine = _known([each for each in ENGINES if each in framework], f"the engine {framework}")
        ours = MODELS.get(model) or getattr(known_model(model), "name", None)
        model = _known([ours] if ours else [], f"the model {model}")
        gpus = {hardware, f"{hardware}-sxm"} & set(catalog.names("gpus"))
        gpu = _known(gpus, f"the GPU {hardware}")
        is_whole = names[0] == "prefill" and not _count(row, "decode_workers")
        sides = _sides_of_all(row) if is_whole else tuple(_side(row, name, hardware, len(names) == 1) for name in names)
        numbers = re.search(r":v?(\d\d?\.\d+\.\d+)", row["image"])
        version = "" if numbers is None or "dynamo" in row["image"] else numbers[1]  # Dynamo's runtimes have their own
        isl, osl, concurrency = (int(row[name]) for name in ("isl", "osl", "concurrency"))
        tpot_s, ttft_s, median_s, e2e_s = (float(row[name]) for name in EXPORTED_S if name != ITL)
        has_mtp = row["spec"] == "mtp"
        keeps_16_bits = engine == "sglang" and _keeps_16_bits(gpu, version)
        return Setting(
            gpu=gpu,
            engine=ENGINES[engine],
            version=version,
            model=model,
            weight_dtype="mxfp4" if model == "gpt-oss-120b" else "nvfp4" if fp4 else row["precision"],
            kv_dtype="bf16" if keeps_16_bits else of_server(CAMPAIGN.kv_dtypes, ENGINES[engine], model, gpu) or "fp8",
            sides=sides,
            tokens_per_step=tokens_per_step(ENGINES[engine], float(row[ITL]) / tpot_s, osl) if has_mtp else None,
            isl=isl,
            osl=osl,
            concurrency=concurrency,
            measured_s={"ttft": ttft_s, "median_ttft": median_s, "tpot": tpot_s, "e2e": e2e_s},
        )
    except KeyError as error:
        raise CalibrationError(f"{path}: must be settings of InferenceX, got no column {error}; add it") from None
    except (ValueError, TypeError) as error:
        raise CalibrationError(f"{path}:{line}: must be a setting of InferenceX ({error}); correct the row") from None


def _known(choices: Collection[str], what: str) -> str:
    """Return the only choice. Raises _LeftOut where there is none."""
    if not choices:
        raise _LeftOut(f"{what} is not simulated")
    return next(iter(choices))


def _keeps_16_bits(gpu: str, version: str) -> bool:
    """Tell whether servers under SGLang keep latent vectors in 16 bits: on Hopper, and on cards of CDNA 3 before they
    got --kv-cache-dtype with 0.5.7 (InferenceX, perf-changelog.yaml, pull requests 544 and 545)."""
    if gpu in ("mi300x", "mi325x"):
        return bool(version) and release(version) < (0, 5, 7)
    return gpu in ("h100-sxm", "h200-sxm")


def _count(row: Mapping[str, str], column: str) -> int:
    return int(float(row[column]))


def _side(row: Mapping[str, str], name: str, hardware: str, serves_all: bool) -> Side:
    """Return one side: ranks where its columns say so, but for workers of a tray with splits that are not given: their
    recipes have none (srt-slurm, recipes/gb200-fp8/1k1k/low-latency.yaml). Raises _LeftOut where columns disagree."""
    workers, tensor, expert = (_count(row, f"{name}_{key}") for key in ("workers", "tp", "ep"))
    workers = max(1, workers)
    if not serves_all:
        all_gpus = _count(row, f"n_gpus_{name}")
        if tensor == expert == 1:  # not given: a worker is as wide as its GPUs
            tensor = expert = all_gpus // workers
            if hardware == "gb200" and _count(row, "n_gpus_decode") == TRAY * _count(row, "decode_workers"):
                return Side(name, workers, {"tensor": tensor, "expert": 1})
        if workers * max(tensor, expert) != all_gpus:
            raise _LeftOut("columns disagree about the number of GPUs")
    n_gpus = max(tensor, expert)
    by_rank = row[f"{name}_dp_attention"] == "True" or tensor < n_gpus
    split = {"data": n_gpus} if by_rank else {"tensor": tensor}
    return Side("both" if serves_all else name, workers, {**split, "expert": expert})


def _sides_of_all(row: Mapping[str, str]) -> tuple[Side, ...]:
    """Return the sides of a row without workers, where TP counts all GPUs: as recipes divide them, a tray (in fp8, two)
    for a worker that prefills, and decode workers of eight or one with ranks (srt-slurm, gb200/1k1k/stp)."""
    by_rank, prefill = row[MARK] == "True", TRAY if row["precision"] == "fp4" else 2 * TRAY
    n_decode = _count(row, "decode_tp") - prefill
    decode = 1 << max(n_decode, 1).bit_length() - 1 if by_rank else 2 * TRAY
    workers = 1 if by_rank else n_decode // decode
    n_prefill, spare = divmod(prefill + n_decode - workers * decode, prefill)
    if workers < 1 or spare:
        raise _LeftOut("columns do not say how many workers share the GPUs of prefill and of decode")
    key = "data" if by_rank else "tensor"
    sides = ("prefill", n_prefill, prefill), ("decode", workers, decode)
    return tuple(Side(role, n, {key: width, "expert": width}) for role, n, width in sides)
