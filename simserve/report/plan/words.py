"""A plan in words: which fleet to take and why, and what growth and the hours of a day make of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.formats import interval, listed, plural, rate, share, slo_terms
from simserve.report.plan.reasons import is_by_chance, needs_text, reason, shortfall, usd, wanted


def with_words(found: Mapping[str, Any]) -> dict[str, Any]:
    """The facts with the answer as a sentence, and each option with its reason; what `simserve plan --json` prints."""
    options = [row | {"reason": reason(row, found)} for row in found["options"]]
    head = {"sentence": sentence(found)}
    return {**{key: found[key] for key in ("schema", "version")}, **head, **found, "options": options}


def best_of(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The option to take; None: nothing holds."""
    return found["options"][0] if found["state"] == "found" else None


def sentence(found: Mapping[str, Any]) -> str:
    """The answer."""
    best = best_of(found)
    if best is None:
        return f"No option holds: {wanted(found)}. {_nearest(found)}"
    return f"Take {fleet(best)} for {usd(best['usd_per_month'])} a month. {supported(found, best)}"


def supported(found: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    """What the fleet to take does, and how the others compare."""
    per = f"{usd(best['usd_per_m_good_tokens'])} a million output tokens that met the SLO"
    down = plural(found["assumed"]["spare_replicas"], "replica")
    of_each = " of each kind" if best["how"] == "apart" else ""
    spare = f", even with {down}{of_each} down" if found["assumed"]["spare_replicas"] else ""
    at = f"at {'a peak of ' if found['demand']['kind'] == 'diurnal' else ''}{rate(best['offered_per_s'])} requests/s"
    price = f"At {usd(best['usd_per_gpu_hour'])} an hour and GPU that is {per}."
    return f"{attained(best)} have {terms(found)} {at}{spare}. {price}{_next(found)}{_uncalibrated(best)}"


def fleet(row: Mapping[str, Any]) -> str:
    """`3 × h100-sxm (TP 1)`, `4 × h100-sxm (2 replicas of TP 2)`, apart with how many there are of each kind."""
    if row["how"] == "apart":
        parts = f"TP {row['tensor']}, {row['prefill_replicas']} for prefill and {row['decode_replicas']} for decode"
        return f"{row['gpus']} × {row['gpu']} ({parts})"
    return f"{row['gpus']} × {row['gpu']} ({plural(row['replicas'], 'replica')} of TP {row['tensor']})"


def terms(found: Mapping[str, Any]) -> str:
    """`TTFT ≤ 500 ms and TPOT ≤ 50 ms`."""
    return "what the SLO of their class asks" if found["slo_classes"] else slo_terms(found["slo"])


def attained(row: Mapping[str, Any]) -> str:
    """`99.3 % of requests (95 % interval 99.1–99.5 %, 8 seeds)`."""
    ends = interval(row["attained_low_frac"], row["attained_high_frac"])
    sure = f"95 % interval {ends}, " if row["attained_low_frac"] is not None else ""
    return f"{share(row['attained_frac'])} of requests ({sure}{plural(row['n_seeds'], 'seed')})"


def grown(found: Mapping[str, Any]) -> str:
    """What growth makes of the fleet; empty where there is none."""
    growth = found["growth"]
    if growth is None:
        return ""
    month, last = growth["outgrown_month"], growth["rows"][-1]
    by = f"Growing by {share(found['assumed']['growth_frac'])} a month"
    if month is None:
        return f"{by}, the fleet of today is enough for all {plural(last['month'], 'month')}."
    if last["gpus"] is None:
        return f"{by}, the fleet is too small from month {month} on; more GPUs than are allowed are needed in the end."
    end = f"{plural(last['gpus'], 'GPU')} at {usd(last['usd_per_month'])} a month"
    return f"{by}, the fleet of today is too small from month {month} on; after {last['month']} it takes {end}."


def scaled(found: Mapping[str, Any]) -> str:
    """What a fleet that follows the hours would save; empty where the load is not diurnal."""
    by_hour = found["autoscaling"]
    if by_hour is None:
        return ""
    return (
        f"The fleet is sized for the peak; the mean demand is {share(by_hour['mean_load_frac'])} of it, at which its "
        f"replicas are busy {share(found['options'][0]['busy_frac'])} of the time. A fleet that had at every hour just "
        f"what it needs would save {share(by_hour['saves_at_best_frac'])} at best "
        f"({usd(by_hour['usd_per_month_at_best'])} a month): replicas come and go at once then, which no real ones do."
    )


def reasons(found: Mapping[str, Any]) -> list[str]:
    """Of every option, in the order of the table; `* ...` says what its mark means."""
    said = [f"{row['option']}: {row['reason']}" for row in found["options"]]
    is_marked = any(row["calibrated"] is False for row in found["options"])
    return said + (["* step costs are uncalibrated: nobody timed this card under this engine"] if is_marked else [])


def table_rows(found: Mapping[str, Any]) -> list[Sequence[str]]:
    """A row an option, below the heads of the columns."""
    return [table_heads(), *(option_cells(row, best_of(found)) for row in found["options"])]


def table_heads() -> Sequence[str]:
    """What the columns are called."""
    return ("option", "GPUs", "a month", "per M good tokens", "attained", "interval", "kWh a month", "")


def option_name(row: Mapping[str, Any]) -> str:
    """With a star where step costs are uncalibrated."""
    return str(row["option"]) + (" *" if row["calibrated"] is False else "")


def option_cells(row: Mapping[str, Any], best: Mapping[str, Any] | None) -> Sequence[str]:
    """What stands in these columns."""
    name = option_name(row)
    if row["state"] != "holds" or best is None:
        tried = row["alone_attained_frac"] if row["attained_frac"] is None else row["attained_frac"]
        return (name, "–", "–", "–", share(tried), "–", "–", row["state"])
    close = "too close" if is_by_chance(row, best) else "as dear" if row["close_call"] else "dearer"
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


def _next(found: Mapping[str, Any]) -> str:
    """How the runner-up does."""
    held = [row for row in found["options"] if row["state"] == "holds"]
    close = [row["option"] for row in held if is_by_chance(row, held[0])]
    said = f" {needs_text(held[1], held[0])}" if len(held) > 1 else ""
    if close:
        said += f" Chance may have decided between it and {listed(close)}: a longer load would tell."
    return said


def _uncalibrated(row: Mapping[str, Any]) -> str:
    if row["calibrated"]:
        return ""
    return f" Step costs of {row['gpu']} are uncalibrated: measure one before you buy."


def _nearest(found: Mapping[str, Any]) -> str:
    """The option that comes closest, and by how much it falls short."""
    known = [row for row in found["options"] if row["state"] != "refused"]
    if not known:
        first = found["options"][0]
        return f"None can be built: {first['option']} {shortfall(first, found)}."
    nearest = max(known, key=lambda row: row["attained_frac"] or row["alone_attained_frac"] or 0.0)
    return f"The nearest is {nearest['option']}: it {shortfall(nearest, found)}."
