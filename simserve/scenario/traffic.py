"""Check classes, tenants and batch traffic: shares sum to one, and every name is used."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from simserve.plugins.validation import Path, did_you_mean
from simserve.scenario.draft import Draft
from simserve.scenario.models import Slo, Workload
from simserve.scenario.setup import PoolSetup
from simserve.schedulers.base import Scheduler

AT: Path = ("workload",)


def check_traffic(draft: Draft, workload: Workload) -> None:
    """Check the workload's classes, tenants, lengths and batch jobs."""
    _check_shares(draft, "classes", {name: part.share for name, part in workload.classes.items()})
    _check_shares(draft, "tenants", workload.tenants)
    _check_own_lengths(draft, workload)
    _check_batch(draft, workload)


def _check_shares(draft: Draft, key: str, shares: Mapping[str, float]) -> None:
    total = math.fsum(shares.values())
    if shares and not draft.problems.touch((*AT, key)) and abs(total - 1) > 1e-9:
        remedy = f"make the shares of {' and '.join(shares)} come to 1"
        draft.problem((*AT, key), "shares must sum to one", round(total, 9), remedy)


def _check_own_lengths(draft: Draft, workload: Workload) -> None:
    """Check that lengths of a class can be drawn for each request on its own."""
    for name, part in workload.classes.items():
        at = (*AT, "classes", name, "lengths")
        if part.lengths is None:
            continue
        if workload.trace is not None:
            draft.problem(at, "a trace brings its own lengths", None, "leave it out")
        elif workload.prefixes is not None:
            rule = "with prefixes, lengths are drawn before requests get their class"
            draft.problem(at, rule, None, "leave it out, or leave out workload.prefixes")


def _check_batch(draft: Draft, workload: Workload) -> None:
    batch = workload.batch
    if batch is None or draft.problems.touch((*AT, "batch")):
        return
    last_s = (max(batch.at_s) if isinstance(batch.at_s, tuple) else batch.at_s) + batch.over_s
    if workload.duration_s is not None and last_s > workload.duration_s:
        rule = f"at_s + over_s must be at most workload.duration_s, {workload.duration_s:g}"
        draft.problem((*AT, "batch"), rule, last_s, "the load ends there")


def check_slo_classes(draft: Draft) -> None:
    """Check that targets are for classes of the workload, as far as they are known before a trace is read."""
    workload, classes = draft.scenario.workload, draft.scenario.slo.classes
    for name, targets in classes.items():
        at = ("slo", "classes", name)
        if draft.problems.touch(at):
            continue
        if not any(value is not None for _, value in targets):
            remedy = "give ttft_s, tpot_s, itl_s or e2e_s; a class without urgency has a large e2e_s"
            draft.problem(at, "needs a target", None, remedy)
        if workload.trace is None and name not in _named(workload) and not draft.problems.touch(AT):
            remedy = did_you_mean(name, sorted(_named(workload))) if _named(workload) else "give workload.classes"
            draft.problem(at, "no request is of this class", None, remedy)


def _named(workload: Workload) -> set[str]:
    """Return the classes that requests are given."""
    return {*workload.classes, *([workload.batch.slo_class] if workload.batch else [])}


def traffic_notes(
    slo: Slo, setups: Iterable[PoolSetup], labels: Mapping[str, Collection[object] | None]
) -> tuple[str, ...]:
    """Return notes on classes, priorities and tenants without effect. `labels`: the distinct values of each column of
    the load; None where it has no such column."""
    policies = [setup.scheduler for setup in setups if setup.role != "decode"]
    return (*_about_slo(slo, labels["slo_class"] or ()), *_about_order(policies, labels))


def _about_slo(slo: Slo, there: Collection[object]) -> Iterator[str]:
    unused = (name for name in slo.classes if name not in there)
    yield from (f"no request is of class {name}, which has targets in slo.classes" for name in unused)
    without = sorted(set(map(str, there)) - {"", *slo.classes}) if slo.classes else ()
    holds = "slo.default applies" if slo.default.given else "every finished request meets its SLO"
    yield from (f"class {name} has no targets of its own in slo.classes: {holds}" for name in without)


def _about_order(policies: Sequence[Scheduler], labels: Mapping[str, Collection[object] | None]) -> Iterator[str]:
    priorities, tenants = labels["priority"] or (), labels["tenant"]
    by_priority = any(getattr(policy, "policy", None) == "priority" for policy in policies)
    if len(priorities) > 1 and not by_priority:
        yield "requests have priorities and no scheduler uses them: set chunked with policy: priority"
    if by_priority and len(priorities) < 2:
        yield "a scheduler orders by priority and all requests have the same one"
    if any(getattr(policy, "policy", None) == "vtc" for policy in policies) and not tenants:
        yield "policy vtc shares among tenants, and no request has one: give workload.tenants"
    shares = [getattr(policy, "vtc", None) for policy in policies]
    for name in sorted({name for share in shares if share is not None for name in share.tenant_weights}):
        if tenants and name not in tenants:
            yield f"no request is of tenant {name}, which vtc.tenant_weights names"
