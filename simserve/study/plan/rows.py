"""Rows of a plan: an option with the size of its fleet, its cost and what it attains."""

from simserve.errors import Problem
from simserve.metrics.answers import plan_option
from simserve.metrics.answers.fleet_needs import OptionGrowth
from simserve.metrics.answers.option_cost import OptionCost
from simserve.metrics.answers.struct import Struct
from simserve.metrics.tails import capped
from simserve.study.plan.fleet_search import Trial
from simserve.study.plan.options import Replicas
from simserve.study.plan.outcome import OptionOutcome, Sized
from simserve.study.plan.plan import Choice, Plan, gpus_of, usd_of


def choice_row(plan: Plan, choice: Choice, rank: int) -> plan_option.PlanOption:
    """Return the row of an option that meets the SLO."""
    sized, cost, best, at_end = choice.sized, choice.cost, plan.choices[0], choice.at_end
    is_close = choice is not best and cost.usd_low <= best.cost.usd_per_month
    return _joined(
        _fleet(choice.outcome, sized.needed, rank=rank, bought=sized.bought, is_close=is_close),
        cost.price(),
        _share(sized.needed),
        _other_sizes(sized),
        _tied(sized),
        _latencies(sized.needed),
        cost.use(),
        OptionGrowth(
            outgrown_month=choice.outgrown_month,
            gpus_at_end=None if at_end is None else gpus_of(choice, at_end),
            usd_per_month_at_end=None if at_end is None else usd_of(choice, at_end),
        ),
        choice.outcome.alone,
    )


def other_row(plan: Plan, outcome: OptionOutcome) -> plan_option.PlanOption:
    """Return the row of an option that does not meet the SLO, with the figures of its largest fleet."""
    nearest = outcome.nearest
    known = [_fleet(outcome, nearest), OptionCost(usd_per_gpu_hour=plan.usd_per_gpu_hour[outcome.option.gpu])]
    if nearest is None:
        return _joined(*known, outcome.alone, refused=outcome.problem)
    slo, met_frac = nearest.point.worst_slo
    failing = plan_option.OtherSizes(fails_first=slo, fails_first_frac=met_frac, saturated=nearest.point.is_saturated)
    parts = (*known, _share(nearest), failing, _latencies(nearest), outcome.alone)
    return _joined(*parts, refused=outcome.problem)


def _joined(*parts: Struct, refused: Problem | None = None) -> plan_option.PlanOption:
    """Return the row with the columns of its parts."""
    why = (
        None if refused is None else plan_option.Refusal(rule=refused.rule, value=refused.value, remedy=refused.remedy)
    )
    return plan_option.PlanOption(**{name: value for part in parts for name, value in part}, refused_because=why)


def _fleet(
    own: OptionOutcome, needed: Trial | None, *, rank: int | None = None, bought: Replicas = (), is_close: bool = False
) -> plan_option.OptionFleet:
    """Return the option with the replicas that it needs, and those to buy if it is ranked."""
    option, fleets = own.option, own.fleets
    by_pool = bought if option.is_disaggregated and bought else (None, None)
    per_replica = None if fleets is None else fleets.gpus_per_replica
    return plan_option.OptionFleet(
        option=option.name,
        rank=rank,
        state=own.state,
        close_call=is_close,
        calibrated=None if fleets is None else all(setup.calibrated for setup in fleets.least.setups),
        gpu=option.gpu,
        tensor=option.tensor,
        how="apart" if option.is_disaggregated else "together",
        needed_replicas=None if needed is None else sum(needed.replicas),
        replicas=sum(bought) or None,
        prefill_replicas=by_pool[0],
        decode_replicas=by_pool[1],
        gpus_per_replica=per_replica,
        gpus=sum(bought) * (per_replica or 0) or None,
    )


def _share(trial: Trial) -> plan_option.OptionShare:
    point, share = trial.point, trial.point.attained
    return plan_option.OptionShare(
        decision=trial.decision,
        r=None if trial.judged is None else capped(trial.judged.margin.log_r),
        probability=None if trial.judged is None else trial.judged.probability,
        offered_per_s=point.offered_per_s,
        drawn_per_s=point.drawn_per_s,
        attained_frac=share.value,
        attained_low_frac=share.low,
        attained_high_frac=share.high,
        n_seeds=len(point.runs),
        kv_peak_frac=point.mean("kv.peak_frac"),
    )


def _other_sizes(sized: Sized) -> plan_option.OtherSizes:
    """Return the fleet with its spares, and the next smaller one if there is one."""
    all_up_frac = sized.all_up.point.attained_frac
    if sized.fewer is None:
        return plan_option.OtherSizes(all_up_attained_frac=all_up_frac)
    fewer = sized.fewer.point
    return plan_option.OtherSizes(
        all_up_attained_frac=all_up_frac,
        fewer_attained_frac=fewer.attained_frac,
        fewer_saturated=fewer.is_saturated,
        fewer_n_seeds=len(fewer.runs),
        fails_first=fewer.worst_slo[0],
        fails_first_frac=fewer.worst_slo[1],
    )


def _tied(sized: Sized) -> plan_option.TiedFleet:
    """Return the smallest statistically tied fleet, including spares."""
    if sized.tied is None:
        return plan_option.TiedFleet()
    share, n_saved = sized.tied.point.attained, sum(sized.needed.replicas) - sum(sized.tied.replicas)
    replicas = sum(sized.bought) - n_saved
    return plan_option.TiedFleet(
        tied_replicas=replicas,
        tied_gpus=replicas * sized.fleets.gpus_per_replica,
        tied_n_seeds=len(sized.tied.point.runs),
        tied_attained_frac=share.value,
        tied_low_frac=share.low,
        tied_high_frac=share.high,
        tied_by="noise" if sized.tied.judged is None else sized.tied.judged.edge_by,
        tied_probability=None if sized.tied.judged is None else sized.tied.judged.probability,
    )


def _latencies(trial: Trial) -> plan_option.OptionLatencies:
    latency_s = trial.point.latency_s
    return plan_option.OptionLatencies(
        ttft_p50_s=latency_s("ttft_s", "p50"),
        ttft_p99_s=latency_s("ttft_s", "p99"),
        tpot_p50_s=latency_s("tpot_s", "p50"),
        tpot_p99_s=latency_s("tpot_s", "p99"),
        e2e_p50_s=latency_s("e2e_s", "p50"),
        e2e_p99_s=latency_s("e2e_s", "p99"),
    )
