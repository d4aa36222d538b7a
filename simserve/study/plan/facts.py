"""A plan as plain data for JSON, tables and pages; `report.plan` adds sentences."""

from typing import Any

from simserve.study.capacity.facts import question_facts
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.intervals import CONFIDENCE
from simserve.study.plan.columns import COLUMNS
from simserve.study.plan.fleet_search import Trial
from simserve.study.plan.growth import Need
from simserve.study.plan.outcome import OptionOutcome, Sized, seeds_of
from simserve.study.plan.plan import Choice, Plan, gpus_of, usd_of
from simserve.study.plan.warnings import plan_warnings
from simserve.tables.files import plain
from simserve.tables.schema import SCHEMA
from simserve.units import HOURS_A_MONTH
from simserve.version import __version__

ENERGY = (
    "the cards' power by their data sheets, at full power while a step runs and at none between steps; "
    "hosts, network and cooling are left out"
)

ALONE = ("attained_frac", "slo", "slo_frac", "prompt_tokens", "took_s", "refused_frac")
"""Figures of requests sent one at a time."""

NOTHING = {field.name: None for field in COLUMNS}
"""Empty row of an option, so that every row has every column."""


def plan_facts(plan: Plan) -> dict[str, Any]:
    """Return the content of `simserve plan --json` without sentences; missing values are None."""
    question = plan.question
    rows = [_choice(plan, choice, rank) for rank, choice in enumerate(plan.choices, 1)]
    result: dict[str, Any] = plain(
        {
            "schema": SCHEMA,
            "version": __version__,
            **question_facts(CapacityQuestion(question.scenario, question.bounds.goal_frac, 0.0)),
            "state": "found" if plan.best else "none",
            "demand": _demand(plan),
            "assumed": _assumed(plan),
            "options": [NOTHING | row for row in (*rows, *(_other(plan, outcome) for outcome in plan.others))],
            "growth": _growth(plan, plan.best) if plan.best and plan.months else None,
            "autoscaling": _autoscaling(plan, plan.best) if plan.best and plan.hours else None,
            "warnings": plan_warnings(plan),
        }
    )
    return result


def _demand(plan: Plan) -> dict[str, Any]:
    """Return the demand with the rates of the runs; None without runs."""
    trials = [plan.best.sized.needed] if plan.best else [each.nearest for each in plan.others if each.nearest]
    point = trials[0].point if trials else None
    offered = None if point is None else point.offered_per_s
    share = plan.demand.mean_load_frac
    return {
        "kind": plan.demand.kind,
        "mean_per_s": None if offered is None else offered * share,
        "sized_for_per_s": offered,
        "mean_load_frac": share,
        "load": None if point is None else point.load,
    }


def _assumed(plan: Plan) -> dict[str, Any]:
    question = plan.question
    return {
        "spare_replicas": question.bounds.spare,
        "growth_frac": question.growth_frac,
        "months": question.months,
        "hours_per_month": HOURS_A_MONTH,
        "max_gpus": question.bounds.max_gpus,
        "confidence": CONFIDENCE,
        "n_seeds": len(seeds_of(plan.demand)),
        "usd_per_gpu_hour": dict(plan.usd_per_gpu_hour),
        "given_prices": list(question.given_usd),
        "energy": ENERGY,
    }


def _option(plan: Plan, outcome: OptionOutcome) -> dict[str, Any]:
    """Return the keys that every option has."""
    option, fleets, alone = outcome.option, outcome.fleets, outcome.unloaded
    return {
        "option": option.name,
        "gpu": option.gpu,
        "tensor": option.tensor,
        "how": "apart" if option.is_disaggregated else "together",
        "state": outcome.state,
        "calibrated": None if fleets is None else all(setup.calibrated for setup in fleets.least.setups),
        "gpus_per_replica": None if fleets is None else fleets.gpus_per_replica,
        "usd_per_gpu_hour": plan.usd_per_gpu_hour[option.gpu],
        **({} if alone is None else {f"alone_{key}": getattr(alone, key) for key in ALONE}),
    }


def _choice(plan: Plan, choice: Choice, rank: int) -> dict[str, Any]:
    """Return the row of an option that meets the SLO."""
    sized, cost, best = choice.sized, choice.cost, plan.choices[0]
    setup = sized.fleets.least.setups[0]
    bought, is_disaggregated = sized.all_up.replicas, choice.outcome.option.is_disaggregated
    is_close = choice is not best and cost.usd_low <= best.cost.usd_high
    return {
        "rank": rank,
        **_option(plan, choice.outcome),
        "close_call": is_close,
        "needed_replicas": sum(sized.needed.replicas),
        "replicas": sum(bought),
        "prefill_replicas": bought[0] if is_disaggregated else None,
        "decode_replicas": bought[1] if is_disaggregated else None,
        "gpus": cost.n_gpus,
        "tdp_w": setup.gpu.tdp_w,
        **_money(choice),
        **_attained(sized.needed),
        "all_up_attained_frac": sized.all_up.point.attained_frac,
        "fewer_saturated": None,
        **_fewer(sized.fewer),
        **_tied(sized),
        "outgrown_month": choice.outgrown_month,
        "gpus_at_end": choice.at_end and gpus_of(choice, choice.at_end),
        "usd_per_month_at_end": choice.at_end and usd_of(choice, choice.at_end),
    }


