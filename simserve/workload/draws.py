"""Draws: a synthetic load from arrival, length and prefix plug-ins, with checks of what they return."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from simserve import plugins
from simserve.errors import PolicyError, SimserveError, blame
from simserve.tables.columns import Flags, Floats, Ints
from simserve.workload.arrivals.base import Arrivals
from simserve.workload.lengths.base import Drawn, Lengths
from simserve.workload.prefixes.base import PrefixStructure
from simserve.workload.size import check_size, expected_arrivals
from simserve.workload.streams import Stream, streams
from simserve.workload.trace import MOST_TOKENS, Dependencies, Prefixes, Trace, check_arrivals

Spec = str | Mapping[str, Any]


def generate(
    arrivals: Spec,
    lengths: Spec,
    *,
    prefixes: Spec | None = None,
    n_requests: int | None = None,
    duration_s: float | None = None,
    seed: int = 0,
) -> Trace:
    """Generate n_requests requests, or duration_s seconds of them. Raises PolicyError for a wrong spec."""
    process: Arrivals = plugins.build("workload.arrivals", arrivals)
    prompts = Prompts.of(lengths, prefixes)
    stream = streams(seed)
    return prompts.draw(draw_arrivals(process, n_requests, duration_s, stream), duration_s, stream)


@dataclass(frozen=True)
class Prompts:
    """Prompts of requests: new parts and shared prefixes."""

    lengths: Lengths
    structure: PrefixStructure | None

    @classmethod
    def of(cls, lengths: Spec, prefixes: Spec | None) -> "Prompts":
        """Build the `lengths` and `prefixes` of a workload. Raises PolicyError for a wrong spec."""
        built: Lengths = plugins.build("workload.lengths", lengths)
        return cls(built, None if prefixes is None else plugins.build("workload.prefixes", prefixes))

    def draw(self, arrival_s: Floats, duration_s: float | None, stream: Stream) -> Trace:
        """Draw the requests, or conversations, that begin at these instants. Raises PolicyError."""
        if self.structure is not None:
            return draw_prefixes(self.structure, arrival_s, duration_s, self.lengths, stream)
        drawn = draw_lengths(self.lengths, len(arrival_s), stream)
        return Trace(arrival_s, drawn.prompt_tokens, drawn.output_tokens, notes=drawn.notes)


def draw_arrivals(process: Arrivals, n_requests: int | None, duration_s: float | None, stream: Stream) -> Floats:
    """Draw the first n instants, or all of so many seconds. Raises PolicyError for a process that breaks a rule, and
    TooManyArrivals for one that brings more than a run may have."""
    n = float(n_requests) if duration_s is None and n_requests else expected_arrivals(process, duration_s or 0.0)
    check_size(n, "workload.arrivals")
    if n_requests is not None and duration_s is None:
        return first_arrivals(process, n_requests, stream)
    if duration_s is not None and n_requests is None:
        return arrivals_until(process, duration_s, stream)
    raise ValueError(f"give n_requests or duration_s and not both, got {n_requests} and {duration_s}")


def first_arrivals(process: Arrivals, n: int, stream: Stream) -> Floats:
    """Return the first n instants in seconds, `(n,)`. Raises PolicyError."""
    arrival_s = _instants(process, "first", lambda: process.first(n, stream))
    _require(process, "first", len(arrival_s) == n, f"must return {n} instants", len(arrival_s))
    return arrival_s


def arrivals_until(process: Arrivals, duration_s: float, stream: Stream) -> Floats:
    """Return all instants up to duration_s. Raises PolicyError."""
    arrival_s = _instants(process, "until", lambda: process.until(duration_s, stream))
    last_s = arrival_s[-1] if len(arrival_s) else 0.0
    _require(process, "until", last_s <= duration_s, f"must end by {duration_s:g} s", last_s)
    return arrival_s


def draw_lengths(lengths: Lengths, n: int, stream: Stream) -> Drawn:
    """Draw the lengths of n requests. Raises PolicyError."""
    drawn = _requested(lengths, "draw", lambda: lengths.draw(n, stream))
    _require(lengths, "draw", isinstance(drawn, Drawn), "must return Drawn", drawn)
    _require(lengths, "draw", isinstance(drawn.notes, tuple | list), "notes must be a tuple of texts", drawn.notes)
    prompts, outputs = (_tokens(lengths, name, getattr(drawn, name), n) for name in ("prompt_tokens", "output_tokens"))
    return Drawn(prompts, outputs, tuple(map(str, drawn.notes)))


def draw_prefixes(
    structure: PrefixStructure, arrival_s: Floats, duration_s: float | None, lengths: Lengths, stream: Stream
) -> Trace:
    """Draw requests with the structure's shared prompts. Raises PolicyError."""
    new_parts, require = partial(draw_lengths, lengths, stream=stream), partial(_require, structure, "draw")
    trace: Any = _requested(structure, "draw", lambda: structure.draw(arrival_s, duration_s, new_parts, stream))
    require(isinstance(trace, Trace), "must return a Trace", trace)
    _instants(structure, "draw", lambda: trace.arrival_s)
    n = len(trace)
    if duration_s is None:
        require(n == len(arrival_s), f"must return {len(arrival_s)} requests", n)
    for name in ("prompt_tokens", "output_tokens"):
        _tokens(structure, name, getattr(trace, name), n)
    prefixes = trace.prefixes
    require(isinstance(prefixes, Prefixes), "must return a Trace with Prefixes", prefixes)
    require(len(prefixes) == n, f"must return prefixes of {n} requests", len(prefixes))
    too_many = prefixes.n_ids_of_rows() * prefixes.block_tokens > trace.prompt_tokens + trace.output_tokens
    rule = "a request must not have more ids than its prompt and answer have whole blocks"
    require(not too_many.any(), rule, f"row {int(np.argmax(too_many))}" if too_many.any() else None)
    _check_dependencies(structure, trace.dependencies, n)
    return cast(Trace, trace)


