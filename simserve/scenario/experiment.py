"""Experiment: one experiment as data; the rules of its own keys, the SLO targets and the dtypes of weights."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, PrivateAttr

from simserve import catalog
from simserve.catalog.specs import ModelSpec
from simserve.catalog.types import Positive, Section
from simserve.errors import CatalogError
from simserve.plugins.validation import Path, did_you_mean
from simserve.scenario.cluster import ClusterSection
from simserve.scenario.draft import Draft
from simserve.scenario.pool import Defaults
from simserve.scenario.setup import PoolSetup
from simserve.scenario.workload import MeasureSection, Workload
from simserve.schedulers.base import Scheduler

FLOAT8 = frozenset({"fp8", "fp8_block"})
"""Dtypes of the same size. A checkpoint in fp8_block is often called fp8, and its kernels follow its scales."""


def _with_classes(value: Any) -> Any:
    """Expand `{ttft_s: 0.5}` to `{default: {ttft_s: 0.5}}`."""
    is_full = not isinstance(value, Mapping) or value.keys() & {"default", "classes"}
    return value if is_full else {"default": value}


class Targets(Section):
    """Latency limits of a request; null: not checked."""

    ttft_s: Positive | None = None
    """[s] Limit on the time to first token."""
    tpot_s: Positive | None = None
    """[s] Limit on the mean time per output token after the first."""
    e2e_s: Positive | None = None
    """[s] Limit on the time from sending a request to its last token."""
    itl_s: Positive | None = None
    """[s] Limit on the longest gap between two tokens of a request."""

    @property
    def given(self) -> dict[str, float]:
        """Limits that are checked."""
        return {key: limit for key, limit in self if limit is not None}


class Slo(Section):
    """Latency limits of all requests, and those of named classes."""

    default: Targets = Targets()
    """Limits of all requests of classes without limits of their own."""
    classes: dict[str, Targets] = {}
    """Limits by the name of a class, in place of `default`; none by default."""


class Experiment(Defaults):
    """The keys of a scenario, before and after resolving, and the origins of their values."""

    cluster: ClusterSection = ClusterSection()
    """Pools of replicas, the routers and the admission policy; by default one pool of one replica."""
    workload: Workload
    """The load: its requests, their lengths, classes and clients."""
    measure: MeasureSection = MeasureSection()
    """The part of the run that is measured, and the replays for prediction intervals."""
    slo: Annotated[Slo, BeforeValidator(_with_classes)] = Slo()
    """Latency limits: those of all requests, or `default` and `classes`. A request must meet all limits of its class
    (`vllm bench serve --goodput`)."""

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _base_dir: FilePath = PrivateAttr(default_factory=FilePath)
    _notes: dict[Path, str] = PrivateAttr(default_factory=dict)
    """What of the files that sections name is not simulated."""

    def set_origins(self, origins: Mapping[str, str], base_dir: FilePath, notes: Mapping[Path, str]) -> None:
        """Record the origins of values, and the notes on files that they are from; only resolving calls this."""
        self._origins = dict(origins)
        self._base_dir = base_dir
        self._notes = dict(notes)

    @property
    def origins(self) -> Mapping[str, str]:
        """The origin of each value by dotted path: explicit, engine vllm, default, ..."""
        return self._origins

    @property
    def base_dir(self) -> FilePath:
        """The first folder that relative paths were looked up in; after resolving, all paths are absolute."""
        return self._base_dir


ExperimentT = TypeVar("ExperimentT", bound=Experiment)


def resolve_weight_dtype(draft: Draft, scenario: ExperimentT) -> ExperimentT:
    """Fill in the dtypes of checkpoints where neither scenario nor pool states one; report different ones."""
    shared_key = draft.below("weight_dtype")
    if shared_key.touched():
        return scenario
    is_stated, given = "weight_dtype" in scenario.model_fields_set, scenario.weight_dtype
    pools, shared = list(scenario.cluster.pools), dict[int, str]()
    models = dict(_models(draft, scenario))
    for index, (name, model) in models.items():
        own, here = pools[index].weight_dtype, draft.below("cluster", "pools", index, "weight_dtype")
        stated = own or (scenario.weight_dtype if is_stated else None)
        if stated is not None:
            _check_stated(shared_key if own is None else here, name, model, stated)
        is_meant = stated == "fp8" and model.weight_dtype == "fp8_block"
        dtype = "fp8_block" if is_meant else stated or model.weight_dtype or scenario.weight_dtype
        if own is None:
            shared[index] = dtype
        elif is_meant:
            pools[index] = pools[index].model_copy(update={"weight_dtype": dtype})
            draft.replaced[here.at] = _meant([model])
    if len(set(shared.values())) == 1:
        of = dict(models[index] for index in shared)
        (dtype,) = set(shared.values())
        scenario = scenario.model_copy(update={"weight_dtype": dtype})
        if is_stated and dtype != given:
            draft.replaced[shared_key.at] = _meant([*of.values()])
        elif not is_stated and any(model.weight_dtype for model in of.values()):
            shared_key.set_origin((), f"model {[*of.values()][-1].name}")
        shared = {}
    for index, dtype in shared.items():
        model = models[index][1]
        if is_stated and dtype == scenario.weight_dtype:
            continue
        pools[index] = pools[index].model_copy(update={"weight_dtype": dtype})
        of_model = f"model {model.name}" if model.weight_dtype else "default"
        draft.origins["cluster", "pools", index, "weight_dtype"] = _meant([model]) if is_stated else of_model
    cluster = scenario.cluster.model_copy(update={"pools": tuple(pools)})
    return scenario.model_copy(update={"cluster": cluster})


def _meant(models: list[ModelSpec]) -> str:
    """Say why fp8 of models that are published in fp8_block is that."""
    return f"fp8 of {' and '.join(model.name for model in models)} is scaled in blocks"


def _check_stated(draft: Draft, name: str, model: ModelSpec, stated: str) -> None:
    """Check a stated dtype against a config.json, which is one checkpoint; catalog models exist in many dtypes."""
    stored = model.weight_dtype
    is_file = name not in catalog.names("models")
    if is_file and stored not in (None, stated) and not {stored, stated} <= FLOAT8 and not draft.touched():
        rule = f"the weights of {model.name} are in {stored}, by its quantization_config"
        draft.problem((), rule, stated, f"leave it out, or give the config.json of a checkpoint in {stated}")


def _models(draft: Draft, scenario: Experiment) -> Iterator[tuple[int, tuple[str, ModelSpec]]]:
    """Yield the model of each pool with its name or path; unreadable ones are reported elsewhere."""
    for index, pool in enumerate(scenario.cluster.pools):
        name = pool.model or scenario.model
        try:
            yield index, (name, catalog.load_model(draft.absolute_model(name)))
        except CatalogError:
            continue


def check_slo_classes(draft: Draft, slo: Slo, workload: Workload) -> None:
    """Check that targets are for classes of the workload, as far as they are known before a trace is read."""
    for name, targets in slo.classes.items():
        if draft.touched(name):
            continue
        if not targets.given:
            remedy = "give ttft_s, tpot_s, itl_s or e2e_s; a class without urgency has a large e2e_s"
            draft.problem((name,), "needs a target", None, remedy)
        if workload.trace is None and name not in _named(workload) and not draft.problems.touch(("workload",)):
            remedy = did_you_mean(name, sorted(_named(workload))) if _named(workload) else "give workload.classes"
            draft.problem((name,), "no request is of this class", None, remedy)


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
