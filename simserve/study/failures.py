"""Failures of a pool: how often each kind strikes, what it takes down, and the spares that the pool may get."""

import math
import re
from collections.abc import Mapping, Sequence
from statistics import harmonic_mean
from typing import Any

from simserve.errors import Problem, ScenarioError
from simserve.metrics.error_budget import Threat
from simserve.scenario import Scenario
from simserve.scenario.fleet import Failure, Passing, PlacementSection, Spares, Startup
from simserve.scenario.template import Override, Template
from simserve.study.autoscale import pool_of
from simserve.study.capacity.question import check_slo

DAY_S = 86_400.0

MTBF_DAYS: Mapping[str, tuple[int, str]] = {
    "process": (176, "60% of severe incidents are in the engine, one of a server's hardware in 264 days"),
    "gpu": (4_465, "Llama 3: 47% of stops, one of a server of 8 GPUs in 264 days"),
    "node": (663, "Llama 3: 40% of stops, one of a server of 8 GPUs in 264 days"),
    "slow": (176, "assumed: as often as a process fails, each within Falcon's tens of seconds to ten hours"),
}
"""Mean time between failures of one unit where a scenario gives none, and its source.

Training of Llama 3 405B: 419 stops in 54 days of 2,048 servers of 8 GPUs, each once in 264 days; 47.3% by a GPU or its
memory, 12.9% by software, 39.8% by anything else. Meta's RSC: once in 42 days. LLM inference: 60% of 156 severe
incidents in the engine, so 1.5 for each other one. Falcon (arXiv 2410.12588): how long GPUs of training were slow."""

SLOW_S = 600.0
"""[s] Time that a replica is slow where a scenario does not say it (assumed)."""

MOST_NODES = 10**6
"""Nodes of the only rack."""

MOST_RUNS, MOST_SEEDS, FEWEST_SEEDS = 40, 8, 2
"""Runs of a study by default, and seeds of each fleet and failure at most and at least."""

MOST_SPARES, SPARES = 20, re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?")


def threats_of(scenario: Scenario, place: int, kinds: Sequence[str]) -> list[Threat]:
    """Return the failures of a pool: of these kinds, or else of those that the scenario has. Raises ScenarioError."""
    pool, all_of_it = scenario.cluster.pools[place].name, scenario.cluster.failures or ()
    own = [each for each in all_of_it if each.what != "link" and each.pool in (None, pool)]
    unplanned = [each.what for each in own if each.what not in ("drain", "spot")]
    named = dict.fromkeys(kinds or unplanned or [*MTBF_DAYS][:3])
    threats = [_threat(scenario, place, kind, [each for each in own if each.what == kind]) for kind in named]
    down = sum(each.odds for each in threats)
    if down >= 1:
        rule, got = "must leave most replicas standing", f"rates at which {down / (1 + down):.0%} are down or slow"
        raise ScenarioError([Problem("cluster.failures", rule, got, "raise mtbf_s, or shorten detect_s and startup")])
    loss = scenario.cluster.on_failure
    return [each if loss is None else each._replace(migrate=loss.migrate) for each in threats]


