"""Autoscale: a load on one pool under several policies, on the same seeds; what each costs and attains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan
from statistics import fmean
from typing import Any, NamedTuple

from simserve.errors import Problem, ScenarioError
from simserve.metrics.answers.autoscale import AutoscaleAnswer, ScaledFleet
from simserve.metrics.answers.parts import ScenarioName
from simserve.metrics.answers.sweep_runs import FinishedRun
from simserve.metrics.decision import Effort
from simserve.metrics.goal import LOOKS
from simserve.scenario import Scenario
from simserve.scenario.dump import yaml_text
from simserve.scenario.manifest_out import manifest_text
from simserve.scenario.template import Override, Template
from simserve.scenario.yaml_lines import NotYaml, scalar
from simserve.study.sweep.facts import pareto_front
from simserve.study.sweep.point_runs import PointRuns
from simserve.study.sweep.points import SweepPoint, resolved
from simserve.study.sweep.question import SweepQuestion
from simserve.study.sweep.sweep import Sweep
from simserve.version import __version__

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "hpa": {
        "metrics": [{"metric": "num_requests_waiting", "target": 20}, {"metric": "kv_cache_usage_perc", "target": 0.5}]
    },
    "keda": {"triggers": [{"query": "sum(num_requests_running)", "threshold": 16}], "min_replicas": 1},
    "target": {"metric": "kv_cache_usage_perc", "target": 0.5},
    "kpa": {"min_replicas": 1},
    "ray_serve": {},
    "wva": {},
    "dynamo_planner": {},
}
"""Settings of policies that are named alone: of HPA those of llm-d's experiments, of KEDA llm-d's target of 16 running
requests a replica, of `target` AIBrix' share of KV; of others the controllers' defaults."""

FIXED, OWN = "fixed", "own"
"""The replicas as they are, or `fixed:4` of them; the autoscaler that the scenario has."""

MOST_RUNS, FEWEST_DRAWS, FEWEST_SEEDS = 40, 4, 2
"""Runs of a study by default, and draws of costs and seeds of each policy at least."""

GROWTH = 4
"""Most replicas, as a multiple of those at the start, where nothing else says it."""


class Policy(NamedTuple):
    """A policy with its name in the answer."""

    name: str
    autoscaler: Any
    """As a scenario has it; None: the replicas stay."""
    replicas: int
    """Replicas at the start."""

    def overrides(self, pool: int) -> tuple[Override, ...]:
        """Return what it changes in a pool."""
        place, key = f"command line --policy {self.name}", ("cluster", "pools", str(pool))
        changes = {"autoscaler": self.autoscaler, "replicas": self.replicas}
        return tuple(Override(place, (*key, name), value) for name, value in changes.items())


@dataclass(frozen=True)
class AutoscaleQuestion:
    """Policies of a pool, with their seeds and goal."""

    sweep: SweepQuestion
    pool: int
    names: Sequence[str]

    @classmethod
    def of(
        cls,
        template: Template,
        given: Sequence[Any],
        wanted: tuple[str | None, int | None],
        n_seeds: int | None,
        goal_frac: float,
        effort: Effort,
    ) -> "AutoscaleQuestion":
        """Return the question about each policy. Raises SimserveError before anything runs.

        given: names, files and mappings; text may list several. wanted: the pool, and its most replicas. n_seeds: None:
        as many as MOST_RUNS allow, with draws of costs.
        """
        scenario, (pool, most_replicas) = Scenario.of(template), wanted
        place = pool_of(scenario, pool)
        every = [each for one in given for each in _listed(one)]
        if not every:
            raise _problem("needs at least one policy", None, f"for example {','.join([*PRESETS][:3])}")
        policies = _numbered([_policy(scenario, place, each, most_replicas) for each in every])
        points = [SweepPoint(number, policy.overrides(place)) for number, policy in enumerate(policies)]
        n_each, first = MOST_RUNS // len(policies), LOOKS[0]
        n_draws = 0 if effort.by == "noise" else min(first, max(FEWEST_DRAWS, n_each - first - 1))
        n = n_seeds or min(first, max(FEWEST_SEEDS, n_each - n_draws - 1))
        effort = replace(effort, most_runs=max(effort.most_runs, n), n_draws=n_draws)
        question = SweepQuestion(resolved(template, points), n, goal_frac, effort)
        return cls(question, place, [policy.name for policy in policies])

    def answer(self, **results: Any) -> AutoscaleAnswer:
        """Return the answer about this pool."""
        first = self.sweep.first
        return AutoscaleAnswer(
            version=__version__,
            scenario=ScenarioName(name=first.name, digest=first.digest, seed=first.seed),
            pool=first.cluster.pools[self.pool].name,
            goal_frac=self.sweep.goal_frac,
            slo=first.slo.default.given or None,
            **results,
        )


def pool_of(scenario: Scenario, name: str | None) -> int:
    """Return the number of the pool to scale: the named one, the first with an autoscaler, or the first."""
    if scenario.cluster.autoscaler is not None:
        rule, remedy = "scales several pools, and policies here are of one", "add --set cluster.autoscaler=null"
        raise ScenarioError([Problem("cluster.autoscaler", rule, None, remedy)])
    pools = scenario.cluster.pools
    names = [pool.name for pool in pools]
    if name is not None and name not in names:
        remedy = f"use {' or '.join(names)}"
        raise ScenarioError([Problem("command line --pool", "there is no such pool", name, remedy)])
    if name is not None:
        return names.index(name)
    return next((place for place, pool in enumerate(pools) if pool.autoscaler), 0)


def most_of(scenario: Scenario, pool: int, most_replicas: int | None) -> int:
    """Return the most replicas of a policy that does not say it: those given, or as its own autoscaler has."""
    setup = scenario.setups[pool]
    own = None if setup.autoscaler is None else setup.autoscaler.most_replicas(setup.gpus_per_replica)
    return most_replicas or own or GROWTH * setup.n_replicas


def _listed(given: Any) -> Sequence[Any]:
    """Return the policies of one option: names, files, and mappings in YAML."""
    match given:
        case str():
            try:
                values: Sequence[Any] = scalar(f"[{given}]")
            except NotYaml:
                raise _problem("its policies cannot be read as YAML", given, "separate names by commas") from None
            return values
    return [given]


def _numbered(policies: Sequence[Policy]) -> list[Policy]:
    """Return policies with distinct names: `hpa`, `hpa 2`."""
    names = [policy.name for policy in policies]
    n_before = [names[:place].count(name) for place, name in enumerate(names)]
    return [
        policy._replace(name=f"{policy.name} {n + 1}") if n else policy
        for n, policy in zip(n_before, policies, strict=True)
    ]


def _policy(scenario: Scenario, place: int, given: Any, most_replicas: int | None) -> Policy:
    """Return a policy by what an option says."""
    own, n = scenario.setups[place].autoscaler, scenario.cluster.pools[place].replicas
    match given:
        case {"kind": kind}:
            return Policy(str(kind), dict(given), n)
        case "own" if own is None:
            raise _problem("the scenario has no autoscaler of its own", OWN, "leave it out, or name another")
        case "own":
            return Policy(OWN, scenario.cluster.pools[place].autoscaler, n)
        case "fixed":
            return Policy(FIXED, None, n)
        case str() if given.startswith(f"{FIXED}:") and given.partition(":")[2].isdecimal():
            return Policy(given, None, int(given.partition(":")[2]))
        case str() if given.endswith((".yaml", ".yml", ".json")):
            return Policy(given, {"manifest": given}, n)
        case str() if not given.startswith(FIXED):
            most = most_of(scenario, place, most_replicas)
            budget = {"max_gpu_budget": most * scenario.setups[place].gpus_per_replica}
            limit = budget if given == "dynamo_planner" else {"max_replicas": most}
            return Policy(given, {"kind": given, **PRESETS.get(given, {}), **limit}, n)
    raise _problem("must be a name, a manifest, `fixed:4` or a mapping with `kind`", str(given), "for example hpa,keda")


def autoscale_facts(question: AutoscaleQuestion, sweep: Sweep) -> AutoscaleAnswer:
    """Return what `autoscale.json` holds."""
    points = sweep.points
    rows = [_row(question, name, point) for name, point in zip(question.names, points, strict=True)]
    known = [place for place, row in enumerate(rows) if row.usd_per_hour is not None and row.attained_frac is not None]
    front = pareto_front([rows[i].usd_per_hour or 0.0 for i in known], [rows[i].attained_frac or 0.0 for i in known])
    on_front = {known[place] for place in front}
    best = min((i for i in known if rows[i].word == "meets"), key=lambda i: rows[i].usd_per_hour or inf, default=None)
    settings = None if best is None else rows[best].settings
    return question.answer(
        n_runs=sum(len(each.rows) + len(each.cost_rows) for each in points),
        best=best,
        policies=[row.model_copy(update={"on_front": i in on_front}) for i, row in enumerate(rows)],
        yaml=None if settings is None else yaml_text({"autoscaler": dict(settings)}, {}),
        manifest=None if settings is None else manifest_text(settings),
    )


def _row(question: AutoscaleQuestion, name: str, point: PointRuns) -> ScaledFleet:
    """Return what a policy made of the load."""
    runs = point.finished
    changes = [run.scaling for run in runs if run.scaling is not None]
    scenario = point.point.scenario
    own = None if scenario is None else scenario.cluster.pools[question.pool].autoscaler
    reasons = dict.fromkeys(row.reason for row in point.rows if row.reason)
    judged = point.judged
    cycles = [each.cycle_s for each in changes if each.cycle_s is not None]
    return ScaledFleet(
        policy=name,
        settings=own,
        word=None if judged is None else judged.word,
        reason="; ".join(reasons) or None,
        attained_frac=None if point.answer is None else point.answer.attained_frac,
        usd_per_hour=_mean([run.usd_per_hour for run in runs]),
        mean_gpus=_mean([run.mean_gpus for run in runs]),
        gpu_hours=_mean([run.gpu_hours for run in runs]),
        n_scalings=_mean([each.n_scalings for each in changes]) if changes else (0.0 if runs else None),
        cycle_s=_mean(cycles) if 2 * len(cycles) > len(changes) else None,
        below_s=_of(runs, "below_s"),
        longest_below_s=_of(runs, "longest_below_s"),
        n_failed=_mean([float(run.n_failed) for run in runs]),
        n_seeds=len(runs),
        decision=judged,
    )


def _of(runs: Sequence[FinishedRun], name: str) -> float | None:
    """Return the mean of a figure of scaling; None where a run lacks it."""
    return _mean([getattr(run.scaling, name, None) for run in runs])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and not isnan(value)]
    return fmean(known) if known and len(known) == len(values) else None


def _problem(rule: str, value: str | None, remedy: str) -> ScenarioError:
    return ScenarioError([Problem("command line --policy", rule, value, remedy)])
