"""The page of a twin: how the server was read, its load, the fit to its log, and what to do next."""

from collections.abc import Sequence

from simserve.metrics.answers.twin import How, ServerSetting, TwinAnswer, Word
from simserve.report.capacity.load_curve import UNITS
from simserve.report.capacity.rate_page import curves
from simserve.report.document import Cautions, Chapter, Command, Document, Explained, Row, Table, Tile, Titled
from simserve.report.formats import NONE, SHORT, as_sentence, count, listed, plural, rate, share, slo_terms

TITLES: dict[Word, tuple[str, str]] = {
    "explained": ("met", "Explained"),
    "not explained": ("missed", "Not explained"),
    "no fit": ("edge", "Not fitted"),
}
"""State and title for each word."""

CONSTANTS = ("constant", "as shipped", "fitted", "95% CI")
ERRORS = ("left out", "as shipped", "fitted")
FINE = "Nothing in the log says that it is worse than the errors above."

LISTS: Sequence[tuple[str, tuple[How, ...]]] = (
    ("Assumed", ("assumed",)),
    ("Not simulated", ("not simulated", "unknown", "not read")),
    ("No effect", ("no effect",)),
)
"""Settings that no key of the scenario has from the server, by the head of their list."""


def tell(answer: TwinAnswer) -> Document:
    """Return all that a twin tells."""
    state, title = TITLES[answer.word]
    read, fit = _read_table(answer), _fit_tables(answer)
    lists = [(head, _listed(answer.of(*how))) for head, how in LISTS]
    known = [(head, text) for head, text in lists if text]
    slo, capacity = _slo_words(answer), answer.slo_met and answer.slo_met.capacity
    brief_lists = "\n".join(f"{head}: {text}" for head, text in known)
    after = f"Next: {listed(list(answer.next_commands))}" if answer.next_commands else ""
    parts_left_out = answer.fit.parts if answer.fit else ""
    note = f"Mean absolute error of predicted means; {parts_left_out} were left out in turn." if parts_left_out else ""
    parts: list[Titled] = [
        Chapter("settings", "How the server was read", [read]),
        *([Chapter("others", "Everything else", [Explained(known)])] if known else []),
        *([Chapter("fit", "Fit to the log", fit, note)] if fit else []),
        *([curves(capacity, UNITS[capacity.question])] if capacity else []),
        Cautions([as_sentence(text) for text in answer.warnings], FINE),
        *([Chapter("next", "Next", [Command(each.split()) for each in answer.next_commands])] if after else []),
    ]
    return Document(
        command="twin",
        name=answer.scenario.name,
        state=state,
        title=title,
        lead=" ".join(filter(None, (answer.why, slo))),
        setup=(f"{answer.server}.", _load_words(answer), *([as_sentence(answer.cached)] if answer.cached else [])),
        tiles=_tiles(answer),
        parts=parts,
        made={"scenario": answer.scenario.digest},
        brief=(
            f"{title}: {answer.why}",
            f"{answer.server}. {_load_words(answer)}",
            read,
            brief_lists,
            *fit,
            as_sentence(answer.cached) if answer.cached else "",
            slo,
            after,
        ),
        warnings=answer.warnings,
    )


def _read_table(answer: TwinAnswer) -> Table:
    rows = [
        Row(setting.name, (setting.value or NONE, setting.key or NONE, setting.becomes or setting.why or NONE))
        for setting in answer.of("simulated")
    ]
    return Table(("flag", "value", "key", "there"), rows, wraps=True, dropped=("value",))


def _listed(settings: Sequence[ServerSetting]) -> str:
    """Return settings in a line: each with its value and why."""
    texts = []
    for setting in settings:
        value = f" {setting.value}" if setting.value else ""
        why = f" ({setting.why})" if setting.why and setting.how != "no effect" else ""
        texts.append(f"{setting.name}{value}{why}")
    return "; ".join(texts)


def _load_words(answer: TwinAnswer) -> str:
    load = answer.load
    if load.kind == "assumed":
        return "No log: the load is assumed, 4 req/s of chat lengths."
    sent = f"by {plural(load.clients, 'client')}" if load.clients else f"at {rate(load.rate_per_s or 0.0)} req/s"
    lengths = " in, ".join(count(round(n or 0)) for n in (load.mean_prompt_tokens, load.mean_output_tokens))
    drawn = ", by its means alone" if load.kind == "rate" else ""
    return f"Load of {load.log}{drawn}: {plural(load.n_requests or 0, 'request')} {sent}; {lengths} out on average."


def _fit_tables(answer: TwinAnswer) -> list[Table]:
    if answer.fit is None:
        return []
    constants = [
        Row(one.name, (f"{one.shipped:.4g}", f"{one.value:.4g}", "–".join(f"{end:.4g}" for end in one.interval or ())))
        for one in answer.fit.constants
    ]
    errors = [Row(SHORT[one.latency], (share(one.shipped_frac), share(one.fitted_frac))) for one in answer.fit.errors]
    return [*([Table(CONSTANTS, constants)] if constants else []), Table(ERRORS, errors)]


def _slo_words(answer: TwinAnswer) -> str:
    """Return how the SLO is met in the log, and where it breaks."""
    if answer.slo_met is None or not answer.slo:
        return ""
    met, terms = answer.slo_met, slo_terms(answer.slo)
    texts = []
    if met.measured_frac is not None and met.predicted_frac is not None:
        sides = f"{share(met.measured_frac)} as measured and {share(met.predicted_frac)} as predicted"
        texts.append(f"Of the log's requests {sides} have {terms}.")
    return " ".join([*texts, *filter(None, [met.breaks_at])])


def _tiles(answer: TwinAnswer) -> list[Tile]:
    errors = [] if answer.fit is None else answer.fit.errors
    return [
        Tile(f"{SHORT[each.latency]} off", share(each.fitted_frac), [f"as shipped {share(each.shipped_frac)}"])
        for each in errors
    ]