def _check_dependencies(structure: PrefixStructure, links: Any, n: int) -> None:
    """Check that each request waits only for earlier ones of its own session, so there is no cycle."""
    if links is None:
        return
    require = partial(_require, structure, "draw")
    require(isinstance(links, Dependencies), "dependencies must be Dependencies", links)
    for name in ("parents", "starts"):
        is_whole = _numbers(structure, "draw", name, getattr(links, name)).dtype.kind in "iu"
        require(is_whole, f"{name} must be whole numbers", getattr(links, name))
    require(len(links) == n, f"must return dependencies of {n} requests", len(links))
    think_s, starts = links.think_s, links.starts
    is_time = np.isfinite(think_s) & (think_s >= 0)
    require(is_time.all(), "think_s must be finite and not negative", _first(think_s, ~is_time))
    counted = (
        len(starts) == n + 1 and starts[0] == 0 and starts[-1] == len(links.parents) and (np.diff(starts) >= 0).all()
    )
    require(counted, f"starts must rise from 0 to the {len(links.parents)} parents", list(starts[:9]))
    is_earlier = (links.parents >= 0) & (links.parents < links.children)
    require(is_earlier.all(), "a request must wait only for earlier ones", _first(links.parents, ~is_earlier))
    first = links.first_rows()
    is_own = first[links.parents] == first[links.children]
    require(is_own.all(), "a request must not wait for two sessions", _first(links.parents, ~is_own))


def _instants(process: object, method: str, call: Callable[[], Any]) -> Floats:
    arrival_s = _numbers(process, method, "instants in seconds", _requested(process, method, call)).astype(np.float64)
    is_time = arrival_s >= 0  # NaN is not
    _require(process, method, is_time.all(), "instants must be numbers and not negative", _first(arrival_s, ~is_time))
    check_arrivals(arrival_s)
    goes_back = np.concatenate([[False], np.diff(arrival_s) < 0])
    _require(process, method, not goes_back.any(), "instants must never decrease", _first(arrival_s, goes_back))
    return arrival_s


def _tokens(lengths: object, name: str, values: Any, n: int) -> Ints:
    tokens = _numbers(lengths, "draw", name, values)
    _require(lengths, "draw", len(tokens) == n, f"must return {n} {name}", len(tokens))
    is_length = (tokens >= 1) & (tokens <= MOST_TOKENS) & (tokens == np.floor(tokens))
    rule = f"{name} must be whole and in [1, {MOST_TOKENS}]"
    _require(lengths, "draw", is_length.all(), rule, _first(tokens, ~is_length))
    return tokens.astype(np.int64)


def _numbers(policy: object, method: str, what: str, values: Any) -> NDArray[Any]:
    """Return a column as an array of numbers, `(n,)`."""
    try:
        column = np.asarray(values)
    except ValueError:  # rows of different lengths
        column = np.empty((), object)
    _require(policy, method, column.ndim == 1 and column.dtype.kind in "iuf", f"must return an array of {what}", values)
    return column


def _requested(policy: object, method: str, call: Callable[[], Any]) -> Any:
    """Call a plug-in; an exception of its own becomes a PolicyError."""
    try:
        return call()
    except (SimserveError, MemoryError):
        raise
    except Exception as error:
        raise _broke(policy, method, "must not raise", f"{type(error).__name__}: {error}") from error


def _require(policy: object, method: str, is_so: Any, rule: str, value: object) -> None:
    if not is_so:
        raise _broke(policy, method, rule, value)


def _broke(policy: object, method: str, rule: str, value: object) -> PolicyError:
    name = f"{type(policy).__module__}:{type(policy).__qualname__}.{method}"
    got = value if isinstance(value, str) else repr(value)
    shown = got if len(got) <= 80 else f"{got[:80]}..."
    return PolicyError(f"{name}: {rule}, got {shown}, before the run began; {blame(policy)}")


def _first(values: NDArray[Any], is_bad: Flags) -> object:
    """Return the first bad value and its row."""
    return f"{values[is_bad][0]} in row {int(np.argmax(is_bad))}" if is_bad.any() else None
