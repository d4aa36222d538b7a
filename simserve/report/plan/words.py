"""Plan words: the fleet to take and why, its growth and its needs by hour."""

from collections.abc import Sequence

from simserve.metrics.answers.plan import PlanAnswer
from simserve.metrics.answers.plan_option import PlanOption
from simserve.metrics.goal import probability
from simserve.report.formats import interval, plural, rate, share
from simserve.report.nominal_load import by_cost_error, drawn
from simserve.report.plan.reasons import price_against, reason, shortfall, terms, tied_share, usd, wanted
from simserve.report.resilience import headline_of


def with_words(answer: PlanAnswer) -> PlanAnswer:
    """Return the answer with its sentence and each option's reason, as `simserve plan --json` prints them."""
    options = [row.model_copy(update={"reason": reason(row, answer)}) for row in answer.options]
    return answer.model_copy(update={"sentence": sentence(answer), "options": options})


def sentence(answer: PlanAnswer) -> str:
    """Return the answer: what to take, how sure it is, what is cheaper and tied, what comes next."""
    best = answer.best
    if best is None:
        return f"No option surely meets the SLO: {wanted(answer)}. {_nearest(answer)}"
    return f"Take {fleet(best)} for {usd(best.usd_per_month)} a month. {supported(answer, best)}"


def supported(answer: PlanAnswer, best: PlanOption) -> str:
    """Return what the fleet to take does, and how the others compare."""
    load = answer.demand.load
    price = f"{usd(best.usd_per_gpu_hour)} per GPU-hour, {usd(best.usd_per_m_good_tokens)} per million output tokens"
    parts = [
        f"{attained(best)} have {terms(answer)} {_at_load(answer, best)}{_with_spare(answer, best)}.",
        "" if best.probability is None else by_cost_error(best.probability, best.r),
        _tied(answer, best),
        f"That is {price} of requests that met the SLO.",
        "".join(
            f"Runner-up: {row.option} {price_against(row, best)} with {plural(row.gpus, 'GPU')}."
            for row in answer.held[1:2]
        ),
        drawn(load, best.n_seeds or 1),
        _with_budget(answer, best),
        "" if best.calibrated else f"Step costs of {best.gpu} are uncalibrated: measure one before you buy.",
    ]
    return " ".join(filter(None, parts))


def _at_load(answer: PlanAnswer, best: PlanOption) -> str:
    """Return `at the nominal peak of 24.0 req/s`."""
    nominal = "the nominal" if answer.demand.load and answer.demand.load.nominal_per_s else ""
    peak = f"{'' if nominal else 'a '}peak of" if answer.demand.kind == "diurnal" else ""
    return " ".join(filter(None, ("at", nominal, peak, rate(best.offered_per_s), "req/s")))


def _with_spare(answer: PlanAnswer, best: PlanOption) -> str:
    """Return `, even with 1 replica down`; empty without spares."""
    if not answer.assumed.spare_replicas or answer.spares is not None:
        return ""
    of_each = " of each kind" if best.is_disaggregated else ""
    return f", even with {plural(answer.assumed.spare_replicas, 'replica')}{of_each} down"


def _with_budget(answer: PlanAnswer, best: PlanOption) -> str:
    """Return what failures cost, and the spares that are in the price; empty without `--spare auto`."""
    if answer.spares is None:
        return ""
    share_of = (best.usd_per_month or 0.0) * best.spare_replicas / (best.replicas or 1)
    paid = f", {usd(share_of)} a month of that" if best.spare_replicas else ""
    _, title, minutes = headline_of(answer.spares)
    return f"{title}{paid} ({plural(answer.assumed.n_failure_runs, 'run')} with failures). {minutes}"


def _tied(answer: PlanAnswer, best: PlanOption) -> str:
    """Return the cheaper fleets that may meet the SLO, too, of the option to take and of others."""
    rows = [row for row in answer.options if row.tied_replicas and (row is best or row.may_undercut(best))]
    sentences = [_tied_fleet(row, "a smaller fleet" if row is best else row.option) for row in rows]
    causes = {row.tied_by == "cost" for row in rows}
    next_steps = {
        False: "Rerun with a longer load to decide.",
        True: "A log of your server decides: simserve calibrate.",
    }
    return " ".join([*sentences, *(next_steps[cause] for cause in sorted(causes))])


def _tied_fleet(row: PlanOption, name: str) -> str:
    less = f"{plural(row.tied_replicas, 'replica')} ({usd(row.usd_per_month_low)})"
    if row.tied_by == "cost":
        chance = probability(row.tied_probability or 0.0)
        return f"As simulated, {name} of {less} would do; with the error of the costs P is {chance}."
    return f"Statistically tied with {name}: {less} may also meet the SLO ({tied_share(row)})."


