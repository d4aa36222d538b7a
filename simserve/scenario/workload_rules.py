"""Resolve the workload and check it: exactly one source of requests, an end, and a measured window."""

import hashlib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from simserve import plugins
from simserve.input_files import open_file
from simserve.plugins.validation import Path, ValueProblem, as_json, problems_of
from simserve.scenario.draft import Draft
from simserve.scenario.models import Batch, ClosedLoop, TraceFile, TrafficClass, Workload
from simserve.scenario.traffic import check_traffic
from simserve.workload.size import expected_requests, why_too_many

SOURCES = ("arrivals", "trace", "client")
AT: Path = ("workload",)
ADMISSION: Path = ("cluster", "admission")
TIMEOUT: Path = ("workload", "timeout")
RETRIES: Path = ("workload", "retries")

Traffic = TypeVar("Traffic", TrafficClass, Batch)


def resolve_workload(draft: Draft) -> Workload:
    """Return the workload with plug-ins spelled out and absolute paths, as far as it has no problems."""
    workload = draft.scenario.workload
    if draft.problems.knows(AT):  # missing, or no mapping: already reported
        return workload
    _check_sources(draft, workload)
    _check_end(draft, workload)
    _check_clients(draft, workload)
    update: dict[str, Any] = {
        "arrivals": _plugin(draft, "arrivals", workload.arrivals),
        "lengths": _plugin(draft, "lengths", workload.lengths),
        "prefixes": _plugin(draft, "prefixes", workload.prefixes),
        "classes": {name: _with_lengths(draft, part, "classes", name) for name, part in workload.classes.items()},
        "batch": workload.batch and _with_lengths(draft, workload.batch, "batch"),
        "client": _client(draft, workload.client),
        "trace": _trace(draft, workload.trace),
    }
    _check_measure(draft, workload)
    check_traffic(draft, workload)
    resolved = workload.model_copy(update=update)
    _check_size(draft, resolved)
    return resolved


def _check_size(draft: Draft, workload: Workload) -> None:
    """Check that a run of the load is possible, before anything is drawn."""
    if draft.problems.touch(AT):
        return
    n_requests = expected_requests(workload)
    wrong = None if n_requests is None else why_too_many(n_requests)
    if wrong is not None:
        key = next(key for key in ("n_requests", "arrivals", "client") if getattr(workload, key) is not None)
        rule, value, remedy = wrong
        draft.problems.add(ValueProblem((*AT, key), rule, value, remedy, is_conflict=True))


def _check_sources(draft: Draft, workload: Workload) -> None:
    """Check for exactly one of arrivals, trace and client; the two without lengths of their own need `lengths`."""
    given = [key for key in SOURCES if getattr(workload, key) is not None]
    wrong = [key for key in SOURCES if draft.problems.knows((*AT, key))]
    if len(given) > 1:
        rule = f"needs exactly one of arrivals, trace and client, and has {' and '.join(given)}"
        draft.problem((*AT, given[-1]), rule, None, f"leave out {_but_one(given)}")
    elif not given and not wrong and not draft.problems.has_unknown_key(AT):
        draft.problem(AT, "needs exactly one of arrivals, trace and client", None, "give one")
    if "trace" in given and workload.lengths is not None and len(given) == 1:
        draft.problem((*AT, "lengths"), "a trace brings its own lengths", None, "leave it out")
    if "trace" in given and workload.prefixes is not None and len(given) == 1:
        draft.problem((*AT, "prefixes"), "a trace brings its own prefixes", None, "leave it out")
    every_class_has_its_own = workload.classes and all(part.lengths for part in workload.classes.values())
    needs_lengths = ("arrivals" in given or "client" in given) and not every_class_has_its_own
    if needs_lengths and workload.lengths is None and not draft.problems.touch((*AT, "lengths")):
        remedy = "for example {kind: fixed, prompt_tokens: 1024, output_tokens: 128}"
        draft.problem((*AT, "lengths"), "is missing", None, remedy)


def _but_one(given: list[str]) -> str:
    *most, last = given
    return f"{', '.join(most)} or {last}" if len(given) == 2 else f"all of {', '.join(most)} and {last} but one"


def _check_end(draft: Draft, workload: Workload) -> None:
    """Check that duration_s or n_requests ends the load, not both; a trace ends by itself."""
    if workload.duration_s is not None and workload.n_requests is not None:
        draft.problem(
            (*AT, "n_requests"), "the load ends by duration_s or by n_requests, not both", None, "leave one of them out"
        )
    is_open = workload.duration_s is None and workload.n_requests is None
    said_before = draft.problems.touch((*AT, "duration_s"), (*AT, "n_requests")) or draft.problems.has_unknown_key(AT)
    if is_open and not said_before and (workload.arrivals is not None or workload.client is not None):
        draft.problem(AT, "must end", None, "give duration_s or n_requests")


def _check_clients(draft: Draft, workload: Workload) -> None:
    """Check that timeouts, retries and admission do not contradict each other."""
    _check_timeout(draft, workload)
    retries, admission = workload.retries, draft.scenario.cluster.admission
    is_idle = retries is not None and workload.timeout is None and admission is None
    if is_idle and not draft.problems.touch(TIMEOUT, ADMISSION):
        rule = "retries need requests that are rejected or time out"
        draft.problem(RETRIES, rule, None, "give workload.timeout or cluster.admission, or leave it out")
    if admission is None or workload.client is None or draft.problems.touch(RETRIES):
        return
    if retries is None or not retries.backoff_s:
        rule = "a closed-loop client that is rejected retries at once, endlessly"
        draft.problem(ADMISSION, rule, None, "give workload.retries with a backoff_s above 0")


