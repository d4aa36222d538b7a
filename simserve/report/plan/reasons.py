"""Plan reasons: why an option wins, loses, or misses the SLO, in a clause each."""

from simserve.metrics.answer import decide
from simserve.metrics.answers.plan import PlanAnswer
from simserve.metrics.answers.plan_option import PlanOption
from simserve.metrics.goal import probability
from simserve.report.formats import SHORT, count, goal, interval, plural, rate, seconds, share, slo_terms

LITTLE = 0.01
"""Relative difference of the cost per million good tokens that counts as equal."""


def reason(row: PlanOption, answer: PlanAnswer) -> str:
    """Return why an option wins, loses or does not hold."""
    best = answer.best
    if not row.is_held or best is None:
        return shortfall(row, answer)
    if row is best:
        return f"the cheapest that surely meets the SLO; {why_so_many(row, answer)}{tied(row)}"
    bare = " without spares" if best.spare_replicas and not row.spare_replicas else ""
    price = price_against(row, best).removeprefix("is ") + bare
    spared = f", {row.spare_replicas} of them spare" if row.spare_replicas else ""
    fleet = f"{plural(row.gpus, 'GPU')} ({plural(row.replicas, 'replica')}{spared})"
    return f"{price}: needs {fleet}; {why_so_many(row, answer)}{tied(row)}"


def tied(row: PlanOption) -> str:
    """Return the smaller fleet that is statistically tied with the goal; empty without one."""
    if not row.tied_replicas:
        return ""
    fewer = f"{plural(row.tied_replicas, 'replica')} for {usd(row.usd_per_month_low)}"
    if row.tied_by == "cost":
        return (
            f"; as simulated {fewer} would do, P {probability(row.tied_probability or 0.0)} with the error of the costs"
        )
    return f"; statistically tied with the goal: {fewer} ({tied_share(row)}, {plural(row.tied_n_seeds, 'seed')})"


def tied_share(row: PlanOption) -> str:
    """Return `99.1%, 95% CI 98.7–99.4%`."""
    return f"{share(row.tied_attained_frac)}, 95% CI {interval(row.tied_low_frac, row.tied_high_frac)}"


def wanted(answer: PlanAnswer) -> str:
    """Return the goal in words."""
    return f"{answer.goal_frac * 100:.4g}% of requests must have {terms(answer)}"


def terms(answer: PlanAnswer) -> str:
    """Return `TTFT ≤ 500 ms and TPOT ≤ 50 ms`."""
    return "what the SLO of their class asks" if answer.slo_classes else slo_terms(answer.slo)


def price_against(row: PlanOption, best: PlanOption) -> str:
    """Return how much more expensive an option is: by month, else per million good tokens."""
    more = row.more_frac(best)
    if more > 0:
        return f"is {more * 100:.3g}% more expensive" if more < 1 else f"costs {more + 1:.3g} times as much"
    per = (row.usd_per_m_good_tokens or 0.0) / (best.usd_per_m_good_tokens or 1.0) - 1
    return "costs the same" + ("" if per < LITTLE else f" a month, {per * 100:.2g}% more for a million good tokens")


def why_so_many(row: PlanOption, answer: PlanAnswer) -> str:
    """Return why one replica fewer is not enough."""
    if row.fewer_attained_frac is None:
        return "one replica is the fewest"
    less = plural((row.needed_replicas or 0) - 1, "replica") + (" up" if row.spare_replicas else "")
    if row.fewer_saturated:
        return f"with {less} the load is saturated"
    if row.tied_replicas:
        by = " because of the error of the costs" if row.tied_by == "cost" else ""
        return f"with {less} the SLO is on the edge{by}"
    return f"with {less} only {below(row.fewer_attained_frac, answer.goal_frac)} meet the SLO ({_fails(row, answer)})"


def below(frac: float, goal_frac: float) -> str:
    """Return a share below the goal, with enough digits to show the difference."""
    if share(frac) != share(goal_frac):
        return share(frac)
    decimals = next((n for n in range(2, 6) if f"{frac:.{n}%}" != f"{goal_frac:.{n}%}"), 6)
    return f"{frac * 100:.{decimals}f}%"


def _fails(row: PlanOption, answer: PlanAnswer) -> str:
    """Return `TPOT ≤ 50 ms fails first: 96.4%`; only the SLO if there is one."""
    name = slo_name(row.fails_first, answer)
    return f"{name} fails" if len(answer.slo) == 1 else f"{name} fails first: {share(row.fails_first_frac)}"


def shortfall(row: PlanOption, answer: PlanAnswer) -> str:
    """Return why an option does not meet the SLO."""
    if (why := row.refused_because) is not None:
        got = f", got {why.value}" if why.value is not None else ""
        start = "cannot run: " if row.state == "refused" else ""
        return f"{start}{why.rule}{got}" + (f" ({why.remedy})" if why.remedy else "")
    if row.state == "too slow":
        return _too_slow(row, answer)
    more = f"needs more than {count(answer.assumed.max_gpus)} GPUs"
    if row.attained_frac is None:
        return f"{more} even for the smallest fleet"
    if row.saturated:
        return f"{more}: with them the load is saturated"
    if row.decision == "edge" and row.probability is not None:
        chance = f"with them P is {probability(row.probability)} (r {row.r or 0.0:.2f})"
        return f"{more} to be sure within the error of the costs: {chance}; --by noise decides as simulated"
    if row.decision == "edge":
        ends = interval(row.attained_low_frac, row.attained_high_frac)
        return f"{more} to be sure: with them {share(row.attained_frac)} meet the SLO, 95% CI {ends}"
    short, met = rate((answer.goal_frac - row.attained_frac) * 100), below(row.attained_frac, answer.goal_frac)
    return f"{more}: with them only {met} meet the SLO, {short} points short ({_fails(row, answer)})"


def _too_slow(row: PlanOption, answer: PlanAnswer) -> str:
    """Return why requests miss the SLO even on an idle replica."""
    refused_frac, met_frac = row.alone_refused_frac or 0.0, row.alone_slo_frac or 0.0
    if decide((0.0, 1 - refused_frac), answer.goal_frac) == "missed":
        return f"refuses {share(refused_frac)} of requests at any number of replicas: prompts exceed its KV cache"
    short = rate((answer.goal_frac - met_frac) * 100)
    worst = f"a prompt of {count(row.alone_prompt_tokens)} tokens takes {seconds(row.alone_took_s)}"
    idle = f"on an idle replica {share(met_frac)} of requests do, {short} points short"
    return f"cannot meet {slo_name(row.alone_slo, answer)} at any number of replicas: {idle}; {worst}"


def slo_name(key: str | None, answer: PlanAnswer) -> str:
    """Return `TTFT ≤ 500 ms`."""
    name, limit = SHORT.get(key or "", "the SLO"), answer.slo.get(key or "")
    return name if limit is None or answer.slo_classes else f"{name} ≤ {goal(limit)}"


def usd(value: float | None) -> str:
    """Return `$8,760`, `$4.00`, `$0.552`."""
    if value is None:
        return "–"
    return f"${value:,.0f}" if value >= 100 else f"${value:,.2f}" if value >= 0.1 else f"${value:.3f}"
