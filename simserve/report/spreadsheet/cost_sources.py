"""Cost sources: the fleet and its load, read from plans, capacities, sweeps and runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from simserve.metrics.answers.capacity import CapacityAnswer
from simserve.metrics.answers.plan import PlanAnswer
from simserve.metrics.answers.plan_option import PlanOption
from simserve.metrics.answers.pools import StudiedPool
from simserve.metrics.answers.sweep import SweepAnswer
from simserve.metrics.result_folder import ResultFolder
from simserve.report.formats import count, rate, share
from simserve.report.run_view import RunView
from simserve.report.spreadsheet.cost import UNKNOWN, Basis, Known
from simserve.report.spreadsheet.sheets_fleet import MEAN_GPU, sweep_gpu, sweep_price
from simserve.report.spreadsheet.sheets_simulated import fleets_of, most_held


def cost_basis(sources: Sequence[ResultFolder]) -> Basis | None:
    """Return the basis from a plan, else a capacity, a sweep or a run, completed from the others; None without any.
    Fleets that were simulated come before what a capacity says that one unit of the same scenario holds."""
    readers: tuple[tuple[str, Callable[[ResultFolder], Basis | None]], ...] = (
        ("plan", _of_plan),
        ("capacity", _of_capacity),
        ("sweep", _of_sweep),
        ("run", _of_run),
    )
    pairs = [(source, read(source)) for command, read in readers for source in sources if source.command == command]
    known = [(source, basis) for source, basis in pairs if basis is not None]
    if not known:
        return None
    first, result = known[0]
    for source, other in known[1:]:
        missing: dict[str, Any] = {
            name: getattr(other, name)
            for name in ("prompt_tokens", "output_tokens", "good_frac", "demand_per_s", "watts_per_gpu")
            if getattr(result, name).value is None
        }
        if not result.met and _is_same_unit(first, result, source, other):
            if other.met:
                missing |= {name: getattr(other, name) for name in ("fleets", "holds_per_s", "target_frac", "capacity")}
            elif result.capacity is None and other.capacity is not None:
                missing |= {"holds_per_s": other.holds_per_s, "capacity": other.capacity}
        result = replace(result, **missing, prices={**other.prices, **result.prices})
    return result


def _is_same_unit(a: ResultFolder, of_a: Basis, b: ResultFolder, of_b: Basis) -> bool:
    """Return whether both are about the same scenario, on units of the same GPUs."""
    if not {a.command, b.command} <= {"capacity", "plan"}:
        return False  # points of a sweep are scenarios of their own
    digests = [each.answer.scenario.digest for each in (a, b)]
    return None not in digests and digests[0] == digests[1] and (of_a.unit, of_a.gpus) == (of_b.unit, of_b.gpus)


def _all_used(text: str) -> dict[str, Any]:
    """Return the input of a fleet that holds the load as simulated: no headroom beyond that."""
    return {"target_frac": Known(1.0, f"{text}: its fleet holds the load as it is; lower it for more room.")}


def _of_plan(source: ResultFolder) -> Basis | None:
    """Read the option to take: its replicas hold the rate that it is sized for, so each holds its share of it."""
    answer: PlanAnswer = source.answer
    text = f"Plan {source.label}"
    best, sized, assumed = answer.best, answer.demand.sized_for_per_s, answer.assumed
    if best is None or not best.needed_replicas or not sized:
        return None
    fleets = () if (whole := best.is_disaggregated) else fleets_of(source)
    most, by = most_held(fleets) if fleets else (sized, best.needed_replicas)
    held = f"{text}: {best.option} holds {rate(most)} requests/s with {by} replicas."
    assumptions: dict[str, float | None] = {
        "spare_units": 0.0 if whole and assumed.spare_replicas is not None else assumed.spare_replicas,
        "growth_frac": assumed.growth_frac,
        "hours_per_month": assumed.hours_per_month,
    }
    given: dict[str, Any] = {name: Known(value, f"{text}.") for name, value in assumptions.items() if value is not None}
    if (use := answer.scaled) is not None and best.gpus:
        took = f"{text}: its autoscaler took {rate(use.mean_gpus)} GPUs on average, simulated."
        given |= {"scaled_frac": Known(use.mean_gpus / best.gpus, took)}
    priced = {option.gpu: option.usd_per_gpu_hour for option in answer.options if option.usd_per_gpu_hour is not None}
    return Basis(
        unit="fleet" if whole else "replica",
        gpus={best.gpu: (best.gpus if whole else best.gpus_per_replica) or 0},
        prices={
            gpu: Known(price, f"{text}: {'given' if gpu in assumed.given_prices else 'the catalog'}.")
            for gpu, price in priced.items()
        },
        holds_per_s=Known(sized if whole else most / by, held),
        demand_per_s=Known(sized, f"{text}: the rate that its fleets are sized for."),
        mean_frac=Known(answer.demand.mean_load_frac, f"{text}: mean of its load by what it is sized for."),
        watts_per_gpu=Known(best.tdp_w, f"{text}: the catalog's TDP, all hours: an upper bound."),
        fleets=fleets,
        **_tokens(answer, best, text),
        **_all_used(text),
        **given,
        simulated_gpus={row.month: row.gpus for row in answer.growth.rows} if answer.growth else {},
    )


def _tokens(answer: PlanAnswer, best: PlanOption, text: str) -> dict[str, Any]:
    """Return the tokens of a request, and the share of good ones."""
    a_month = (answer.demand.mean_per_s or 0.0) * (answer.assumed.hours_per_month or 0.0) * 3600
    totals = (best.output_tokens_per_month, best.tokens_per_month, best.good_tokens_per_month)
    output, both, good = (total / a_month if a_month and total is not None else None for total in totals)
    return {
        "good_frac": Known(good / output if good is not None and output else None, f"{text}: {best.option}."),
        "prompt_tokens": Known(None if both is None or output is None else both - output, f"{text}: mean of its load."),
        "output_tokens": Known(output, f"{text}: mean of its load."),
    }


def _of_capacity(source: ResultFolder) -> Basis | None:
    """Read the capacity, divided by the replicas that hold it."""
    result: CapacityAnswer = source.answer
    text = f"Capacity of {source.label}"
    if result.answer is None:
        return None
    fleet = result.answer.fleet
    n_gpus, hourly = fleet.n_gpus, fleet.usd_per_hour
    light = None if result.question == "ratio" else next((each for each in result.points if not each.saturated), None)
    output, offered = (None, None) if light is None else (light.output_tokens_per_s, light.offered_per_s)
    holds, how, own = _held_load(result, offered)
    pools = result.found_pools if result.question == "replicas" else result.pools
    unit, n_units, gpus = _units(pools, n_gpus)
    held = f"{text}: {rate(holds)} requests/s {how}on {count(n_gpus)} GPUs."
    price = Known(hourly / n_gpus, f"{text}: {'the catalog' if len(gpus) == 1 else 'the mean of its GPUs'}.")
    return Basis(
        unit=unit,
        gpus=gpus,
        prices=dict.fromkeys(gpus, price),
        watts_per_gpu=Known(fleet.kw * 1000 / n_gpus, f"{text}: the catalog's TDP, all hours: an upper bound."),
        fleets=fleets_of(source) if unit == "replica" else (),
        holds_per_s=Known(None if holds is None else holds / n_units, held),
        demand_per_s=Known(own, f"{text}: the load of its scenario."),
        good_frac=Known(result.goal_frac, f"{text}: the goal, which holds there."),
        output_tokens=Known(output / offered, f"{text}: at its lightest load.") if output and offered else UNKNOWN,
        capacity=source if result.question in ("rate", "ratio") else None,
        **(_all_used(text) if how or result.question == "replicas" else {}),
    )


def _held_load(result: CapacityAnswer, offered: float | None) -> tuple[float | None, str, float | None]:
    """Return the requests/s that a fleet holds, in which sense, and those of the scenario: with replicas, its own."""
    if result.question == "rate" and result.answer is not None:
        load, scale = result.answer.load, result.answer.scale
        own = load.value / (scale.value if scale and scale.value else 1.0)
        return (load.value, "", own) if load.count_on is None else (load.count_on, "to count on, ", own)
    if result.question == "concurrency" and result.answer is not None:
        offered = result.answer.requests_per_s
    elif result.question != "replicas" and result.answer is not None:
        offered = result.answer.load.value
    return offered, "", offered


def _of_sweep(source: ResultFolder) -> Basis | None:
    """Read the cheapest point that meets the goal, else the one with the most goodput for its price."""
    answer: SweepAnswer = source.answer
    text, best = f"Sweep {source.label}", answer.best.cheapest or answer.best.per_usd
    point = None if best is None else answer.points[best.point]
    if point is None or point.fleet is None:
        return None
    fleets = [each.fleet for each in answer.points if each.fleet is not None and sweep_gpu(each.fleet) != MEAN_GPU]
    prices = {sweep_gpu(each): sweep_price(each) for each in (*fleets, point.fleet)}  # its own, whatever others pay
    means, name, good = point.means, f"{text}, point {point.point}", point.goodput_per_s
    output, served = means.output_tokens_per_s.value, means.served_per_s.value
    return Basis(
        unit="fleet",
        gpus={sweep_gpu(point.fleet): point.fleet.n_gpus},
        prices={
            gpu: Known(price, f"{name}: its fleet by its GPUs." if gpu == MEAN_GPU else f"{text}: the catalog.")
            for gpu, price in prices.items()
        },
        watts_per_gpu=Known(point.fleet.kw * 1000 / point.fleet.n_gpus, f"{name}: the catalog's TDP, all hours."),
        holds_per_s=Known(good, f"{name}: {rate(good)} good requests/s; it may hold more."),
        demand_per_s=Known(good, f"{name}: its good requests."),
        good_frac=Known(means.slo_attainment_frac.value, f"{name}: its attainment."),
        output_tokens=Known(output / served, f"{name}.") if output and served else UNKNOWN,
        **_all_used(text),
    )


def _of_run(source: ResultFolder) -> Basis | None:
    """Read what one run offered, if it met its SLO."""
    reader, text = RunView(source.answer), f"Run {source.label}"
    if not reader.pools or not reader.n_gpus:
        return None
    unit, n_units, gpus = _units(reader.pools, reader.n_gpus)
    holds, finished = _held(reader, text), reader.number("requests_per_s")
    tokens: dict[str, Any] = {
        name: Known(total / finished, f"{text}: mean of what was answered.")
        for name, key in (("prompt_tokens", "input_tokens_per_s"), ("output_tokens", "output_tokens_per_s"))
        if finished and (total := reader.number(key)) is not None
    }
    return Basis(
        unit=unit,
        gpus=gpus,
        prices={pool.gpu: Known(pool.price_per_gpu_hour_usd, f"{text}: the catalog.") for pool in reader.pools},
        holds_per_s=replace(holds, value=None if holds.value is None else holds.value / n_units),
        demand_per_s=Known(_load(reader), f"{text}: its load."),
        good_frac=UNKNOWN if reader.attainment is None else Known(reader.attainment, f"{text}: its attainment."),
        **tokens,
        **(_all_used(text) if reader.has_slo and holds.value is not None else {}),
    )


def _held(reader: RunView, text: str) -> Known:
    """Return the requests per second that the whole fleet holds."""
    if not reader.has_slo:
        return Known(reader.number("served_per_s"), f"{text} served it; without an SLO nothing says that it was good.")
    if reader.answer is None or reader.answer.decision != "met":
        sentence = f"{text} does not surely meet its SLO ({share(reader.attainment)} attained)"
        return Known(None, f"{sentence}, so its capacity is unknown: export a capacity with it.")
    held = _load(reader)
    return Known(held, f"{text} held {rate(held)} requests/s; it may hold more: export a capacity with it.")


def _load(reader: RunView) -> float | None:
    """Return the nominal load of a run, as its answer is given there; else what was offered."""
    return reader.number("load.nominal_per_s") or reader.number("offered_per_s")


def _units(pools: Sequence[StudiedPool], n_gpus: float) -> tuple[str, int, dict[str, float]]:
    """Return the unit of a fleet, their number and the GPUs of one: replicas of a single pool; else the fleet as it is,
    or as it was on average."""
    if len(pools) == 1 and not pools[0].has_changed:
        return "replica", pools[0].n_replicas, {pools[0].gpu: pools[0].gpus_per_replica}
    gpus: dict[str, float] = {}
    for pool in pools:
        gpus[pool.gpu] = gpus.get(pool.gpu, 0) + pool.n_gpus
    return "fleet", 1, gpus or {"GPU": round(n_gpus)}