def _check_timeout(draft: Draft, workload: Workload) -> None:
    timeout = workload.timeout
    if timeout is None or draft.problems.touch(TIMEOUT):
        return
    if timeout.ttft_s is None and timeout.e2e_s is None:
        draft.problem(TIMEOUT, "needs ttft_s, e2e_s or both", None, "for example {ttft_s: 10, e2e_s: 60}")
    elif timeout.ttft_s is not None and timeout.e2e_s is not None and timeout.ttft_s >= timeout.e2e_s:
        rule = f"must be less than e2e_s, {timeout.e2e_s:g}, or it never applies"
        draft.problem((*TIMEOUT, "ttft_s"), rule, timeout.ttft_s, "lower it, or leave it out")


def _check_measure(draft: Draft, workload: Workload) -> None:
    """Check that the warm-up leaves a window to measure."""
    measure = draft.scenario.measure
    if measure.replays == 1:
        draft.problem(("measure", "replays"), "one replay gives no interval", 1, "use 0 for none, or 2 at least")
    warmup_s, warmup_requests = measure.warmup_s, measure.warmup_requests
    if warmup_s is not None and warmup_requests is not None:
        draft.problem(
            ("measure", "warmup_requests"), "give warmup_s or warmup_requests, not both", None, "leave one out"
        )
    if warmup_s is not None and warmup_s != "auto":
        end_s, what = _expected_end(draft, workload)
        if end_s is not None and 0 < warmup_s >= end_s:
            draft.problem(("measure", "warmup_s"), f"must be less than {what}", warmup_s, "nothing would be measured")
    if warmup_requests is not None and workload.n_requests is not None and warmup_requests >= workload.n_requests:
        rule = f"must be less than workload.n_requests, {workload.n_requests}"
        draft.problem(("measure", "warmup_requests"), rule, warmup_requests, "nothing would be measured")


def _expected_end(draft: Draft, workload: Workload) -> tuple[float | None, str]:
    """Return the approximate time of the last arrival, if known, and its description."""
    if workload.duration_s is not None:
        return workload.duration_s, f"workload.duration_s, {workload.duration_s:g} s"
    rate_per_s: Any = (workload.arrivals or {}).get("rate_per_s")
    is_known = isinstance(rate_per_s, int | float) and rate_per_s > 0 and not draft.problems.touch((*AT, "arrivals"))
    if workload.n_requests is None or not is_known:
        return None, ""
    end_s = float(workload.n_requests / rate_per_s)
    return end_s, f"the run: {workload.n_requests} requests at {rate_per_s:g} per second take about {end_s:g} s"


def _with_lengths(draft: Draft, part: Traffic, *where: str) -> Traffic:
    """Return a class, or batch traffic, with its lengths spelled out."""
    lengths = None if draft.problems.touch((*AT, *where)) else _plugin(draft, "lengths", part.lengths, (*AT, *where))
    return part.model_copy(update={"lengths": lengths})


def _plugin(draft: Draft, key: str, spec: Mapping[str, Any] | None, at: Path = AT) -> Mapping[str, Any] | None:
    """Return an arrival process, a length distribution or a prefix structure with all its arguments."""
    if spec is None:
        return None
    spec = dict(spec)
    for argument in _files_among(spec):
        file = draft.find_file(spec[argument])
        if file is None:
            remedy = f"looked in {draft.looked_in()}"
            draft.problem((*at, key, argument), "there is no such file", spec[argument], remedy)
            return spec
        spec[argument] = str(file)
    plugin, problems = plugins.check(f"workload.{key}", spec)
    draft.problems.extend(problems, (*at, key))
    if getattr(plugin, "needs_arrivals", False) and draft.scenario.workload.client is not None:
        rule = "needs arrivals, as it sets arrival times; closed-loop clients send when they are answered"
        turns = "next_turn: after_answer, or " if spec["kind"] == "conversations" else ""
        draft.problem((*at, key), rule, spec["kind"], f"give {turns}workload.arrivals in place of workload.client")
    return spec if plugin is None else {"kind": spec["kind"], **plugins.spelled_out(plugin)}


def _files_among(spec: Mapping[str, Any]) -> list[str]:
    """List the arguments that are files: a path, or the .json name of a profile."""
    texts = {key: value for key, value in spec.items() if isinstance(value, str)}
    return [key for key, value in texts.items() if key == "path" or (key == "name" and value.endswith(".json"))]


def _client(draft: Draft, client: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the checked closed loop."""
    if client is None:
        return None
    try:
        return ClosedLoop.model_validate_json(as_json(client), strict=True).model_dump(exclude_none=True)
    except ValidationError as error:
        draft.problems.extend(problems_of(error, client), (*AT, "client"))
        return dict(client)


def _trace(draft: Draft, trace: TraceFile | None) -> TraceFile | None:
    """Return the trace with its absolute path and hash."""
    at = (*AT, "trace")
    if trace is None or draft.problems.knows((*at, "path")):
        return trace
    path = draft.find_file(trace.path)
    if path is None:
        draft.problem((*at, "path"), "there is no such file", trace.path, f"looked in {draft.looked_in()}")
        return trace
    try:
        with open_file(path) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        draft.problem((*at, "path"), f"cannot be read: {error.strerror}", trace.path)
        return trace
    if trace.sha256 is not None and trace.sha256 != sha256:
        remedy = "restore it, or remove this line to replay what is there now"
        draft.problem((*at, "sha256"), f"the file {path.name} has changed: its SHA-256 is now {sha256}", None, remedy)
    draft.origins[*at, "sha256"] = "the file"
    return trace.model_copy(update={"path": str(path), "sha256": sha256})
