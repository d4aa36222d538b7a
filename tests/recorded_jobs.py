"""Load jobs of a recorded fleet, laid over each other: each draws its arrivals and has so many requests in flight."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simserve import simulate
from simserve.metrics.results import Results
from simserve.scenario.loader import scenario_from
from simserve.tables.columns import Floats, Ints
from simserve.workload.amounts import LognormalSide
from simserve.workload.load import Load
from simserve.workload.trace import Trace

PROMPTS = LognormalSide(130, 1.07, 2048)
OUTPUTS = LognormalSide(370, 0.9, 1024)
"""Means of 231 and 463 tokens, and the cap of the load jobs; as in tests/lab/test_pods.py."""
MOST_IN_FLIGHT = 512
"""`max-concurrency` of every load job."""
SAME_S, MOST_RUNS = 0.5, 16
"""A client's waits are settled when no request moves by more."""
STARTUP: dict[str, Any] = {
    "process_s": {"median": 117, "sigma": 0.09, "max": 145},
    "weights": {"from": "host_memory", "bytes_per_s": 1e12},
    "compile_s": 0,
    "ready_probe_s": 0,
}
"""105 to 145 s from an order to the first sample, which comes half a scrape interval after a replica is ready."""


@dataclass(frozen=True)
class Job:
    """A load job: a Poisson process that ends with its last prompt."""

    start_s: float
    rate_per_s: float
    n_prompts: int
    seed: int = 12345
    """Jobs of equal seed send prompts of the same lengths."""


@dataclass(frozen=True)
class Jobs:
    """What several load jobs send."""

    trace: Trace
    job: Ints
    """The job of each request, `(n_requests,)`."""


def drawn(jobs: Sequence[Job], seed: int) -> Jobs:
    """Draw the requests of all jobs, in the order of arrival."""
    arrival_s, of_job = list[Floats](), list[Ints]()
    prompts, outputs = list[Ints](), list[Ints]()
    for place, job in enumerate(jobs):
        gaps_s = np.random.default_rng([seed, place]).exponential(1 / job.rate_per_s, job.n_prompts)
        arrival_s.append(job.start_s + np.cumsum(gaps_s))
        for columns, side, stream in ((prompts, PROMPTS, 0), (outputs, OUTPUTS, 1)):
            columns.append(side.draw(job.n_prompts, np.random.default_rng([seed, job.seed, stream]))[0])
        of_job.append(np.full(job.n_prompts, place))
    at_s = np.concatenate(arrival_s)
    order = np.argsort(at_s, kind="stable")
    trace = Trace(at_s, np.concatenate(prompts), np.concatenate(outputs)).take(order)
    return Jobs(trace, np.concatenate(of_job)[order])


def sent_s(due_s: Floats, lasts_s: Floats, most: int = MOST_IN_FLIGHT) -> Floats:
    """Return when a client sends requests that are due: in turn, each once fewer than so many are unanswered."""
    in_flight: list[float] = []
    sent = np.empty(len(due_s))
    for place, (at_s, last_s) in enumerate(zip(due_s.tolist(), lasts_s.tolist(), strict=True)):
        if len(in_flight) == most:
            at_s = max(at_s, heapq.heappop(in_flight))
        sent[place] = at_s
        heapq.heappush(in_flight, at_s + last_s)
    return sent


def served(scenario: dict[str, Any], jobs: Jobs) -> Results:
    """Serve jobs whose clients wait for answers: runs follow each other until all requests are sent as the answers of
    the run before allow. Half of each step is taken, as they swing around what they reach."""
    due_s = at_s = jobs.trace.arrival_s
    checked = scenario_from(scenario)
    for run in range(MOST_RUNS):
        order = np.argsort(at_s, kind="stable")
        results = simulate(checked, load=Load(replace(jobs.trace.take(order), arrival_s=at_s[order])))
        lasts_s = np.empty(len(order))
        lasts_s[order] = np.nan_to_num(results.columns["requests"]["finish_s"] - at_s[order])
        after_s = due_s.copy()
        for job in np.unique(jobs.job):
            after_s[jobs.job == job] = sent_s(due_s[jobs.job == job], lasts_s[jobs.job == job])
        if np.abs(after_s - at_s).max() < SAME_S:
            break
        at_s = after_s if run == 0 else (after_s + at_s) / 2
    else:
        raise AssertionError(f"the clients' waits are not settled after {MOST_RUNS} runs")
    return results


def fleet(autoscaler: dict[str, Any], seed: int, version: str = "0.12", **cluster: Any) -> dict[str, Any]:
    """Return the recorded fleet: a pod at first, of one H100, with vLLM before 0.14, behind llm-d's gateway."""
    pool = {"replicas": 1, "autoscaler": autoscaler, "startup": STARTUP}
    return {
        "schema": "simserve/1",
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "engine": {"name": "vllm", "version": version},
        "seed": seed,
        "cluster": {"router": "weighted", "pools": [pool]} | cluster,
        "workload": {  # simulate() is given its load
            "arrivals": {"kind": "poisson", "rate_per_s": 10},
            "lengths": {"kind": "fixed", "prompt_tokens": 231, "output_tokens": 463},
            "duration_s": 60,
        },
        "measure": {"replays": 0},
    }


Steps = list[tuple[float, int]]
"""Instants and the replicas from then on; the first is at 0."""


def replicas(results: Results) -> Steps:
    """Return the replicas that were ordered and not told to leave."""
    changes: dict[float, int] = {}
    for member in results.facts.members:
        ends_s = [each for each in (member.draining_s, member.gone_s) if each is not None]
        changes[member.ordered_s] = changes.get(member.ordered_s, 0) + 1
        if ends_s:
            changes[min(ends_s)] = changes.get(min(ends_s), 0) - 1
    n, steps = 0, []
    for at_s in sorted(changes):
        n += changes[at_s]
        steps.append((at_s, n))
    return steps


def replica_seconds(steps: Steps, end_s: float) -> float:
    """Return the replicas, summed over the time until an end."""
    until_s = [at_s for at_s, _ in steps[1:]] + [end_s]
    return sum(n * max(0.0, min(last_s, end_s) - at_s) for (at_s, n), last_s in zip(steps, until_s, strict=True))
