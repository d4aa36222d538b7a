"""The workload section and its rules: exactly one source of requests, an end, and a measured window."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from simserve import plugins
from simserve.catalog.types import Chance, Count, Name, Natural, NotNegative, PluginSpec, Positive, Section, Share
from simserve.plugins.validation import ValueProblem
from simserve.scenario import traffic
from simserve.scenario.draft import Draft
from simserve.scenario.trace_file import TraceFile, resolve_trace
from simserve.units import LONGEST_S
from simserve.workload.size import expected_requests, why_too_many

SESSIONS_LAST_S = 1800.0
"""How long sessions of a trace are begun, if the user does not say; as in AgentX."""

SOURCES = ("arrivals", "trace", "client")

Traffic = TypeVar("Traffic", traffic.TrafficClass, traffic.Batch)


class Workload(Section):
    """The load: exactly one of arrivals, trace and client; or a trace of sessions, begun by one of the others."""

    arrivals: PluginSpec | None = None
    """Arrival process of requests, or of sessions, with `lengths`; null: `trace` or `client` is given."""
    trace: TraceFile | None = None
    """Recorded load to replay, with its own lengths; null: `arrivals` or `client` is given."""
    client: dict[str, Any] | None = None
    """Clients of a closed loop, which wait for answers, with `lengths`; null: `arrivals` or `trace` is given."""
    lengths: PluginSpec | None = None
    """Lengths of prompts and answers; with `prefixes`, of the new part of prompts. null: a trace or all classes have
    their own."""
    prefixes: PluginSpec | None = None
    """What prompts begin with, before the new part that `lengths` draws; null: no prompts share a prefix."""
    classes: dict[Name, traffic.TrafficClass] = {}
    """Classes of requests by name, with the share of each; none by default."""
    tenants: dict[Name, Share] = {}
    """[share] Share of requests of each tenant, by name; the shares sum to 1. None by default."""
    batch: traffic.Batch | None = None
    """Batch jobs that run alongside; null: none."""
    duration_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    """[s] Time at which the load ends; null: at `n_requests`, or with the trace, or after 1800 s of its sessions."""
    n_requests: Count | None = None
    """Number of requests at which the load ends, without those of batch jobs (`vllm bench serve --num-prompts`); null:
    at `duration_s`, or with the trace."""
    max_tokens: Count | None = None
    """[tokens] Output limit of every request without one in the trace; null: the model's limit."""
    structured_frac: Chance | None = None
    """[share] Share of requests with structured output, as of JSON schemas: on average, each step masks the tokens of
    that share of its requests; null: none."""
    drain_limit_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    """[s] How long the run may continue after the last arrival; null: until all requests are done."""
    timeout: traffic.Timeout | None = None
    """When clients give up on a request; null: never."""
    retries: traffic.Retries | None = None
    """How clients retry what was rejected or timed out; null: they do not."""

    @property
    def is_replayed(self) -> bool:
        """Whether a trace is sent at its own times, the same at every seed."""
        return self.trace is not None and self.arrivals is None and self.client is None


