"""Observations of a log: requests in groups that tell about the host of its server, and the mean times of its steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from simserve.cost.model import StepShape
from simserve.errors import CalibrationError
from simserve.lab.log_errors import ReplayedLog, quartiles
from simserve.scenario import PoolSetup
from simserve.scenario.typical_steps import CONTEXT_TOKENS, StepTimes, windows_of
from simserve.tables.columns import Flags, Floats, Ints
from simserve.units import to_s
from simserve.workload.readers.logs.steps import ENOUGH, StepLog


@dataclass(frozen=True)
class ReplayedSteps:
    """Lines about steps, and the server that should take as long. Prompts are taken for CONTEXT_TOKENS each."""

    log: StepLog
    setup: PoolSetup
    """The server that decodes."""
    metrics = ("tpot_s",)
    unit: Literal["lines"] = "lines"

    @property
    def in_flight(self) -> Floats:
        """Running requests of each line, `(n_lines,)`."""
        return self.log.running

    @property
    def features(self) -> dict[str, Floats | None]:
        """What groups of a metric have in common: TPOT, the running requests."""
        return {"tpot_s": self.in_flight}

    def compared(self, metric: str) -> Flags:
        """Mark the lines that have the metric, `(n_lines,)`."""
        return np.full(len(self.log), metric in self.log.measured)

    @cached_property
    def predicted(self) -> dict[str, Floats]:
        """Mean times of steps as TPOT, `(n_lines,)`: those of decoding, and what prompts add to some of them."""
        log, pool_tokens = self.log, self.setup.ledger.lane_tokens
        kv_tokens = np.where(np.isnan(log.kv_tokens), log.kv_frac * pool_tokens, log.kv_tokens)
        n_prompts = log.prompt_tokens * log.running / self._prompt_tokens
        rows = zip(np.rint(log.running).astype(int).tolist(), kv_tokens.astype(int).tolist(), n_prompts, strict=True)
        steps_s = np.array([self._step_s(max(n, 1), max(keys, n), more) for n, keys, more in rows])
        return {"tpot_s": steps_s / (1.0 if (how := self.setup.speculation) is None else how.tokens_per_step)}

    @cached_property
    def _times(self) -> StepTimes:
        return StepTimes(self.setup)

    @property
    def _prompt_tokens(self) -> int:
        return min(CONTEXT_TOKENS, self.setup.max_model_len)

    def _step_s(self, n: int, kv_tokens: int, n_prompts: float) -> float:
        """Return the mean time of steps of n requests with so many keys in all, and so many prompts a step."""
        decode_s = self._seconds(n, kv_tokens, 0)
        mixed_s = self._seconds(n, kv_tokens, self._prompt_tokens) if n_prompts else decode_s
        return decode_s + n_prompts * (mixed_s - decode_s)

    def _seconds(self, n: int, kv_tokens: int, prompt: int) -> float:
        groups = windows_of(self.setup)
        windows = tuple((*group.reads(0, prompt), n * group.keys(kv_tokens // n)) for group in groups)
        pairs = prompt * (prompt + 1) // 2
        return to_s(self._times.ps(StepShape(prompt, pairs, prompt, n, kv_tokens, n + bool(prompt), windows)))


Replayed = ReplayedLog | ReplayedSteps

FEWEST = 200
"""Answered requests that a fit needs."""

FEW_USED_FRAC = 0.3
"""Share of a log's requests that a fit must have used before its constants are worth using."""

BLOCKS = 10
"""Parts of a log in order of time; their errors count as independent."""

FLOOR_FRAC = {"tpot_s": 0.003, "ttft_s": 0.02}
"""Error of a group of requests that no constant explains: repeated runs on the same server differ by so much."""

LEAST_GROUP = {"requests": 50, "lines": 2}
"""Requests or lines of a group, at least: which step a request meets is random, and a line is a mean over many."""

ONE_LEVEL = 1.5
"""Requests in flight under heavy load over those under light load, below which a log has one level of load."""

WAITING = 10.0
"""TTFT over that of a request that does not wait; beyond it TTFT and batch show the queue, not the host."""


@dataclass(frozen=True)
class LogGroup:
    """Requests with a mean that is one observation."""

    log: int
    block: int
    metric: str
    rows: Ints
    weight: float
    """One over the error of the mean, as a share."""


@dataclass
class UsableRequests:
    """Requests of a log that tell about the host, and what was left out."""

    rows: Ints
    queued: Flags
    """Whether each request of the log is in a part that waits in the queue, `(n_requests,)`: only its TPOT tells."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Requests by reason."""
    notes: list[str] = field(default_factory=list)


def groups_of(index: int, replay: Replayed, usable: UsableRequests) -> Iterator[LogGroup]:
    """Yield the groups of usable requests of a log, or of lines of steps: by time, then by load (TPOT) or prompt
    (TTFT)."""
    measured, least = replay.log.measured, LEAST_GROUP[replay.log.unit]
    for block, in_block in enumerate(np.array_split(usable.rows, BLOCKS)):
        for metric, feature in replay.features.items():
            if metric not in measured:
                continue
            known = in_block if metric == "tpot_s" else in_block[~usable.queued[in_block]]
            known = known[replay.compared(metric)[known] & (measured[metric][known] > 0)]
            is_large = feature is not None and len(known) >= 4 * least
            parts = quartiles(feature[known]) if feature is not None and is_large else [slice(None)]
            for group in (known[part] for part in parts if len(known)):
                ratio = measured[metric][group] / replay.predicted[metric][group]
                error = float(ratio.std() / ratio.mean()) / np.sqrt(len(group)) if len(group) > 1 else 1.0
                yield LogGroup(index, block, metric, group, 1 / np.hypot(error, FLOOR_FRAC[metric]))


