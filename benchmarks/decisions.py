"""Decisions about the shipped scenarios: prints the table of docs/statistics.md."""

import sys
from collections.abc import Iterator
from pathlib import Path

from simserve import load_scenario
from simserve.errors import SimserveError
from simserve.metrics.goal import CAP, probability
from simserve.metrics.summary_schema import DecisionJson
from simserve.study.uncertainty import run_with_replays

HEAD = "| scenario | r | by noise | with cost error | P | decision |\n|---|---|---|---|---|---|"
WORDS = {"likely_meets": "likely meets", "likely_misses": "likely misses"}


def rows(folder: Path) -> Iterator[str]:
    """Yield a row for each scenario of a folder that has an SLO and can run from there."""
    for path in sorted(folder.glob("*.yaml")):
        try:
            scenario = load_scenario(path)
            decision = run_with_replays(scenario).decision
        except SimserveError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            continue
        if decision is not None and decision.r is not None:
            yield row(path.stem, decision)


def ratio(r: float | None) -> str:
    """Return `0.72`; `>16` where it is no longer known."""
    return f"{r or 0.0:.2f}" if (r or 0.0) < CAP * (1 - 1e-9) else f">{CAP:g}"


def row(name: str, decision: DecisionJson) -> str:
    """Return a row of the table."""
    r, *ends = (
        "–".join(dict.fromkeys(map(ratio, span or ()))) for span in ([decision.r], decision.r_noise, decision.r_total)
    )
    word = WORDS.get(decision.word, decision.word) + (f" ({decision.why})" if decision.why else "")
    return f"| {name} | {r} | {' | '.join(ends)} | {probability(decision.probability or 0.0)} | {word} |"


if __name__ == "__main__":
    print(HEAD)
    for line in rows(Path(sys.argv[1] if len(sys.argv) > 1 else "scenarios")):
        print(line, flush=True)