class MeasureSection(Section):
    """The part of the run that is measured, and its replays."""

    warmup_s: NotNegative | Literal["auto"] | None = None
    """[s] Time before which arrivals are simulated but not measured; `auto`: found in the run by MSER-5; null: none."""
    warmup_requests: Natural | None = None
    """Number of first requests that are simulated but not measured; null: none (`vllm bench serve --num-warmups`)."""
    replays: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Replays with perturbed costs, for prediction intervals: 0 for none, else at least 2; null: 8."""

    @property
    def counts_all(self) -> bool:
        """Whether there is no warm-up to leave out."""
        return self.warmup_s is None and self.warmup_requests is None


def resolve_workload(
    draft: Draft, workload: Workload, measure: MeasureSection, admission: PluginSpec | None
) -> Workload:
    """Return the workload with plug-ins spelled out and absolute paths, as far as it has no problems."""
    if draft.problems.knows(draft.at):  # missing, or no mapping: already reported
        return workload
    _check_sources(draft, workload)
    is_open = workload.duration_s is None and workload.n_requests is None
    if is_open and workload.trace is not None and not workload.is_replayed:
        workload = workload.model_copy(update={"duration_s": SESSIONS_LAST_S})
    _check_end(draft, workload)
    is_closed = workload.client is not None
    has_admission = admission is not None
    traffic.check_clients(draft, workload.timeout, workload.retries, is_closed=is_closed, has_admission=has_admission)
    update: dict[str, Any] = {
        "arrivals": _plugin(draft, "arrivals", workload.arrivals),
        "lengths": _plugin(draft, "lengths", workload.lengths),
        "prefixes": _plugin(draft, "prefixes", workload.prefixes, is_closed=is_closed),
        "classes": {name: _with_lengths(draft.below("classes", name), part) for name, part in workload.classes.items()},
        "batch": workload.batch and _with_lengths(draft.below("batch"), workload.batch),
        "client": traffic.resolve_client(draft.below("client"), workload.client),
        "trace": resolve_trace(draft.below("trace"), workload.trace, workload.arrivals, workload.client),
    }
    _check_measure(draft, measure, workload)
    traffic.check_shares(draft.below("classes"), {name: part.share for name, part in workload.classes.items()})
    traffic.check_shares(draft.below("tenants"), workload.tenants)
    has_trace, has_prefixes = workload.trace is not None, workload.prefixes is not None
    traffic.check_lengths(draft.below("classes"), workload.classes, has_trace=has_trace, has_prefixes=has_prefixes)
    traffic.check_batch(draft.below("batch"), workload.batch, workload.duration_s)
    resolved = workload.model_copy(update=update)
    _check_size(draft, resolved)
    return resolved


def _check_size(draft: Draft, workload: Workload) -> None:
    """Check that a run of the load is possible, before anything is drawn."""
    if draft.touched():
        return
    n_requests = expected_requests(workload)
    wrong = None if n_requests is None else why_too_many(n_requests)
    if wrong is not None:
        key = next(key for key in ("n_requests", "arrivals", "client") if getattr(workload, key) is not None)
        rule, value, remedy = wrong
        draft.problems.add(ValueProblem((*draft.at, key), rule, value, remedy, is_conflict=True))


def _check_sources(draft: Draft, workload: Workload) -> None:
    """Check for exactly one of arrivals, trace and client; the two without lengths of their own need `lengths`."""
    given = [key for key in SOURCES if getattr(workload, key) is not None]
    wrong = [key for key in SOURCES if draft.problems.knows((*draft.at, key))]
    trace, pair = workload.trace, len(given) == 2
    has_one = len(given) == 1 or (pair and trace is not None and trace.next_turn == "after_answer")
    if given and not has_one:
        rule = f"needs exactly one of arrivals, trace and client, and has {' and '.join(given)}"
        begun = ", or give trace.next_turn: after_answer" if pair and trace is not None else ""
        but_one = " or ".join(given) if pair else "all of arrivals, trace and client but one"
        draft.problem((given[-1],), rule, None, f"leave out {but_one}{begun}")
    elif not given and not wrong and not draft.problems.has_unknown_key(draft.at):
        draft.problem((), "needs exactly one of arrivals, trace and client", None, "give one")
    if trace is not None and workload.lengths is not None and has_one:
        draft.problem(("lengths",), "a trace brings its own lengths", None, "leave it out")
    if trace is not None and workload.prefixes is not None and has_one:
        draft.problem(("prefixes",), "a trace brings its own prefixes", None, "leave it out")
    every_class_has_its_own = workload.classes and all(part.lengths for part in workload.classes.values())
    needs_lengths = bool(given) and not (has_one and trace is not None) and not every_class_has_its_own
    if needs_lengths and workload.lengths is None and not draft.touched("lengths"):
        remedy = "for example {kind: fixed, prompt_tokens: 1024, output_tokens: 128}"
        draft.problem(("lengths",), "is missing", None, remedy)


def _check_end(draft: Draft, workload: Workload) -> None:
    """Check that duration_s or n_requests ends the load, not both; a trace ends by itself."""
    if workload.duration_s is not None and workload.n_requests is not None:
        rule = "the load ends by duration_s or by n_requests, not both"
        draft.problem(("n_requests",), rule, None, "leave one of them out")
    is_open = workload.duration_s is None and workload.n_requests is None
    said_before = draft.touched("duration_s", "n_requests") or draft.problems.has_unknown_key(draft.at)
    if is_open and not said_before and (workload.arrivals is not None or workload.client is not None):
        draft.problem((), "must end", None, "give duration_s or n_requests")


def _check_measure(draft: Draft, measure: MeasureSection, workload: Workload) -> None:
    """Check that the warm-up leaves a window to measure."""
    measured = draft.root.below("measure")
    if measure.replays == 1:
        measured.problem(("replays",), "one replay gives no interval", 1, "use 0 for none, or 2 at least")
    warmup_s, warmup_requests = measure.warmup_s, measure.warmup_requests
    if warmup_s is not None and warmup_requests is not None:
        measured.problem(("warmup_requests",), "give warmup_s or warmup_requests, not both", None, "leave one out")
    if warmup_s is not None and warmup_s != "auto":
        end_s, what = _expected_end(draft, workload)
        if end_s is not None and 0 < warmup_s >= end_s:
            measured.problem(("warmup_s",), f"must be less than {what}", warmup_s, "nothing would be measured")
    if warmup_requests is not None and workload.n_requests is not None and warmup_requests >= workload.n_requests:
        rule = f"must be less than workload.n_requests, {workload.n_requests}"
        measured.problem(("warmup_requests",), rule, warmup_requests, "nothing would be measured")


def _expected_end(draft: Draft, workload: Workload) -> tuple[float | None, str]:
    """Return the approximate time of the last arrival, if known, and its description."""
    if workload.duration_s is not None:
        return workload.duration_s, f"workload.duration_s, {workload.duration_s:g} s"
    rate_per_s: Any = (workload.arrivals or {}).get("rate_per_s")
    is_known = isinstance(rate_per_s, int | float) and rate_per_s > 0 and not draft.touched("arrivals")
    if workload.n_requests is None or not is_known:
        return None, ""
    end_s = float(workload.n_requests / rate_per_s)
    return end_s, f"the run: {workload.n_requests} requests at {rate_per_s:g} per second take about {end_s:g} s"


def _with_lengths(draft: Draft, part: Traffic) -> Traffic:
    """Return a class, or batch traffic, with its lengths spelled out."""
    lengths = None if draft.touched() else _plugin(draft, "lengths", part.lengths)
    return part.model_copy(update={"lengths": lengths})


def _plugin(
    draft: Draft, key: str, spec: Mapping[str, Any] | None, *, is_closed: bool = False
) -> Mapping[str, Any] | None:
    """Return an arrival process, a length distribution or a prefix structure with all its arguments."""
    if spec is None:
        return None
    spec = dict(spec)
    texts = {key: value for key, value in spec.items() if isinstance(value, str)}
    files = [key for key, text in texts.items() if key == "path" or (key == "name" and text.endswith(".json"))]
    for argument in files:
        file = draft.find_file(spec[argument])
        if file is None:
            remedy = f"looked in {draft.looked_in()}"
            draft.problem((key, argument), "there is no such file", spec[argument], remedy)
            return spec
        spec[argument] = str(file)
    plugin, problems = plugins.check(f"workload.{key}", spec)
    draft.problems.extend(problems, (*draft.at, key))
    if is_closed and getattr(plugin, "needs_arrivals", False):
        rule = "needs arrivals, as it sets arrival times; closed-loop clients send when they are answered"
        turns = "next_turn: after_answer, or " if spec["kind"] == "conversations" else ""
        draft.problem((key,), rule, spec["kind"], f"give {turns}workload.arrivals in place of workload.client")
    return spec if plugin is None else {"kind": spec["kind"], **plugins.spelled_out(plugin)}
