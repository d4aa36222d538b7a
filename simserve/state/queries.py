"""Queries in the part of PromQL that autoscalers use, and bare names of metrics: parse(text) -> Expression."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from simserve.errors import closest
from simserve.state.metric_values import (
    AGGREGATIONS,
    OPERATIONS,
    Aggregated,
    Arithmetic,
    Expression,
    Increase,
    NumberLiteral,
    OverTime,
    Series,
    ZeroIfEmpty,
)
from simserve.state.pool_view import COUNTERS, GATEWAY, GAUGES, LONGEST_WINDOW_S
from simserve.units import SECONDS

METRICS: Final = (*GAUGES, *COUNTERS, *GATEWAY)

OTHER_NAMES: Final[Mapping[str, str]] = {
    "gpu_cache_usage_perc": "kv_cache_usage_perc",  # vLLM V0
    "inference_extension_flow_control_queue_size": "gateway_queue_size",
    "llm_d_epp_flow_control_queue_size": "gateway_queue_size",
    "inference_model_request_total": "gateway_arrival_total",
    "inference_objective_request_total": "gateway_arrival_total",
    "llm_d_epp_request_total": "gateway_arrival_total",
    "inference_pool_average_queue_size": "avg(num_requests_waiting)",
    "inference_pool_average_kv_cache_utilization": "avg(kv_cache_usage_perc)",
    "inference_model_running_requests": "sum(num_requests_running) + sum(num_requests_waiting)",
    "inference_objective_running_requests": "sum(num_requests_running) + sum(num_requests_waiting)",
    "llm_d_epp_request_running": "sum(num_requests_running) + sum(num_requests_waiting)",
}
"""Metrics of the Gateway API inference extension and of llm-d's endpoint picker, in terms of those of a pool."""

MEMBER_LABELS: Final = frozenset(
    {"pod", "pod_name", "instance", "endpoint_name", "model_server_endpoint", "exported_pod"}
)
"""Labels that tell members apart in `by (...)`; the series of a pool differ by no other."""

MOST_NESTED: Final = 50
"""Most parentheses of a query."""

TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)|(?P<name>[A-Za-z_][\w:]*)
    |(?P<labels>\{(?:"(?:\\.|[^"\\])*"|'[^']*'|[^}"'])*\})|(?P<window>\[[^\]]*\])|(?P<sign>[-()+*/,]))""",
    re.VERBOSE,
)


def parse(text: str) -> Expression:
    """Return what a query says. Raises ValueError that quotes it, for what is no query or outside the subset."""
    try:
        if text.count("(") > MOST_NESTED:
            raise _Unsupported("it nests too deeply")
        return _Parser(text).expression()
    except _Unsupported as error:
        raise ValueError(
            f"query '{text}' is outside the simulated part of PromQL: {error}; "
            f"write `metrics:` with names of metrics instead, such as {GAUGES[1]}"
        ) from None


class _Unsupported(Exception):
    """What the subset lacks."""


