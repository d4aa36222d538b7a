"""What stands between the answer of a study and a decision: each caution a sentence, with its remedy."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.formats import count, number
from simserve.report.run_warnings import cautions
from simserve.report.sections import warning_list
from simserve.report.summary_reader import SummaryReader

Facts = Mapping[str, Any]

CHANCE = (
    "The interval covers sampling noise over seeds, not cost-model error. Prediction intervals of `simserve run` "
    "cover both; docs/validation.md compares with real servers."
)


def warning_section(result: Facts, *more: str) -> str:
    """Return the warnings as the section of a page."""
    return warning_list([*_text(result), *more, CHANCE], "")


def _text(result: Facts) -> Sequence[str]:
    answer = result["answer"] or {}
    guess = bool(answer.get("kv_limit_is_a_guess"))
    run = {"pools": result["pools"], "warnings": result["warnings"], "trust": {"kv_limit_is_a_guess": guess}}
    text = list(cautions(SummaryReader(run)))
    if guess:
        text.append(
            "At the answer the KV cache is nearly full, and its size is an estimate: set num_gpu_blocks to the number "
            "in the server's log."
        )
    at = answer.get("offered_per_s") or answer.get("concurrency")
    if answer.get("is_precise") is False and at and number(at["low"]) is None:
        text.append("The answer has no interval: at too few seeds queues begin to grow. Make the runs longer.")
    elif answer.get("is_precise") is False:
        requested = f"{answer['precision_frac'] * 100:.3g}%"
        text.append(
            f"The interval is wider than the requested {requested}, with as many seeds as are tried: "
            "make the runs longer."
        )
    if answer.get("n_enough") is False:
        least = count(10 / (1 - result["goal_frac"]))
        text.append(
            f"The answer rests on {count(answer['n_requests'])} requests, and fewer than ten of them may miss: it "
            f"needs {least}. Make the runs longer."
        )
    if answer.get("enough_turns") is False:
        text.append(
            "Each client sends fewer than ten requests, so the rush at the start weighs much. "
            "Raise workload.n_requests."
        )
    return text


def made_from(result: Facts) -> dict[str, Any]:
    """Return what the answer comes from, for the foot of a page."""
    scenario = result["scenario"]
    answer = result["answer"] or {}
    n_seeds = answer.get("n_seeds")
    seeds = None if n_seeds is None else f"{scenario['seed']} to {scenario['seed'] + n_seeds - 1}"
    return {"simserve": result["version"], "scenario": scenario["digest"], "seeds": seeds}