def fleet(row: PlanOption) -> str:
    """Return `4 × h100-sxm (2 replicas of TP 2)`; disaggregated, with the replicas of each kind."""
    if row.is_disaggregated:
        parts = f"TP {row.tensor}, {row.prefill_replicas} for prefill and {row.decode_replicas} for decode"
        return f"{row.gpus} × {row.gpu} ({parts})"
    return f"{row.gpus} × {row.gpu} ({plural(row.replicas, 'replica')} of TP {row.tensor})"


def attained(row: PlanOption) -> str:
    """Return `99.3% of requests (95% CI 99.1–99.5%, 8 seeds)`."""
    ends = interval(row.attained_low_frac, row.attained_high_frac)
    sure = f"95% CI {ends}, " if row.attained_low_frac is not None else ""
    return f"{share(row.attained_frac)} of requests ({sure}{plural(row.n_seeds, 'seed')})"


def grown(answer: PlanAnswer) -> str:
    """Return how long the fleet lasts; empty without growth."""
    growth = answer.growth
    if growth is None:
        return ""
    month, last = growth.outgrown_month, growth.rows[-1]
    by = f"Growing by {share(answer.assumed.growth_frac)} a month"
    if month is None:
        return f"{by}, today's fleet lasts all {plural(last.month, 'month')}."
    if last.gpus is None:
        return f"{by}, today's fleet is too small from month {month}; in the end it needs more GPUs than --max-gpus."
    end = f"{plural(last.gpus, 'GPU')} at {usd(last.usd_per_month)} a month"
    return f"{by}, today's fleet is too small from month {month}; after {last.month} it takes {end}."


def scaled(answer: PlanAnswer) -> str:
    """Return what the scenario's autoscaler takes; without one what scaling would save, if the load is diurnal."""
    by_hour, best, use = answer.autoscaling, answer.best, answer.scaled
    if use is not None:
        takes = f"takes {rate(use.mean_gpus)} GPUs on average, {usd(use.usd_per_month)} a month"
        return f"Simulated over the whole load, its autoscaler {takes}; {share(use.attained_frac)} meet the SLO."
    if by_hour is None or best is None:
        return ""
    return (
        f"The fleet is sized for the peak. The mean demand is {share(by_hour.mean_load_frac)} of it, at which "
        f"replicas are busy {share(best.busy_frac)} of the time. Ideal hourly autoscaling, without start-up time, "
        f"would save {share(by_hour.saves_at_best_frac)} at best ({usd(by_hour.usd_per_month_at_best)} a month)."
    )


def reasons(answer: PlanAnswer) -> list[str]:
    """Return the reason of every option in the order of the table, and a note on the star."""
    text = [f"{row.option}: {row.reason}" for row in answer.options]
    is_marked = any(row.calibrated is False for row in answer.options)
    return text + (["* step costs are uncalibrated: no measurement of this GPU under this engine"] if is_marked else [])


def table_rows(answer: PlanAnswer) -> list[Sequence[str]]:
    """Return a header and a row for each option."""
    heads = ("option", "GPUs", "a month", "per M good tokens", "attained", "95% CI", "kWh a month", "")
    return [heads, *(option_cells(row, answer.best) for row in answer.options)]


def option_name(row: PlanOption) -> str:
    """Return the name, with a star if step costs are uncalibrated."""
    return row.option + (" *" if row.calibrated is False else "")


def option_cells(row: PlanOption, best: PlanOption | None) -> Sequence[str]:
    """Return the cells of an option."""
    if not row.is_held or best is None:
        frac = row.alone_attained_frac if row.attained_frac is None else row.attained_frac
        return (option_name(row), "–", "–", "–", share(frac), "–", "–", row.state)
    return (
        option_name(row),
        str(row.gpus),
        usd(row.usd_per_month),
        usd(row.usd_per_m_good_tokens),
        share(row.attained_frac),
        interval(row.attained_low_frac, row.attained_high_frac),
        rate(row.kwh_per_month),
        _standing(row, best),
    )


def _standing(row: PlanOption, best: PlanOption) -> str:
    if row.rank == 1:
        return "recommended"
    return "tied" if row.may_undercut(best) else "costs the same" if row.close_call else "more expensive"


def _nearest(answer: PlanAnswer) -> str:
    """Return the closest option and its shortfall."""
    known = [row for row in answer.options if row.state != "refused"]
    if not known:
        first = answer.options[0]
        return f"None can be built: {first.option} {shortfall(first, answer)}."
    nearest = max(known, key=lambda row: row.attained_frac or row.alone_attained_frac or 0.0)
    return f"Closest is {nearest.option}: it {shortfall(nearest, answer)}."
