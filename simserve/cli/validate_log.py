"""`simserve validate LOG --scenario`: compare a real server's log, replayed request by request."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

LABELS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
HEAD = ("requests", "mean error", "median", "p90", "bias")


def validate_log(log: Path, scenario: Path, page: Path | None, *, as_json: bool) -> None:
    """Replay the requests of a log on the server of a scenario, and print the errors of the predictions."""
    from simserve.cli import terminal
    from simserve.lab.log_error_facts import log_error_facts
    from simserve.lab.log_errors import replay_log, server_of
    from simserve.tables.files import plain
    from simserve.workload.readers.logs import read_log

    server = server_of(scenario)
    read = read_log(log, server.seed)
    with terminal.progress_bar():
        facts = plain(log_error_facts(replay_log(read, server)))
    if page is not None:
        from simserve.lab.log_pages import render_replay
        from simserve.tables.files import replace_text

        replace_text(page, render_replay(facts))
        terminal.message(f"wrote {page}")
    if as_json:
        terminal.result_json(facts)
    else:
        terminal.result("\n".join(_report(facts)))
    terminal.warnings(facts["warnings"])


def _report(facts: Mapping[str, Any]) -> Iterator[str]:
    """Format the assumptions, the tables, and the worst requests."""
    from simserve.cli import terminal

    log = facts["log"]
    yield f"{log['n_compared']} of {log['n_requests']} requests of {log['path']} compared. Assumptions:"
    yield from (f"  {each}" for each in facts["assumed"])
    tables = [_distributions(facts), _totals(facts), *_errors(facts), *_worst(facts)]
    for table in tables:
        yield ""
        yield terminal.table(table)


def _distributions(facts: Mapping[str, Any]) -> list[Sequence[str]]:
    from simserve.report.formats import seconds

    levels = ("mean", "p50", "p90", "p95", "p99")
    rows: list[Sequence[str]] = [("all requests", "", *levels)]
    for name, of in facts["distributions"].items():
        for side in ("measured", "predicted"):
            rows.append((LABELS[name], side, *(seconds(of[level][side]) for level in levels)))
        rows.append(("", "error", *(_signed(of[level]["error_frac"]) for level in levels)))
    return rows


def _totals(facts: Mapping[str, Any]) -> list[Sequence[str]]:
    from simserve.report.formats import rate, seconds

    makespan, speed = facts["makespan_s"], facts["output_tokens_per_s"]
    sides = ("measured", "predicted")
    return [
        ("whole log", *sides, "error"),
        ("makespan", *(seconds(makespan[side]) for side in sides), _signed(makespan["error_frac"])),
        ("output tokens/s", *(rate(speed[side]) for side in sides), _signed(speed["error_frac"])),
    ]


def _errors(facts: Mapping[str, Any]) -> Iterator[list[Sequence[str]]]:
    """Yield tables of per-request errors: overall, by load and by prompt length."""
    if not facts["errors"]:
        return
    overall = [(LABELS[name], _cells(of["overall"])) for name, of in facts["errors"].items()]
    yield [("per request", *HEAD), *((name, *cells) for name, cells in overall)]
    for key, title in (("by_load", "requests in flight"), ("by_prompt_tokens", "prompt tokens")):
        rows = [
            (f"{each['lowest']:,.0f} to {each['highest']:,.0f}", LABELS[name], *_cells(each))
            for name, of in facts["errors"].items()
            for each in of[key]
        ]
        if rows:
            yield [(title, "", *HEAD), *rows]


def _cells(errors: Mapping[str, Any]) -> tuple[str, ...]:
    shares = (f"{errors[key]:.1%}" for key in ("mape_frac", "median_frac", "p90_frac"))
    return (f"{errors['n']}", *shares, _signed(errors["bias_frac"]))


def _worst(facts: Mapping[str, Any]) -> Iterator[list[Sequence[str]]]:
    from simserve.report.formats import seconds

    for name, worst in facts["worst"].items():
        rows: list[Sequence[str]] = [
            (f"Worst {LABELS[name]}", "sent at", "prompt", "output", "measured", "predicted", "ratio")
        ]
        for each in worst:
            sent = seconds(each["arrival_s"])
            tokens = (f"{each['prompt_tokens']}", f"{each['output_tokens']}")
            sides = (seconds(each["measured"]), seconds(each["predicted"]))
            rows.append((each["request"], sent, *tokens, *sides, f"{each['ratio']:.2f}"))
        yield rows


def _signed(frac: float | None) -> str:
    return "–" if frac is None else f"{frac:+z.1%}"
