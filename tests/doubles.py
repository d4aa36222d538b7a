"""Small builders: a linear cost model, replicas of a few blocks, traces of a few requests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simserve.columns.run import serve as run_cluster
from simserve.cost.step_lines import StepLines
from simserve.engine.cluster import Cluster
from simserve.engine.frontend import FrontEnd
from simserve.engine.offered import Offered
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.base import Router
from simserve.routers.round_robin import RoundRobin
from simserve.scenario.parallel import BalanceSection
from simserve.schedulers.base import Scheduler
from simserve.schedulers.chunked import Chunked
from simserve.state.id_runs import IdRuns
from simserve.state.layer_blocks import KvGroup, LayerBlocks
from simserve.workload.trace import Trace

MS = 10**9
"""Picoseconds in a millisecond."""


@dataclass(frozen=True)
class LineCost:
    """Linear step costs: per step, token, sampled row, pair, key, tokens of a group, and key of each window."""

    step: int = 0
    token: int = 0
    row: int = 0
    pair: int = 0
    key: int = 0
    shared: int = 0
    """Per token of all ranks in lockstep."""
    busiest: int = 0
    """Per token of the rank in lockstep with most."""
    split: int = 0
    """Tokens of a rank without prompts from which on it splits a step, three times as many with; 0: none does."""
    sent: int = 0
    """Exchange of a split step per token of the rank in lockstep with most."""
    windows: tuple[int, ...] = ()
    host: int = 0
    """Least time of a step that samples no request."""
    host_row: int = 0
    """More of it per request."""
    groups: int = 1
    """Groups that divide a prompt's tokens."""
    step_lines: StepLines = field(default_factory=StepLines, init=False, repr=False, compare=False)

    def tokens_ps(self, n_tokens: int) -> int:
        return self.step + self.token * n_tokens

    def own_tokens(self, n_tokens: int) -> int:
        return (n_tokens + self.groups - 1) // self.groups

    def sampled_ps(self, n_rows: int) -> int:
        return self.row * n_rows

    def prefill_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int) -> int:
        return self.pair * n_pairs + self.key * n_context_tokens

    def prefill_windows_ps(self, n_tokens: int, reads: Sequence[tuple[int, int]]) -> int:
        return sum(slope * (3 * pairs + keys) for slope, (pairs, keys) in zip(self.windows, reads, strict=True))

    def window_slopes(self, n: int) -> tuple[int, ...]:
        return tuple(slope * (1 + n % 2) for slope in self.windows)

    def decode_line(self, n: int) -> tuple[int, int]:
        return 0, self.key

    def mixed_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int, kv_tokens: int, n_rows: int) -> int:
        return (
            self.step
            + self.token * (self.own_tokens(n_tokens) + n)
            + self.row * n_rows
            + self.pair * n_pairs
            + self.key * (n_context_tokens + kv_tokens)
        )

    def host_ps(self, n_rows: int) -> int:
        return self.host + self.host_row * n_rows

    def group_ps(self, n_tokens: int, n_busiest: int, is_split: bool = False) -> int:
        return self.shared * n_tokens + (3 if is_split else self.busiest) * n_busiest

    def overlapped_ps(self, n_tokens: int, has_prompts: bool) -> int:
        is_split = self.split > 0 and n_tokens >= self.split * (3 if has_prompts else 1)
        return self.sent * n_tokens if is_split else 0


UNEVEN = LineCost(step=5_003_000_017, token=7_000_003, row=1_000_003, pair=1_009, key=39_119)
"""Odd numbers of about the right size for an 8B model, so that no two steps tie by accident."""


def balance(timeout_iters: int, batching_wait_iters: int) -> BalanceSection:
    return BalanceSection(timeout_iters=timeout_iters, batching_wait_iters=batching_wait_iters)


def in_runs(chain: Sequence[int]) -> IdRuns:
    """Return the ids of a chain as those of a load are."""
    return IdRuns(list(chain), [1] * len(chain))


def plain_blocks(block_size: int) -> LayerBlocks:
    """Return the blocks of layers that all keep all tokens."""
    return LayerBlocks((KvGroup(block_size),))


def replica_setup(
    scheduler: Scheduler | None = None,
    cost: Any = UNEVEN,
    n_blocks: int = 10_000,
    block_size: int = 16,
    max_model_len: int | None = None,
) -> ReplicaSetup:
    """Return a replica setup; max_model_len defaults to what its blocks hold."""
    longest = max_model_len or n_blocks * block_size
    return ReplicaSetup(scheduler or Chunked(), cost, n_blocks, plain_blocks(block_size), longest)


def trace(
    arrival_s: list[float], prompt_tokens: list[int], output_tokens: list[int], max_tokens: list[int] | None = None
) -> Trace:
    """Return a trace from lists."""
    return Trace(
        np.array(arrival_s, np.float64),
        np.array(prompt_tokens, np.int64),
        np.array(output_tokens, np.int64),
        None if max_tokens is None else np.array(max_tokens, np.int64),
    )


def serve(
    setups: ReplicaSetup | list[ReplicaSetup],
    load: Trace,
    router: Router | None = None,
    concurrency: int | None = None,
    drain_limit_ps: int | None = None,
    front_end: FrontEnd | None = None,
) -> Cluster:
    """Return a finished run."""
    several = setups if isinstance(setups, list) else [setups]
    cluster = Cluster(several, router or RoundRobin(), Offered(load, concurrency), router_seed=0, front_end=front_end)
    run_cluster(cluster, drain_limit_ps)
    return cluster


def instants(cluster: Cluster, name: str) -> list[float]:
    """Return a column of instants in milliseconds; -1 stays -1."""
    return [ps / MS if ps >= 0 else -1 for ps in cluster.recorder.columns[name].tolist()]
