"""`simserve validate LOG --scenario`: compare a real server's log, replayed request by request."""

from pathlib import Path


def validate_log(log: Path, scenario: Path, page: Path | None, *, as_json: bool) -> None:
    """Replay the requests of a log on the server of a scenario; print the decision and the errors."""
    from simserve.api import validate
    from simserve.cli import terminal

    with terminal.progress_bar():
        answer = validate(log, scenario)
    if page is not None:
        answer.page(page)
        terminal.message(f"wrote {page}")
    terminal.answer(answer.document, answer.printed, as_json=as_json)
