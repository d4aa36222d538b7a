"""Story: a made-up run told step by step, the tables an engine would hand over for it, and every token's own time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest

from simserve.metrics import itl
from simserve.metrics.window import Window
from simserve.tables import scratch
from simserve.tables.columns import Categorical, Columns
from simserve.tables.facts import PoolFacts, RunFacts, WorkFacts
from simserve.tables.run_tables import RunTables

S = 10**12
STATUS = ("unfinished", "finished", "rejected", "timed_out")
BLOCKED = ("", "seats", "blocks", "budget")
WORK = WorkFacts(
    flop_per_token=2.0,
    flop_per_pair=3.0,
    flop_per_sampled=5.0,
    weight_bytes_per_step=7.0,
    kv_bytes_per_token=11.0,
    peak_flop_per_s=1000.0,
    hbm_bytes_per_s=2000.0,
)


def pool_facts(name: str = "serve", n_replicas: int = 1, **changes: Any) -> PoolFacts:
    """A pool of replicas with one GPU each at 3.6 dollars an hour."""
    facts: dict[str, Any] = {
        "name": name,
        "role": "both",
        "n_replicas": n_replicas,
        "gpus_per_replica": 1,
        "ranks_per_replica": 1,
        "gpu": "h100-sxm",
        "model": "tiny",
        "engine": "ideal",
        "scheduler": "Chunked",
        "slots_argument": "max_num_seqs",
        "budget_argument": "max_num_batched_tokens",
        "calibration": None,
        "calibrated": True,
        "kv_verified": True,
        "n_blocks": 100,
        "block_size": 16,
        "streamed": True,
        "price_per_gpu_hour_usd": 3.6,
        "tdp_w": 700.0,
        "work": WORK,
    }
    return PoolFacts(**facts | changes)


@dataclass
class Life:
    """One request: what was offered, and the instants of its tokens in picoseconds."""

    arrival_ps: int
    output_tokens: int
    prompt_tokens: int = 10
    status: str = "unfinished"
    replica: int = -1
    scheduled_ps: int | None = None
    token_ps: list[int] = field(default_factory=list)
    n_preemptions: int = 0

    @property
    def gaps_s(self) -> list[float]:
        """Gaps between its tokens."""
        return [(b - a) / S for a, b in zip(self.token_ps, self.token_ps[1:], strict=False)]


@dataclass
class Teller:
    """One replica, told row by row. Durations are in picoseconds."""

    lives: list[Life]
    index: int = 0
    now_ps: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    spans: list[dict[str, Any]] = field(default_factory=list)
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    n_steps: int = 0
    n_decode_steps: int = 0

    def pause(self, duration_ps: int) -> None:
        """Nothing happens."""
        self.now_ps += duration_ps

    def start(self, *requests: int) -> None:
        """Requests get tokens in a step for the first time."""
        for request in requests:
            self.lives[request].scheduled_ps = self.now_ps
            self.lives[request].replica = self.index

    def row(
        self,
        first_ps: int,
        growth_ps: int = 0,
        n: int = 1,
        prefill_tokens: int = 0,
        joins: tuple[int, ...] = (),
        **more: Any,
    ) -> None:
        """A stretch in which all open requests decode unless `decodes=False`; `joins` complete their prefill in it."""
        decodes = more.pop("decodes", True)
        members = list(self.open) if decodes else []
        start_ps = self.now_ps
        for i in range(n):
            self.now_ps += first_ps + i * growth_ps
            for request in members:
                self.lives[request].token_ps.append(self.now_ps)
        self.rows.append(
            {
                "replica": self.index,
                "step": self.n_steps,
                "decode_step": self.n_decode_steps,
                "n_steps": n,
                "start_s": start_ps / S,
                "end_s": self.now_ps / S,
                "first_step_s": first_ps / S,
                "last_step_s": (first_ps + (n - 1) * growth_ps) / S,
                "prefill_tokens": prefill_tokens,
                "prefill_pairs": prefill_tokens**2 // 2,
                "decode_requests": len(members),
                "kv_tokens": 100 * len(members),
                "kv_blocks_used": 0,
                "kv_blocks_reserved": 0,
                "queue_len": 0,
                "blocked_by": "",
                "accepted_tokens": 0,
                "interference_s": 0.0,
                "copy_s": 0.0,
            }
            | more
        )
        self.n_steps += n
        self.n_decode_steps += n * bool(members)
        for request in list(members):
            life = self.lives[request]
            if len(life.token_ps) == life.output_tokens:
                self.finish(request)
        for request in joins:
            self.join(request)

    def join(self, request: int) -> None:
        """A prefill is complete and gives one token."""
        life = self.lives[request]
        life.token_ps.append(self.now_ps)
        self.open[request] = (self.n_decode_steps, self.now_ps)
        if len(life.token_ps) == life.output_tokens:
            self.finish(request)

    def finish(self, request: int) -> None:
        """The last token is out."""
        self.lives[request].status = "finished"
        self.close(request)

    def preempt(self, request: int) -> None:
        """It leaves, to join again later."""
        self.lives[request].n_preemptions += 1
        self.close(request)

    def close(self, request: int) -> None:
        """Its span ends with the last decode step."""
        first, join_ps = self.open.pop(request)
        self.spans.append(
            {
                "request_id": request,
                "replica": self.index,
                "first_step": first,
                "last_step": self.n_decode_steps - 1,
                "join_s": join_ps / S,
            }
        )


def tables(lives: list[Life], tellers: list[Teller], whole: bool = False) -> RunTables:
    """What the engine would hand over; `whole`: answers leave whole at their end."""
    for teller in tellers:
        for request in list(teller.open):
            teller.close(request)
    rows = [row for teller in tellers for row in teller.rows]
    spans = [span for teller in tellers for span in teller.spans]
    return RunTables(_requests(lives, whole), _columns(rows, Teller(lives)), _columns(spans, None))


def run_facts(run: RunTables, n_replicas: int = 1, pools: tuple[PoolFacts, ...] = (), **changes: Any) -> RunFacts:
    """Facts that go with the tables."""
    pools = pools or (pool_facts(n_replicas=n_replicas),)
    facts: dict[str, Any] = {
        "name": "story",
        "seed": 0,
        "digest": "0123456789ab",
        "pools": pools,
        "replica_pool": tuple(i for i, pool in enumerate(pools) for _ in range(pool.n_replicas)),
        "peak_kv_blocks": (10,) * sum(pool.n_replicas for pool in pools),
        "slo": {},
        "measure": {},
        "last_arrival_s": float(run.requests["arrival_s"].max(initial=0.0)),
        "end_s": float(max(run.steps["end_s"].max(initial=0.0), run.requests["arrival_s"].max(initial=0.0))),
        "wall_s": 0.25,
    }
    return RunFacts(**facts | changes)


@contextmanager
def in_pieces(n_rows: int = 3) -> Iterator[None]:
    """Compute so many rows at a time, as in a run of millions of requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scratch, "PIECE_ROWS", n_rows)
        patch.setattr(itl, "SUMMED_ROWS", n_rows)
        yield


