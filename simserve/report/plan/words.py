"""Plan words: the fleet to take and why, its growth and its needs by hour."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.formats import interval, plural, rate, share
from simserve.report.nominal_load import drawn
from simserve.report.plan.reasons import is_by_chance, needs_text, reason, shortfall, terms, usd, wanted


def with_words(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with the answer and each option's reason, as `simserve plan --json` prints them."""
    options = [row | {"reason": reason(row, result)} for row in result["options"]]
    head = {"sentence": sentence(result)}
    return {**{key: result[key] for key in ("schema", "version")}, **head, **result, "options": options}


def best_of(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the option to take; None if no option meets the SLO."""
    return result["options"][0] if result["state"] == "found" else None


def sentence(result: Mapping[str, Any]) -> str:
    """Return the answer: what to take, how sure it is, what is cheaper and tied, what comes next."""
    best = best_of(result)
    if best is None:
        return f"No option surely meets the SLO: {wanted(result)}. {_nearest(result)}"
    return f"Take {fleet(best)} for {usd(best['usd_per_month'])} a month. {supported(result, best)}"


def supported(result: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    """Return what the fleet to take does, and how the others compare."""
    held = [row for row in result["options"] if row["state"] == "holds"]
    down = plural(result["assumed"]["spare_replicas"], "replica")
    of_each = " of each kind" if best["how"] == "apart" else ""
    spare = f", even with {down}{of_each} down" if result["assumed"]["spare_replicas"] else ""
    load = result["demand"].get("load")
    nominal = "nominal " if load and load["nominal_per_s"] else ""
    peak = "peak of " if result["demand"]["kind"] == "diurnal" else ""
    at = f"at {'the' if nominal else 'a' if peak else ''} {nominal}{peak}{rate(best['offered_per_s'])} req/s"
    price = (
        f"{usd(best['usd_per_gpu_hour'])} per GPU-hour, {usd(best['usd_per_m_good_tokens'])} per million output tokens"
    )
    parts = [
        f"{attained(best)} have {terms(result)} {' '.join(at.split())}{spare}.",
        _tied(result, best),
        f"That is {price} of requests that met the SLO.",
        needs_text(held[1], held[0]) if len(held) > 1 else "",
        drawn(load, best["n_seeds"]),
        "" if best["calibrated"] else f"Step costs of {best['gpu']} are uncalibrated: measure one before you buy.",
    ]
    return " ".join(filter(None, parts))


def _tied(result: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    """Return the cheaper fleets that may meet the SLO, too, of the option to take and of others."""
    sentences = []
    for row in result["options"]:
        if row.get("tied_replicas") and (row is best or is_by_chance(row, best)):
            n = f"{plural(row['tied_replicas'], 'replica')} ({usd(row['usd_per_month_low'])})"
            met = f"{share(row['tied_attained_frac'])}, 95% CI {interval(row['tied_low_frac'], row['tied_high_frac'])}"
            tie = "with a smaller fleet" if row is best else f"with {row['option']}"
            sentences.append(f"Statistically tied {tie}: {n} may also meet the SLO ({met}).")
    return " ".join([*sentences, "Rerun with a longer load to decide."] if sentences else [])


def fleet(row: Mapping[str, Any]) -> str:
    """Return `4 × h100-sxm (2 replicas of TP 2)`; disaggregated, with the replicas of each kind."""
    if row["how"] == "apart":
        parts = f"TP {row['tensor']}, {row['prefill_replicas']} for prefill and {row['decode_replicas']} for decode"
        return f"{row['gpus']} × {row['gpu']} ({parts})"
    return f"{row['gpus']} × {row['gpu']} ({plural(row['replicas'], 'replica')} of TP {row['tensor']})"


def attained(row: Mapping[str, Any]) -> str:
    """Return `99.3% of requests (95% CI 99.1–99.5%, 8 seeds)`."""
    ends = interval(row["attained_low_frac"], row["attained_high_frac"])
    sure = f"95% CI {ends}, " if row["attained_low_frac"] is not None else ""
    return f"{share(row['attained_frac'])} of requests ({sure}{plural(row['n_seeds'], 'seed')})"


def grown(result: Mapping[str, Any]) -> str:
    """Return how long the fleet lasts; empty without growth."""
    growth = result["growth"]
    if growth is None:
        return ""
    month, last = growth["outgrown_month"], growth["rows"][-1]
    by = f"Growing by {share(result['assumed']['growth_frac'])} a month"
    if month is None:
        return f"{by}, today's fleet lasts all {plural(last['month'], 'month')}."
    if last["gpus"] is None:
        return f"{by}, today's fleet is too small from month {month}; in the end it needs more GPUs than --max-gpus."
    end = f"{plural(last['gpus'], 'GPU')} at {usd(last['usd_per_month'])} a month"
    return f"{by}, today's fleet is too small from month {month}; after {last['month']} it takes {end}."


def scaled(result: Mapping[str, Any]) -> str:
    """Return what an autoscaled fleet would save; empty unless the load is diurnal."""
    by_hour = result["autoscaling"]
    if by_hour is None:
        return ""
    return (
        f"The fleet is sized for the peak. The mean demand is {share(by_hour['mean_load_frac'])} of it, at which "
        f"replicas are busy {share(result['options'][0]['busy_frac'])} of the time. Ideal hourly autoscaling, without "
        f"start-up time, would save {share(by_hour['saves_at_best_frac'])} at best "
        f"({usd(by_hour['usd_per_month_at_best'])} a month)."
    )


def reasons(result: Mapping[str, Any]) -> list[str]:
    """Return the reason of every option in the order of the table, and a note on the star."""
    text = [f"{row['option']}: {row['reason']}" for row in result["options"]]
    is_marked = any(row["calibrated"] is False for row in result["options"])
    return text + (["* step costs are uncalibrated: no measurement of this GPU under this engine"] if is_marked else [])


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return a header and a row for each option."""
    heads = ("option", "GPUs", "a month", "per M good tokens", "attained", "95% CI", "kWh a month", "")
    return [heads, *(option_cells(row, best_of(result)) for row in result["options"])]


def option_name(row: Mapping[str, Any]) -> str:
    """Return the name, with a star if step costs are uncalibrated."""
    return str(row["option"]) + (" *" if row["calibrated"] is False else "")


def option_cells(row: Mapping[str, Any], best: Mapping[str, Any] | None) -> Sequence[str]:
    """Return the cells of an option."""
    name = option_name(row)
    if row["state"] != "holds" or best is None:
        frac = row["alone_attained_frac"] if row["attained_frac"] is None else row["attained_frac"]
        return (name, "–", "–", "–", share(frac), "–", "–", row["state"])
    close = "tied" if is_by_chance(row, best) else "as dear" if row["close_call"] else "dearer"
    state = "take it" if row["rank"] == 1 else close
    return (
        name,
        str(row["gpus"]),
        usd(row["usd_per_month"]),
        usd(row["usd_per_m_good_tokens"]),
        share(row["attained_frac"]),
        interval(row["attained_low_frac"], row["attained_high_frac"]),
        rate(row["kwh_per_month"]),
        state,
    )


def _nearest(result: Mapping[str, Any]) -> str:
    """Return the closest option and its shortfall."""
    known = [row for row in result["options"] if row["state"] != "refused"]
    if not known:
        first = result["options"][0]
        return f"None can be built: {first['option']} {shortfall(first, result)}."
    nearest = max(known, key=lambda row: row["attained_frac"] or row["alone_attained_frac"] or 0.0)
    return f"Closest is {nearest['option']}: it {shortfall(nearest, result)}."