def _threat(scenario: Scenario, place: int, kind: str, given: Sequence[Failure | Passing]) -> Threat:
    """Return all failures of a kind that the scenario has, or those by default. Raises ScenarioError without a rate."""
    if kind == "slow":
        return _slow([each for each in given if each.what == "slow" or each.what == "link"])
    failures = [each for each in given if each.what != "slow" and each.what != "link"]
    setup, nodes = scenario.setups[place], scenario.cluster.placement or PlacementSection()
    n_gpus, node_gpus = setup.gpus_per_replica, nodes.gpus_per_node or setup.gpu.gpus_per_node
    rack_gpus = node_gpus * (nodes.nodes_per_rack or MOST_NODES)
    unit_gpus = {"process": n_gpus, "gpu": 1, "node": node_gpus, "rack": rack_gpus}.get(kind)
    if unit_gpus is None:
        raise _problem("--what", "there is no such kind of failure", kind, f"use {', '.join(MTBF_DAYS)} or rack")
    mtbf_s, source = _mtbf(kind, [each.mtbf_s for each in failures if each.mtbf_s])
    known = [each for each in failures if each.mtbf_s or source != "the scenario"] or [Failure(what="process")]
    if any(each.recover == "none" for each in known):
        rule = "leaves nothing standing in the long run, as no replica comes back"
        raise ScenarioError([Problem("cluster.failures", rule, "recover: none", "use recover: restart")])
    if not mtbf_s:
        remedy = "give the scenario cluster.failures: [{what: rack, mtbf_s: 2.0e8}]"
        raise ScenarioError([Problem("cluster.failures", f"has no rate of a {kind}, and no default", None, remedy)])
    startup = scenario.cluster.pools[place].startup or Startup()
    held_s = startup.typical_s(in_place=True)
    return Threat(
        what=kind,
        mtbf_s=mtbf_s,
        source=source,
        per_s=math.ceil(n_gpus / unit_gpus) / mtbf_s,
        n_lost=max(1, unit_gpus // n_gpus),
        detect_s=known[0].detect_s,
        start_s=held_s + setup.ledger.weights_bytes * n_gpus / startup.weights.rate,
        new_s=0.0 if kind == "process" else startup.typical_s(in_place=False) - held_s,
    )


def _slow(failures: Sequence[Passing]) -> Threat:
    """Return the gray failures of a scenario, or those by default. Raises ScenarioError where they never end."""
    first = next((each for each in failures if each.mtbf_s), [*failures, Passing(what="slow")][0])
    mtbf_s, source = _mtbf("slow", [each.mtbf_s for each in failures if each.mtbf_s])
    if first.mtbf_s and first.for_s is None:
        rule = "leaves all replicas slow in the long run, as none is as fast again"
        raise ScenarioError([Problem("cluster.failures", rule, "for_s: null", f"give one, such as for_s: {SLOW_S:g}")])
    lasts_s = first.for_s or SLOW_S
    often = f"for {lasts_s:g} s at {first.speed_frac:.0%} of its speed; {source}"
    return Threat("slow", mtbf_s, often, 1 / mtbf_s, 0, 0.0, lasts_s, 0.0, first.speed_frac)


def _mtbf(kind: str, of_all: Sequence[float]) -> tuple[float, str]:
    """Return the mean time between all failures of a kind, 0 if none is known, and where that is from."""
    days, source = MTBF_DAYS.get(kind, (0, ""))
    return (harmonic_mean(of_all) / len(of_all), "the scenario") if of_all else (days * DAY_S, source)


class ResilienceQuestion:
    """A pool with its failures, and the spares that it may get."""

    def __init__(
        self, template: Template, pool: str | None, spare: str, kinds: list[str], seeds: int | None, goal_frac: float
    ) -> None:
        """Check the question. Raises SimserveError before anything runs.

        seeds: of all fleets and failures; None: as many as MOST_RUNS allow.
        """
        self._template, self.given_seeds, self.goal_frac = template, seeds, goal_frac
        self.scenario = Scenario.of(template)
        check_slo(self.scenario)
        self.place = 0 if pool is None else pool_of(self.scenario, pool)
        self.pool = self.scenario.cluster.pools[self.place]
        self.threats = threats_of(self.scenario, self.place, kinds)
        self.spares = _spares(spare)
        self.keeps_spares = self.is_scaled and (self.pool.spares or Spares()).n > 0
        """Whether the autoscaler has spares of its own, which are not compared with others."""
        for size in self.sizes:
            self.fleet(size)  # raises for more GPUs than the budget has

    @property
    def is_scaled(self) -> bool:
        """Whether an autoscaler decides how many replicas there are."""
        return self.scenario.setups[self.place].autoscaler is not None

    @property
    def sizes(self) -> list[int]:
        """Replicas of the fleets to run: one fewer than without spares up to all spares, and what most failures leave.
        A size between those attains at least what the next smaller one does."""
        n, n_lost = self.pool.replicas, max(threat.n_lost for threat in self.threats)
        sizes = {max(0, n - n_lost), *range(n - 1, n + self.spares[-1] + 1)}
        return [n] if self.is_scaled else sorted(sizes - {0})

    @property
    def n_pairs(self) -> int:
        """Return the seeds of each fleet and failure. A second set of failures may follow, with two of each."""
        n_kinds = len(self.threats)
        n_each, n_moved = len(self.sizes) + n_kinds, len(self.moved)
        n = (MOST_RUNS - (FEWEST_SEEDS * (n_kinds + n_moved) if self.spares[-1] else 0)) // n_each
        return self.given_seeds or max(FEWEST_SEEDS, min(MOST_SEEDS, n, MOST_RUNS // (n_each + n_moved)))

    @property
    def moved(self) -> Sequence[Threat]:
        """Return the failures to run with requests that migrate, or do not where the scenario's do; none where clients
        have no tokens before the whole answer."""
        lossy = [threat for threat in self.threats if threat.n_lost and not self.keeps_spares]
        has_tokens = all(setup.scheduler.stream for setup in self.scenario.setups)
        other = "none" if self.threats[0].migrate == "recompute" else "recompute"
        return [threat._replace(migrate=other) for threat in lossy] if has_tokens else []

    def fleet(self, replicas: int, *failures: Any, warm: int = 0, migrate: str = "none") -> Scenario:
        """Return the scenario with so many replicas and warm spares, and these failures alone; a pool that is scaled
        keeps spares of its own. Raises ScenarioError."""
        pool, place = ("cluster", "pools", str(self.place)), f"command line --spare {replicas - self.pool.replicas}"
        changes = [
            Override(place, (*pool, "replicas"), replicas),
            Override(place, ("cluster", "failures"), [*failures] or None),
            *([Override(place, ("cluster", "on_failure", "migrate"), migrate)] if failures else ()),
        ]
        if not self.keeps_spares:
            changes.append(Override(place, (*pool, "spares"), {"warm": warm} if warm else None))
        return Scenario.of(self._template.with_options(changes))


def _spares(text: str) -> range:
    """Return the numbers of spares of `0..2`, or a single one. Raises ScenarioError."""
    match, remedy = SPARES.fullmatch(text), f"for example 0..2; at most {MOST_SPARES}"
    if match is None:
        raise _problem("--spare", "must be a number of spares, or a range LO..HI", text, remedy)
    first, last = int(match[1]), int(match[2] or match[1])
    if not first <= last <= MOST_SPARES:
        raise _problem("--spare", "a range goes upwards, to a number of spares that is not too large", text, remedy)
    return range(first, last + 1)


def _problem(option: str, rule: str, value: str, remedy: str) -> ScenarioError:
    return ScenarioError([Problem(f"command line {option}", rule, value, remedy)])
