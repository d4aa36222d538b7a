"""Plan reasons: why an option wins, loses, or misses the SLO, in a clause each."""

from collections.abc import Mapping
from typing import Any

from simserve.metrics.answer import decide
from simserve.report.formats import SHORT, count, goal, interval, plural, rate, seconds, share, slo_terms

LITTLE = 0.01
"""Relative difference of the cost per million good tokens that counts as equal."""


def reason(row: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return why an option wins, loses or does not hold."""
    if row["state"] != "holds":
        return shortfall(row, result)
    best = result["options"][0]
    if row["rank"] == 1:
        return f"the cheapest that surely meets the SLO; {why_so_many(row, result)}{tied(row)}"
    return f"{dearer(row, best)}: needs {gpus_text(row)}; {why_so_many(row, result)}{tied(row)}"


def tied(row: Mapping[str, Any]) -> str:
    """Return the smaller fleet that is statistically tied with the goal; empty without one."""
    if not row.get("tied_replicas"):
        return ""
    met = f"{share(row['tied_attained_frac'])}, 95% CI {interval(row['tied_low_frac'], row['tied_high_frac'])}"
    seeds = plural(row["tied_n_seeds"], "seed")
    fewer = plural(row["tied_replicas"], "replica")
    return f"; statistically tied with the goal: {fewer} for {usd(row['usd_per_month_low'])} ({met}, {seeds})"


def wanted(result: Mapping[str, Any]) -> str:
    """Return the goal in words."""
    return f"{result['goal_frac'] * 100:.4g}% of requests must have {terms(result)}"


def terms(result: Mapping[str, Any]) -> str:
    """Return `TTFT ≤ 500 ms and TPOT ≤ 50 ms`."""
    return "what the SLO of their class asks" if result["slo_classes"] else slo_terms(result["slo"])


def needs_text(row: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    """Return `Runner-up: l40s TP 2 is 20% dearer with 18 GPUs.`"""
    return f"Runner-up: {row['option']} is {dearer(row, best)} with {plural(row['gpus'], 'GPU')}."


def dearer(row: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    """Return how much dearer an option is: by month, else per million good tokens."""
    more = row["usd_per_month"] / best["usd_per_month"] - 1
    if more > 1e-9:
        return f"{more * 100:.3g}% dearer" if more < 1 else f"{more + 1:.3g} times as dear"
    per = row["usd_per_m_good_tokens"] / best["usd_per_m_good_tokens"] - 1
    return "as dear" if per < LITTLE else f"as dear a month, {per * 100:.2g}% dearer for a million good tokens"


def is_by_chance(row: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    """Return whether a fleet of this option that is on the edge costs no more than the first option."""
    return bool(row["usd_per_month_low"] < row["usd_per_month"] and row["usd_per_month_low"] <= best["usd_per_month"])


def gpus_text(row: Mapping[str, Any]) -> str:
    """Return `18 GPUs (9 replicas)`."""
    spare = row["replicas"] - row["needed_replicas"]
    spared = f", {spare} of them spare" if spare else ""
    return f"{plural(row['gpus'], 'GPU')} ({plural(row['replicas'], 'replica')}{spared})"


def why_so_many(row: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return why one replica fewer is not enough."""
    if row["fewer_attained_frac"] is None:
        return "one replica is the fewest"
    up = " up" if row["replicas"] > row["needed_replicas"] else ""
    less = f"{plural(row['needed_replicas'] - 1, 'replica')}{up}"
    if row["fewer_saturated"]:
        return f"with {less} the load is saturated"
    if row.get("tied_replicas"):
        return f"with {less} the SLO is on the edge"
    met = below(row["fewer_attained_frac"], result["goal_frac"])
    return f"with {less} only {met} meet the SLO ({_fails(row, result)})"


def below(frac: float, goal_frac: float) -> str:
    """Return a share below the goal, with enough digits to show the difference."""
    if share(frac) != share(goal_frac):
        return share(frac)
    decimals = next((n for n in range(2, 6) if f"{frac:.{n}%}" != f"{goal_frac:.{n}%}"), 6)
    return f"{frac * 100:.{decimals}f}%"


def _fails(row: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return `TPOT ≤ 50 ms fails first: 96.4%`; only the SLO if there is one."""
    name = slo_name(row["fails_first"], result)
    return f"{name} fails" if len(result["slo"]) == 1 else f"{name} fails first: {share(row['fails_first_frac'])}"


def shortfall(row: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return why an option does not meet the SLO."""
    if row["state"] == "refused":
        why = row["refused_because"]
        got = f", got {why['value']}" if why["value"] is not None else ""
        remedy = f" ({why['remedy']})" if why["remedy"] else ""
        return f"cannot run: {why['rule']}{got}{remedy}"
    if row["state"] == "too slow":
        return _too_slow(row, result)
    most = f"{count(result['assumed']['max_gpus'])} GPUs"
    if row["attained_frac"] is None:
        return f"needs more than {most} even for the smallest fleet"
    if row["saturated"]:
        return f"needs more than {most}: with them the load is saturated"
    if row.get("decision") == "edge":
        ends = interval(row["attained_low_frac"], row["attained_high_frac"])
        return f"needs more than {most} to be sure: with them {share(row['attained_frac'])} meet the SLO, 95% CI {ends}"
    short = rate((result["goal_frac"] - row["attained_frac"]) * 100)
    met = below(row["attained_frac"], result["goal_frac"])
    return f"needs more than {most}: with them only {met} meet the SLO, {short} points short ({_fails(row, result)})"


def _too_slow(row: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return why requests miss the SLO even on an idle replica."""
    refused_frac = row["alone_refused_frac"]
    if decide((0.0, 1 - refused_frac), result["goal_frac"]) == "missed":
        return f"refuses {share(refused_frac)} of requests at any number of replicas: prompts exceed its KV cache"
    name = slo_name(row["alone_slo"], result)
    met, short = share(row["alone_slo_frac"]), rate((result["goal_frac"] - row["alone_slo_frac"]) * 100)
    worst = f"a prompt of {count(row['alone_prompt_tokens'])} tokens takes {seconds(row['alone_took_s'])}"
    idle = f"on an idle replica {met} of requests do, {short} points short"
    return f"cannot meet {name} at any number of replicas: {idle}; {worst}"


def slo_name(key: str, result: Mapping[str, Any]) -> str:
    """Return `TTFT ≤ 500 ms`."""
    limit = result["slo"].get(key)
    return SHORT[key] if limit is None or result["slo_classes"] else f"{SHORT[key]} ≤ {goal(limit)}"


def usd(value: Any) -> str:
    """Return `$8,760`, `$4.00`, `$0.552`."""
    if value is None:
        return "–"
    return f"${value:,.0f}" if value >= 100 else f"${value:,.2f}" if value >= 0.1 else f"${value:.3f}"
