"""What stands between the answer of a study and a decision: each caution a sentence, with its remedy."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.formats import count, number
from simserve.report.run_warnings import cautions
from simserve.report.sections import warning_list
from simserve.report.summary_reader import SummaryReader

Facts = Mapping[str, Any]

CHANCE = (
    "The interval is that of chance alone, over seeds. How far step costs may be off is not in it: the prediction "
    "intervals of `simserve run` say that, and docs/validation.md what servers have shown."
)


def warning_section(result: Facts, *more: str) -> str:
    """As the section of a page."""
    return warning_list([*_text(result), *more, CHANCE], "")


def _text(result: Facts) -> Sequence[str]:
    answer = result["answer"] or {}
    guess = bool(answer.get("kv_limit_is_a_guess"))
    run = {"pools": result["pools"], "warnings": result["warnings"], "trust": {"kv_limit_is_a_guess": guess}}
    text = list(cautions(SummaryReader(run)))
    if guess:
        text.append(
            "At the answer the KV cache is nearly full, by a number of blocks that is an estimate: give num_gpu_blocks "
            "from the server's log."
        )
    at = answer.get("offered_per_s") or answer.get("concurrency")
    if answer.get("is_precise") is False and at and number(at["low"]) is None:
        text.append(
            "How far chance may have moved the answer is not known: too few seeds tell where queues begin to grow."
        )
    elif answer.get("is_precise") is False:
        requested = f"{answer['precision_frac'] * 100:.3g}%"
        text.append(
            f"The interval is wider than the {requested} asked for, with as many seeds as are tried: "
            "make the runs longer."
        )
    if answer.get("n_enough") is False:
        least = count(10 / (1 - result["goal_frac"]))
        text.append(
            f"The answer rests on {count(answer['n_requests'])} requests, of which fewer than ten may miss: it wants "
            f"{least}; make the runs longer."
        )
    if answer.get("enough_turns") is False:
        text.append(
            "Each client asks fewer than ten times, so the rush at the start weighs much: raise workload.n_requests."
        )
    return text


def made_from(result: Facts) -> dict[str, Any]:
    """What the answer comes from, for the foot of a page."""
    scenario = result["scenario"]
    answer = result["answer"] or {}
    n_seeds = answer.get("n_seeds")
    seeds = None if n_seeds is None else f"{scenario['seed']} to {scenario['seed'] + n_seeds - 1}"
    return {"simserve": result["version"], "scenario": scenario["digest"], "seeds": seeds}
