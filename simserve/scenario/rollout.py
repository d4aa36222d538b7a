"""Roll-outs: how the replicas of a pool are replaced by those of another version, and what that is."""

from collections.abc import Sequence
from math import ceil

from pydantic import model_validator

from simserve.catalog.types import Name, Natural, NotNegative, Section, Share
from simserve.scenario.draft import Draft
from simserve.scenario.fleet import Instant
from simserve.scenario.pool import Defaults, Pool
from simserve.scenario.resolve_pool import resolve_pool

KEPT = ("role", "replicas", "autoscaler", "spares", "startup", "shutdown")
"""Keys of a pool that the roll-out takes over."""


class Canary(Section):
    """A first part of a roll-out, which stays for a while before the rest follows."""

    share: Share | None = None
    """[share] Share of the replicas, at least one (the weight of Argo Rollouts without a traffic router); null: that of
    the traffic, rounded up."""
    traffic_frac: Share | None = None
    """[share] Probability that a request goes there (the weight of Argo Rollouts with a traffic router). The replicas
    are then beyond `max_surge`, as the old version keeps its own. Null: the router picks among all."""
    for_s: NotNegative
    """[s] Time from when all of them serve until the rest follows."""

    @model_validator(mode="after")
    def _has_share(self) -> "Canary":
        if self.share is None and self.traffic_frac is None:
            raise ValueError("must have share, of the replicas, or traffic_frac, of the requests")
        return self

    def n_of(self, wanted: int) -> int:
        """Return its replicas among those that a pool shall have."""
        n = round(self.share * wanted) if self.share is not None else ceil((self.traffic_frac or 0.0) * wanted - 1e-9)
        return min(wanted, max(1, n))


class RolloutSection(Section):
    """A rolling update, as a Deployment of Kubernetes does it."""

    at_s: Instant
    """[s] When it begins."""
    pool: Name | None = None
    """Pool of which the replicas are replaced; null: the only one."""
    to: Pool = Pool()
    """Keys of the pool that change, such as `engine: {version: "0.19"}`; none: its replicas only start anew. Its name
    is that of the pool with `-new`."""
    max_surge: Natural = 1
    """Most replicas beyond those wanted (`maxSurge`)."""
    max_unavailable: Natural = 0
    """Most replicas that may be missing (`maxUnavailable`)."""
    canary: Canary | tuple[Canary, ...] | None = None
    """Part that is replaced first, or several steps; null: none."""

    @property
    def steps(self) -> tuple[Canary, ...]:
        """The canary's steps."""
        match self.canary:
            case Canary():
                return (self.canary,)
        return self.canary or ()


def resolve_rollout(draft: Draft, rollout: RolloutSection, pools: Sequence[Pool], defaults: Defaults) -> RolloutSection:
    """Return a roll-out with its pool, and all keys of the new version."""
    names = [pool.name for pool in pools]
    own = names[0] if rollout.pool is None and len(names) == 1 else rollout.pool
    if own not in names:
        draft.problem(("pool",), "must be one of the pools", own, f"use {' or '.join(names)}")
        return rollout
    if len({step.traffic_frac is None for step in rollout.steps}) > 1:
        draft.problem(("canary",), "gives some of its steps a traffic_frac, and others none", None, "give it to all")
    if not rollout.max_surge and not rollout.max_unavailable:
        draft.problem(("max_surge",), "with max_unavailable: 0 replaces nothing", 0, "give at least 1 to one of them")
    before, to = pools[names.index(own)], rollout.to
    for key in to.model_fields_set.intersection(KEPT):
        if getattr(to, key) not in (getattr(before, key), Pool.model_fields[key].default):
            draft.problem(("to", key), f"stays that of pool {own} in a roll-out", None, "leave it out")
    if before.role != "both" and to.model not in (None, before.model):
        rule = "a pool with a role keeps its model, as its KV cache serves the other"
        draft.problem(("to", "model"), rule, to.model, "leave it out")
    changed = {key: getattr(to, key) for key in to.model_fields_set.difference((*KEPT, "name"))}
    name = to.name if "name" in to.model_fields_set else f"{own}-new"
    if name in names:
        draft.problem(("to", "name"), "must differ from the pools' names", name, "rename it")
    new = before.model_copy(update=changed | {"name": name, "replicas": 1} | dict.fromkeys(KEPT[2:]))
    return rollout.model_copy(update={"pool": own, "to": resolve_pool(draft.below("to"), defaults, new)})