def window_of(start_s: float, end_s: float) -> Window:
    """A measured window, without its requests."""
    return Window(start_s, end_s, end_s - start_s, "last arrival", np.empty(0, np.bool_))


def random_story(
    seed: int, n_replicas: int = 2, n_requests: int = 12, most_rows: int = 40
) -> tuple[list[Life], RunTables]:
    """A run of random steps with preemptions, pauses, prefill-only steps, refusals and requests that never finish."""
    random = Random(seed)
    lives = [Life(0, random.choice([1, 1, 2, 3, 5, 9, 30]), random.randint(1, 50)) for _ in range(n_requests)]
    arrivals = sorted(random.randrange(3 * S) for _ in lives)
    for life, arrival_ps in zip(lives, arrivals, strict=True):
        life.arrival_ps = arrival_ps
    tellers = [Teller(lives, index, now_ps=3 * S) for index in range(n_replicas)]
    for request, life in enumerate(lives):
        life.replica = request % n_replicas
        if random.random() < 0.1:
            life.status, life.replica = "rejected", -1
    for teller in tellers:
        _ramble(teller, random, random.randint(5, most_rows))
    for life in lives:
        if life.scheduled_ps is None:
            life.replica = -1
    return lives, tables(lives, tellers)


def _ramble(teller: Teller, random: Random, n_rows: int) -> None:
    lives = teller.lives
    waiting = [i for i, life in enumerate(lives) if life.replica == teller.index and life.status != "rejected"]
    for _ in range(n_rows):
        if random.random() < 0.2:
            teller.pause(random.randrange(S))
        if teller.open and random.random() < 0.15:
            victim = random.choice(list(teller.open))
            teller.preempt(victim)
            waiting.append(victim)
        joins: tuple[int, ...] = ()
        if waiting and random.random() < 0.5:
            joins = (waiting.pop(0),)
            if lives[joins[0]].scheduled_ps is None:
                teller.start(*joins)
        first_ps = random.choice([8_000_000_000, random.randrange(1, 10**10), random.randrange(1, 10**7)])
        if joins or not teller.open:
            decodes = bool(teller.open) and random.random() < 0.6
            n_tokens = random.randrange(1, 50)
            teller.row(first_ps, prefill_tokens=n_tokens, joins=joins, decodes=decodes)
        else:
            least = min(lives[i].output_tokens - len(lives[i].token_ps) for i in teller.open)
            teller.row(first_ps, random.choice([0, 1, random.randrange(10**8)]), random.randint(1, least))


