"""`simserve validate LOG --scenario`: compare a real server's log, replayed request by request."""

from pathlib import Path


def validate_log(log: Path, scenario: Path, page: Path | None, *, as_json: bool) -> None:
    """Replay the requests of a log on the server of a scenario; print the decision and the errors."""
    from simserve.cli import terminal
    from simserve.lab.log_error_facts import log_error_facts, trust_in_log
    from simserve.lab.log_errors import replay_log, server_of
    from simserve.lab.log_pages import tell
    from simserve.report.html import page as html
    from simserve.tables.files import plain, replace_text
    from simserve.workload.readers.logs import read_log

    server = server_of(scenario)
    read = read_log(log, server.seed)
    with terminal.progress_bar():
        replay = replay_log(read, server)
    trust, facts = trust_in_log(replay, str(scenario)), plain(log_error_facts(replay))
    document = tell(facts, trust)
    if page is not None:
        replace_text(page, html(document))
        terminal.message(f"wrote {page}")
    terminal.answer(document, {"decision": trust.facts(), **facts}, as_json=as_json)