def _money(choice: Choice) -> dict[str, Any]:
    """Return cost, tokens and energy."""
    cost = choice.cost
    good = cost.usd_per_million(cost.good_tokens)
    return {
        "usd_per_hour": cost.usd_per_hour,
        "usd_per_month": cost.usd_per_month,
        "usd_per_month_low": cost.usd_low,
        "usd_per_month_high": cost.usd_high,
        "usd_per_m_output_tokens": cost.usd_per_million(cost.output_tokens).value,
        "usd_per_m_tokens": cost.usd_per_million(cost.tokens).value,
        "usd_per_m_good_tokens": good.value,
        "usd_per_m_good_tokens_low": good.low,
        "usd_per_m_good_tokens_high": good.high,
        "output_tokens_per_month": cost.output_tokens.value,
        "tokens_per_month": cost.tokens.value,
        "good_tokens_per_month": cost.good_tokens.value,
        "kwh_per_month": cost.kwh,
        "kwh_per_month_at_tdp": cost.kwh_at_tdp,
        "kwh_per_m_output_tokens": cost.kwh / cost.output_tokens.value * 1e6,
        "busy_frac": cost.busy_frac,
    }


def _attained(trial: Trial) -> dict[str, Any]:
    point, share = trial.point, trial.point.attained
    return {
        "offered_per_s": point.offered_per_s,
        "attained_frac": share.value,
        "attained_low_frac": share.low,
        "attained_high_frac": share.high,
        **{
            f"{name}_{level}_s": point.latency_s(f"{name}_s", level)
            for name in ("ttft", "tpot", "e2e")
            for level in ("p50", "p99")
        },
        "n_seeds": len(point.runs),
        "decision": trial.decision,
        "drawn_per_s": point.drawn_per_s,
    }


def _fewer(trial: Trial | None) -> dict[str, Any]:
    """Return the next smaller fleet; empty without one."""
    if trial is None:
        return {}
    return {
        "fewer_attained_frac": trial.point.attained_frac,
        "fewer_saturated": trial.point.is_saturated,
        "fewer_n_seeds": len(trial.point.runs),
        **_fails_first(trial),
    }


def _tied(sized: Sized) -> dict[str, Any]:
    """Return the smallest statistically tied fleet, including spares; empty without one."""
    if sized.tied is None:
        return {}
    share, n_saved = sized.tied.point.attained, sum(sized.needed.replicas) - sum(sized.tied.replicas)
    replicas = sum(sized.all_up.replicas) - n_saved
    return {
        "tied_replicas": replicas,
        "tied_gpus": replicas * sized.fleets.gpus_per_replica,
        "tied_attained_frac": share.value,
        "tied_low_frac": share.low,
        "tied_high_frac": share.high,
        "tied_n_seeds": len(sized.tied.point.runs),
    }


def _fails_first(trial: Trial) -> dict[str, Any]:
    return dict(zip(("fails_first", "fails_first_frac"), trial.point.worst_slo, strict=True))


def _other(plan: Plan, outcome: OptionOutcome) -> dict[str, Any]:
    """Return the row of an option that does not meet the SLO, with the figures of its largest fleet."""
    nearest, problem = outcome.nearest, outcome.problem
    measured: dict[str, Any] = {}
    if nearest is not None:
        measured = {"needed_replicas": sum(nearest.replicas), **_attained(nearest), **_fails_first(nearest)}
    return {
        **_option(plan, outcome),
        "close_call": False,
        **measured,
        "saturated": None if nearest is None else nearest.point.is_saturated,
        "refused_because": problem and {"rule": problem.rule, "value": problem.value, "remedy": problem.remedy},
    }


def _growth(plan: Plan, best: Choice) -> dict[str, Any]:
    rate = best.sized.needed.point.offered_per_s
    return {
        "outgrown_month": best.outgrown_month,
        "rows": [
            {"month": month, "offered_per_s": rate * need.scale, **_row(best, need)}
            for month, need in enumerate(plan.months)
        ],
    }


def _autoscaling(plan: Plan, best: Choice) -> dict[str, Any]:
    """Return the cost if every hour had the fewest replicas that it needs, without delay."""
    rate = best.sized.needed.point.offered_per_s
    rows = [
        {"hour": hour, "peak_per_s": rate * share, **_row(best, need)}
        for hour, (share, need) in enumerate(zip(plan.demand.hours, plan.hours, strict=True))
    ]
    usd = sum(row["usd_per_month"] for row in rows) / len(rows)
    return {
        "mean_load_frac": plan.demand.mean_load_frac,
        "saves_at_best_frac": 1 - usd / best.cost.usd_per_month,
        "usd_per_month_at_best": usd,
        "rows": rows,
    }


def _row(choice: Choice, need: Need) -> dict[str, Any]:
    return {"replicas": need.n_replicas, "gpus": gpus_of(choice, need), "usd_per_month": usd_of(choice, need)}