def _requests(lives: list[Life], whole: bool) -> Columns:
    n = len(lives)
    finish_ps = [life.token_ps[-1] if life.status == "finished" else None for life in lives]
    first_ps = finish_ps if whole else [life.token_ps[0] if life.token_ps else None for life in lives]
    return {
        "request_id": np.arange(n),
        "arrival_s": np.array([life.arrival_ps / S for life in lives]),
        "prompt_tokens": np.array([life.prompt_tokens for life in lives], np.int64),
        "output_tokens": np.array([life.output_tokens for life in lives], np.int64),
        "max_tokens": None,
        "status": Categorical(np.array([STATUS.index(life.status) for life in lives], np.int32), STATUS),
        "status_reason": Categorical(
            np.array([life.status == "rejected" for life in lives], np.int32), ("", "too long")
        ),
        "pool": Categorical(np.array([min(life.replica, 0) for life in lives], np.int32), ("serve",)),
        "replica": np.array([life.replica for life in lives], np.int32),
        "prefill_replica": np.full(n, -1, np.int32),
        "scheduled_s": _instants([life.scheduled_ps for life in lives]),
        "first_token_s": _instants(first_ps),
        "finish_s": _instants(finish_ps),
        "preempted_s": np.zeros(n),
        "transfer_s": np.zeros(n),
        "transfer_wait_s": np.zeros(n),
        "n_preemptions": np.array([life.n_preemptions for life in lives], np.int32),
        "n_recomputed_tokens": np.array([7 * life.n_preemptions for life in lives], np.int64),
        "cached_tokens": np.zeros(n, np.int64),
        "n_swaps": np.zeros(n, np.int32),
        "n_failures": np.zeros(n, np.int32),
        "n_migrations": np.zeros(n, np.int32),
        "host_cached_tokens": np.zeros(n, np.int64),
        "disk_cached_tokens": np.zeros(n, np.int64),
        "decode_cached_tokens": np.zeros(n, np.int64),
        "session_id": None,
        "turn": None,
        "session_requests": None,
        "attempt": np.ones(n, np.int32),
        "first_sent_s": np.array([life.arrival_ps / S for life in lives]),
        "gave_up_s": np.full(n, np.nan),
        "wasted_tokens": np.zeros(n, np.int64),
        "priority": np.zeros(n, np.int32),
        "slo_class": None,
        "tenant": None,
    }


def _instants(values_ps: list[int | None]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([np.nan if value is None else value / S for value in values_ps])


_INT32 = {"replica", "prefill_tokens", "decode_requests", "kv_blocks_used", "kv_blocks_reserved", "queue_len"}
_INT32 |= {"accepted_tokens"}
_STEP_COLUMNS = (
    "replica step decode_step n_steps start_s end_s first_step_s last_step_s prefill_tokens prefill_pairs "
    "decode_requests kv_tokens kv_blocks_used kv_blocks_reserved queue_len blocked_by accepted_tokens"
    " interference_s copy_s"
)
_SPAN_COLUMNS = "request_id replica first_step last_step join_s"


def _columns(rows: list[dict[str, Any]], steps: Teller | None) -> Columns:
    columns: Columns = {}
    for name in (_STEP_COLUMNS if steps else _SPAN_COLUMNS).split():
        values = [row[name] for row in rows]
        if name == "blocked_by":
            columns[name] = Categorical(np.array([BLOCKED.index(value) for value in values], np.int32), BLOCKED)
        else:
            dtype: Any = np.int32 if name in _INT32 else np.float64 if name.endswith("_s") else np.int64
            columns[name] = np.array(values, dtype)
    return columns