def is_heavy(groups: Sequence[LogGroup], replays: Sequence[Replayed]) -> Flags:
    """Mark the groups of the half of the blocks with more requests in flight (of the groups, in lines of steps),
    `(n_groups,)`; none where loads differ by less than ONE_LEVEL, or logs do not tell."""
    blocks: dict[tuple[int, ...], list[Floats]] = {}
    keys = [
        (each.log, each.block) if replays[each.log].log.unit == "requests" else (each.log, each.block, place)
        for place, each in enumerate(groups)
    ]
    for key, group in zip(keys, groups, strict=True):
        in_flight = replays[group.log].in_flight
        blocks.setdefault(key, []).append(np.zeros(1) if in_flight is None else in_flight[group.rows])
    loads = {key: float(np.median(np.concatenate(each))) for key, each in blocks.items()}
    middle = float(np.median(list(loads.values())))
    light, heavy = ([load for load in loads.values() if (load > middle) == side] for side in (False, True))
    differ = bool(heavy) and np.median(heavy) >= ONE_LEVEL * max(np.median(light), 1.0)
    return np.array([differ and loads[key] > middle for key in keys])


def usable_requests(replay: Replayed) -> UsableRequests:
    """Return the requests, or lines of steps, that tell about the host. Raises CalibrationError for too few."""
    path = replay.log.place.path
    if replay.unit == "lines":
        if len(replay.log) < ENOUGH:
            rule = f"a log needs at least {ENOUGH} lines of steady steps, got {len(replay.log)}"
            raise CalibrationError(f"{path}: {rule}; log a longer time")
        none = np.zeros(len(replay.log), np.bool_)
        return UsableRequests(np.arange(len(none)), none, dict(replay.log.left_out))
    usable = replay.is_answered.copy()
    result = UsableRequests(np.zeros(0, np.int64), np.zeros(len(usable), np.bool_))
    if np.count_nonzero(usable) < FEWEST:
        rule = f"a log needs at least {FEWEST} answered requests, got {np.count_nonzero(usable)}"
        raise CalibrationError(f"{path}: {rule}; log some ten minutes of traffic")
    fast, text = _beats_roofline(replay)
    if 2 * np.count_nonzero(fast) > np.count_nonzero(usable):
        raise CalibrationError(f"{path}: {text}")
    if fast.any():
        result.notes.append(f"{path}: {text}; left out")
        result.left_out["faster than the data sheet allows"] = int(np.count_nonzero(fast))
        usable &= ~fast
    result.queued = _waits(replay, usable)
    if n := np.count_nonzero(result.queued & usable):
        result.notes.append(f"{path}: {n} requests are of times that wait in the queue; only their TPOT is used")
    result.rows = np.flatnonzero(usable)
    return result


def _beats_roofline(replay: ReplayedLog) -> tuple[Flags, str]:
    """Mark requests that no server of this scenario can answer so fast, and say what would explain them."""
    log, setup = replay.log, replay.scenario.setups[-1]
    early, quick, floor_s = np.zeros(len(log), np.bool_), np.zeros(len(log), np.bool_), 0.0
    least_s = (log.trace.prompt_tokens - replay.results.columns["requests"]["cached_tokens"]) * replay.token_floor_s
    if "ttft_s" in log.measured:
        early = log.measured["ttft_s"] < least_s
    if "tpot_s" in log.measured and setup.speculation is None:
        work = setup.step_cost().work
        floor_s = work.weight_bytes_per_step / work.hbm_bytes_per_s
        quick = log.measured["tpot_s"] < floor_s
    rows = np.flatnonzero(early | quick)
    if not len(rows):
        return early, ""
    shown = ", ".join(str(log.place.numbers[row]) for row in rows[:3].tolist()) + (", ..." if len(rows) > 3 else "")
    texts = []
    if early.any():
        least = float((log.measured["ttft_s"][early] / least_s[early]).min())
        texts.append(
            f"TTFT of {np.count_nonzero(early)} is down to {least:.0%} of computing the prompt at peak (were prompts "
            "cached? add hash_ids and hash_block_tokens)"
        )
    if quick.any():
        least = float(log.measured["tpot_s"][quick].min() / floor_s)
        texts.append(
            f"TPOT of {np.count_nonzero(quick)} is down to {least:.0%} of reading the weights once (another model, "
            "weight_dtype or number of GPUs? speculation?)"
        )
    what = f"{len(rows)} of {len(log)} requests beat the bare roofline of the scenario ({log.place.word} {shown})"
    return early | quick, f"{what}: {'; '.join(texts)}"


def _waits(replay: ReplayedLog, usable: Flags) -> Flags:
    """Mark the blocks in which the middle request waits most of its TTFT, `(n_requests,)`."""
    log, waits = replay.log, np.zeros(len(replay.log), np.bool_)
    if "ttft_s" not in log.measured:
        return waits
    requests = replay.results.columns["requests"]
    alone_s = requests["ttft_s"] - requests["queue_s"]
    for rows in np.array_split(np.flatnonzero(usable), BLOCKS):
        known = rows[~np.isnan(log.measured["ttft_s"][rows]) & ~np.isnan(alone_s[rows])]
        if len(known):
            waits[rows] = np.median(log.measured["ttft_s"][known]) > WAITING * np.median(alone_s[known])
    return waits
