"""`simserve validate --public`: errors and interval coverage by public data set, beside peers' published errors."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def validate_public(
    folder: Path, most: int | None, requests_per_client: int | None, page: Path | None, *, as_json: bool
) -> None:
    """Replay the public runs of a folder, and print the league."""
    from simserve.cli import terminal
    from simserve.lab.league import league_facts
    from simserve.lab.public import predict_public, read_public, spread_out
    from simserve.tables.files import plain

    cases, skipped = read_public(folder, requests_per_client)
    chosen = cases if most is None else spread_out(cases, most)
    runs = predict_public(chosen, terminal.message)
    n_of = Counter(case.data_set for case in cases)
    facts = plain(league_facts(runs, n_of, skipped))
    if page is not None:
        from simserve.lab.pages.league import render
        from simserve.tables.files import replace_text

        replace_text(page, render(facts))
        terminal.message(f"wrote {page}")
    if as_json:
        terminal.result_json(facts)
    else:
        terminal.result("\n".join(_lines(facts)))
    terminal.warnings(f"skipped: {each}" for each in facts["skipped"])
    reasons = Counter((run["file"], run["refused"]) for run in facts["runs"] if run["refused"])
    terminal.warnings(f"refused: {n} of {file}: {reason}" for (file, reason), n in reasons.items())


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    from simserve.cli import terminal
    from simserve.lab.pages.league import NOTE, PEERS_HEAD, SETS_HEAD, lead, peer_rows, set_rows

    yield lead(facts)
    yield NOTE
    tables: list[tuple[Sequence[str], list[Sequence[str]]]] = [(SETS_HEAD, set_rows(facts))]
    if facts["peers"]:
        tables.append((PEERS_HEAD, peer_rows(facts)))
    for head, rows in tables:
        yield ""
        yield terminal.table([head, *rows])
