"""Draws: requests of arrival processes, lengths and prefixes, held against the rules; all of them may be anybody's."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from simserve.errors import PolicyError, SimserveError
from simserve.workload.arrivals.base import Arrivals
from simserve.workload.dependencies import Dependencies
from simserve.workload.lengths.base import Drawn, Lengths
from simserve.workload.prefixes.base import PrefixStructure
from simserve.workload.streams import Stream
from simserve.workload.trace import MOST_TOKENS, Prefixes, Trace


def first_arrivals(process: Arrivals, n: int, stream: Stream) -> NDArray[np.float64]:
    """The first n instants in seconds, `(n,)`. Raises PolicyError."""
    arrival_s = _instants(process, "first", lambda: process.first(n, stream))
    _require(process, "first", len(arrival_s) == n, f"must give the {n} instants asked for", len(arrival_s))
    return arrival_s


def arrivals_until(process: Arrivals, duration_s: float, stream: Stream) -> NDArray[np.float64]:
    """All instants up to duration_s. Raises PolicyError."""
    arrival_s = _instants(process, "until", lambda: process.until(duration_s, stream))
    last_s = arrival_s[-1] if len(arrival_s) else 0.0
    _require(process, "until", last_s <= duration_s, f"must end by {duration_s:g} s", last_s)
    return arrival_s


def draw_lengths(lengths: Lengths, n: int, stream: Stream) -> Drawn:
    """Lengths of n requests. Raises PolicyError."""
    drawn = _requested(lengths, "draw", lambda: lengths.draw(n, stream))
    _require(lengths, "draw", isinstance(drawn, Drawn), "must return Drawn", drawn)
    _require(lengths, "draw", isinstance(drawn.notes, tuple | list), "notes must be a tuple of texts", drawn.notes)
    prompts, outputs = (_tokens(lengths, name, getattr(drawn, name), n) for name in ("prompt_tokens", "output_tokens"))
    return Drawn(prompts, outputs, tuple(map(str, drawn.notes)))


def draw_prefixes(
    structure: PrefixStructure,
    arrival_s: NDArray[np.float64],
    duration_s: float | None,
    lengths: Lengths,
    stream: Stream,
) -> Trace:
    """Requests whose prompts share what the structure says. Raises PolicyError."""

    def new_parts(n: int) -> Drawn:
        return draw_lengths(lengths, n, stream)

    trace: Any = _requested(structure, "draw", lambda: structure.draw(arrival_s, duration_s, new_parts, stream))
    _require(structure, "draw", isinstance(trace, Trace), "must return a Trace", trace)
    _instants(structure, "draw", lambda: trace.arrival_s)
    n = len(trace)
    if duration_s is None:
        _require(structure, "draw", n == len(arrival_s), f"must give the {len(arrival_s)} requests asked for", n)
    for name in ("prompt_tokens", "output_tokens"):
        _tokens(structure, name, getattr(trace, name), n)
    prefixes = trace.prefixes
    _require(structure, "draw", isinstance(prefixes, Prefixes), "must return a Trace with Prefixes", prefixes)
    _require(structure, "draw", len(prefixes) == n, f"must give prefixes of the {n} requests", len(prefixes))
    too_many = prefixes.n_ids_of_rows() * prefixes.block_tokens > trace.prompt_tokens + trace.output_tokens
    rule = "a request must not have more ids than its prompt and answer have whole blocks"
    _require(structure, "draw", not too_many.any(), rule, f"row {int(np.argmax(too_many))}" if too_many.any() else None)
    _check_dependencies(structure, trace.dependencies, n)
    return cast(Trace, trace)


def _check_dependencies(structure: PrefixStructure, links: Any, n: int) -> None:
    """Each request waits for earlier ones of its own session alone, so no two wait for each other."""
    if links is None:
        return
    _require(structure, "draw", isinstance(links, Dependencies), "dependencies must be Dependencies", links)
    for name in ("parents", "starts"):
        is_whole = _numbers(structure, "draw", name, getattr(links, name)).dtype.kind in "iu"
        _require(structure, "draw", is_whole, f"{name} must be whole numbers", getattr(links, name))
    _require(structure, "draw", len(links) == n, f"must give dependencies of the {n} requests", len(links))
    think_s, starts = links.think_s, links.starts
    is_time = np.isfinite(think_s) & (think_s >= 0)
    rule = "think_s must be finite and not negative"
    _require(structure, "draw", is_time.all(), rule, _first(think_s, ~is_time))
    counted = (
        len(starts) == n + 1 and starts[0] == 0 and starts[-1] == len(links.parents) and (np.diff(starts) >= 0).all()
    )
    _require(
        structure, "draw", counted, f"starts must rise from 0 to the {len(links.parents)} parents", list(starts[:9])
    )
    is_earlier = (links.parents >= 0) & (links.parents < links.children)
    rule = "a request must wait for earlier ones alone"
    _require(structure, "draw", is_earlier.all(), rule, _first(links.parents, ~is_earlier))
    first = links.first_rows()
    is_own = first[links.parents] == first[links.children]
    rule = "a request must not wait for two that begin sessions of their own"
    _require(structure, "draw", is_own.all(), rule, _first(links.parents, ~is_own))


def _instants(process: object, method: str, ask: Callable[[], Any]) -> NDArray[np.float64]:
    arrival_s = _numbers(process, method, "instants in seconds", _requested(process, method, ask)).astype(np.float64)
    is_time = np.isfinite(arrival_s) & (arrival_s >= 0)
    _require(process, method, is_time.all(), "instants must be finite and not negative", _first(arrival_s, ~is_time))
    goes_back = np.concatenate([[False], np.diff(arrival_s) < 0])
    _require(process, method, not goes_back.any(), "instants must never decrease", _first(arrival_s, goes_back))
    return arrival_s


def _tokens(lengths: object, name: str, values: Any, n: int) -> NDArray[np.int64]:
    tokens = _numbers(lengths, "draw", name, values)
    _require(lengths, "draw", len(tokens) == n, f"must give the {n} {name} asked for", len(tokens))
    is_length = (tokens >= 1) & (tokens <= MOST_TOKENS) & (tokens == np.floor(tokens))
    rule = f"{name} must be whole and in [1, {MOST_TOKENS}]"
    _require(lengths, "draw", is_length.all(), rule, _first(tokens, ~is_length))
    return tokens.astype(np.int64)


def _numbers(policy: object, method: str, what: str, values: Any) -> NDArray[Any]:
    """A returned column as an array of numbers, `(n,)`."""
    try:
        column = np.asarray(values)
    except ValueError:  # rows of different lengths
        column = np.empty((), object)
    _require(policy, method, column.ndim == 1 and column.dtype.kind in "iuf", f"must return an array of {what}", values)
    return column


def _requested(policy: object, method: str, ask: Callable[[], Any]) -> Any:
    """What a plug-in answers, whose own exceptions are its mistake."""
    try:
        return ask()
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
    return PolicyError(f"{name}: {rule}, got {shown}, before the run began; correct the plug-in")


def _first(values: NDArray[Any], is_bad: NDArray[np.bool_]) -> object:
    """The first bad value and its row."""
    return f"{values[is_bad][0]} in row {int(np.argmax(is_bad))}" if is_bad.any() else None