class _Parser:
    """A parser by recursive descent, a method a level of precedence."""

    def __init__(self, text: str) -> None:
        self._tokens = [*_tokens(text), ("end", "")]

    def expression(self) -> Expression:
        """Return the whole query."""
        whole = self._alternative()
        if self._tokens[0][0] != "end":
            raise _Unsupported(f"'{self._tokens[0][1]}' is not expected here")
        return whole

    def _alternative(self) -> Expression:
        left = self._sum()
        while self._takes("or"):
            zero = [self._next() for _ in range(4)]
            if "".join(zero) != "vector(0)":
                raise _Unsupported("`or` is followed by vector(0) alone")
            if left.by_member:
                raise _Unsupported("aggregate before `or vector(0)`")
            left = ZeroIfEmpty(left)
        return left

    def _sum(self) -> Expression:
        left = self._product()
        while self._tokens[0][1] in ("+", "-"):
            left = _arithmetic(self._next(), left, self._product())
        return left

    def _product(self) -> Expression:
        left = self._atom()
        while self._tokens[0][1] in ("*", "/"):
            left = _arithmetic(self._next(), left, self._atom())
        return left

    def _atom(self) -> Expression:
        kind, text = self._tokens.pop(0)
        if kind == "number":
            return NumberLiteral(float(text))
        if text == "(":
            inner = self._alternative()
            self._expect(")")
            return inner
        if kind != "name":
            raise _Unsupported(f"'{text}' is not expected here" if text else "it ends too early")
        if text in AGGREGATIONS:
            return self._aggregate(text)
        if self._tokens[0][1] == "(":
            return self._function(text)
        self._skip_labels()
        if self._tokens[0][0] == "window":
            raise _Unsupported("a window needs a function, such as max_over_time")
        return _series(text)

    def _aggregate(self, how: str) -> Expression:
        labels = self._grouping()
        self._expect("(")
        inner = self._alternative()
        self._expect(")")
        labels |= self._grouping()
        return Aggregated(how, inner, keeps_members=bool(labels & MEMBER_LABELS))

    def _grouping(self) -> set[str]:
        """Take `by (...)`, if it is there."""
        if self._tokens[0][1] == "without":
            raise _Unsupported("`without` is not simulated; use `by`")
        labels: set[str] = set()
        if self._takes("by"):
            self._expect("(")
            while (text := self._next()) != ")":
                if not text:
                    raise _Unsupported("it ends too early")
                labels.add(text)
        return labels

    def _function(self, function: str) -> Expression:
        how = function.removesuffix("_over_time")
        is_growth = function in ("rate", "increase")
        if not is_growth and (how == function or how not in AGGREGATIONS):
            raise _Unsupported(f"the function {function} is not simulated")
        self._expect("(")
        metric = _metric(self._next())
        self._skip_labels()
        window_s = _window_s(self._tokens[0])
        self._next()
        self._expect(")")
        if metric not in METRICS:
            raise _Unsupported(f"{function} of a metric that the gateway aggregates")
        if not is_growth:
            return OverTime(_gauge(metric), window_s, how)
        if not metric.endswith("_total"):
            raise _Unsupported(f"{function} needs a counter, and {metric} is a gauge")
        growth = Increase(metric, window_s)
        return growth if function == "increase" else Arithmetic("/", growth, NumberLiteral(window_s))

    def _next(self) -> str:
        return self._tokens.pop(0)[1] if len(self._tokens) > 1 else ""

    def _takes(self, text: str) -> bool:
        """Take a token, if it is the next."""
        return self._tokens[0][1] == text and bool(self._next())

    def _expect(self, text: str) -> None:
        token = self._next()
        if token != text:
            raise _Unsupported(f"'{text}' is expected" + (f" before '{token}'" if token else " at its end"))

    def _skip_labels(self) -> None:
        """Skip `{...}`: labels choose the pool's own series."""
        if self._tokens[0][0] == "labels":
            self._next()


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each token."""
    at = 0
    while text[at:].strip():
        match = TOKEN.match(text, at)
        if match is None:
            raise _Unsupported(f"'{text[at:].split()[0]}' is not understood")
        yield match.lastgroup or "", match.group().strip()
        at = match.end()


def _arithmetic(sign: str, left: Expression, right: Expression) -> Expression:
    """Combine two sides. Values of the members go with a constant or with values of the members."""
    if left.by_member != right.by_member and left.metrics and right.metrics:
        raise _Unsupported(f"'{sign}' between values of members and one value")
    if sign not in OPERATIONS:
        raise _Unsupported(f"'{sign}' is not simulated")
    return Arithmetic(sign, left, right)


def _series(name: str) -> Expression:
    """Return the values of a metric, or of what it is made of."""
    metric = _metric(name)
    return Series(_gauge(metric)) if metric in METRICS else _Parser(metric).expression()


def _metric(name: str) -> str:
    """Return the metric of a name. Raises ValueError with the metrics that there are."""
    plain = name.removeprefix("vllm:").removeprefix("vllm_")
    metric = OTHER_NAMES.get(plain, plain)
    if metric in METRICS or plain in OTHER_NAMES:
        return metric
    near = closest(plain, [*METRICS, *OTHER_NAMES])
    hint = f"did you mean {near}? " if near else ""
    raise ValueError(f"unknown metric '{name}'; {hint}A pool has {', '.join(METRICS)}")


def _gauge(metric: str) -> str:
    """Return a metric that means something without its growth."""
    if metric.endswith("_total"):
        raise _Unsupported(f"{metric} only grows: write rate({metric}[1m])")
    return metric


def _window_s(token: tuple[str, str]) -> float:
    """Return the seconds of a window such as [1m30s]."""
    parts = re.findall(r"(\d+)(ms|s|m|h)", token[1])
    window_s = sum(int(number) * SECONDS[unit] for number, unit in parts)
    if token[1] != f"[{''.join(map(''.join, parts))}]" or not 0 < window_s <= LONGEST_WINDOW_S:
        raise _Unsupported(f"a window such as [1m] of at most {LONGEST_WINDOW_S:g} s is expected, got '{token[1]}'")
    return float(window_s)
