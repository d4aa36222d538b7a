"""Twin: a server's command as a scenario, its log as the load, and host constants fitted to the log."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simserve import catalog
from simserve.errors import CalibrationError, Problem, ScenarioError, SimserveError
from simserve.lab.fit import Progress
from simserve.lab.fitted_log import LogFit, write_fitted
from simserve.lab.log_checks import check_model
from simserve.lab.log_errors import ReplayedLog, replay_log
from simserve.lab.log_fit import fit_files
from simserve.lab.server import Server
from simserve.lab.trust import CAUSES
from simserve.metrics.answers.parts import ScenarioName
from simserve.metrics.answers.twin import ConstantOfTwin, LatencyOfTwin, TwinAnswer, TwinFit, TwinSlo, Word
from simserve.metrics.goal import GOAL_FRAC
from simserve.report.capacity.page import paragraphs
from simserve.report.document import SENTENCE_END
from simserve.report.formats import SHORT, as_sentence, plural, share
from simserve.scenario import Scenario, load_scenario
from simserve.scenario.cost_warnings import warnings
from simserve.scenario.dump import yaml_text
from simserve.servers.load import LOAD_FILE, LoggedLoad, met_frac
from simserve.servers.question import TwinQuestion, complete
from simserve.servers.server_settings import POOL, ServerSettings
from simserve.servers.settings import settings_of
from simserve.study.capacity.concurrency import study_concurrency
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.capacity.rate import study_rate
from simserve.tables.files import replace_text
from simserve.tables.folder import TWIN
from simserve.workload.readers.logs.glossary import LogReading
from simserve.workload.readers.simserve import write_trace

SCENARIO_FILE = "scenario.yaml"
TITLES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}

EXPLAINED_FRAC = 0.25
"""Error of the mean E2E up to which a log is explained."""


def find_twin(question: TwinQuestion, progress: Progress | None = None) -> TwinAnswer:
    """Return the twin of a server, which can be written. Raises ScenarioError for flags that do not fit, TraceError for
    a log that cannot be read, and CalibrationError for one of another model."""
    settings = settings_of(question.server)
    complete(settings, question)
    load = question.load
    with TemporaryDirectory(prefix="simserve-twin-") as temporary:
        folder = Path(temporary)
        if load.log is not None:
            write_trace(load.log.trace, folder / LOAD_FILE)
        scenario = _written(folder, settings, question, load)
        named = [check_model(path, model, scenario) for path, model in load.models.items()]
        fit, why = _fitted(folder, load, progress)
        if fit is not None and fit.fitted and fit.is_enough:
            _use(folder, settings, fit, load)
            scenario = _written(folder, settings, question, load)
        replay = replay_log(load.log, Server(folder / SCENARIO_FILE).scenario) if load.log and load.logs else None
        breaks = _breaks_at(scenario, question.precision_frac) if question.slo else None
        if breaks is not None and replay is not None:
            measured, predicted = (met_frac(replay, question.slo, predicted=side) for side in (False, True))
            breaks = breaks.model_copy(update={"measured_frac": measured, "predicted_frac": predicted})
        word, why = _word(fit, replay, why)
        setup, n = scenario.setups[0], scenario.cluster.pools[0].replicas
        name = f"{TITLES[setup.engine.name]} {setup.engine.version}: {setup.model.name} in {setup.weight_dtype}"
        server = f"{name} on {setup.gpus_per_replica} × {setup.gpu.name}"
        answer = TwinAnswer(
            word=word,
            why=why,
            scenario=ScenarioName(name=scenario.name, digest=scenario.digest, seed=scenario.seed),
            server=server + (f", {plural(n, 'replica')}" if n > 1 else ""),
            settings=settings.notes,
            load=load.facts,
            fit=None if fit is None else _fit_facts(fit),
            slo=dict(question.slo),
            slo_met=breaks,
            cached=None if fit is None else fit.cached,
            warnings=[*load.warnings, *_cautions(fit, load, [*filter(None, named)]), *warnings(scenario.setups)],
        )
        files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        folders = {*catalog.names("gpus"), scenario.setups[0].gpu.name}  # those of earlier fits
    return answer.with_files(files, replace(TWIN, files=TWIN.files | folders))


def _written(folder: Path, settings: ServerSettings, question: TwinQuestion, load: LoggedLoad) -> Scenario:
    """Write the scenario and load it. Raises ScenarioError that names the flags."""
    assert settings.model is not None, "its flags were read"
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", settings.model.name).strip("-._") or "server"
    data: dict[str, Any] = {"schema": "simserve/1", "name": name, "model": None, "gpu": None, "engine": {}}
    pool: dict[str, Any] = {"name": "serve"}
    for key, value in settings.keys.items():
        *above, last = key.removeprefix(f"{POOL}.").split(".")
        if value is None and above != ["scheduler"]:
            continue  # the engine's own
        place = pool if key.startswith(POOL) else data
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    data["cluster"] = data.get("cluster", {}) | {"pools": [pool]}
    data["workload"] = dict(load.workload)
    data |= {"slo": dict(question.slo)} if question.slo else {}
    origins = {note.key: _origin(note.name, note.value, note.how) for note in settings.notes if note.key is not None}
    kept = [note.name for note in settings.notes if note.how in ("not simulated", "unknown")]
    head = [f"# The twin of a server: {TITLES[settings.engine]} as its command says."]
    head += [f"# Not simulated: {', '.join(kept)}."] if kept else []
    path = folder / SCENARIO_FILE
    replace_text(path, "\n".join([*head, yaml_text(data, origins)]))
    try:
        return load_scenario(path)
    except ScenarioError as error:
        places = {note.key: note.name for note in settings.notes if note.key is not None}
        raise ScenarioError([_of_flag(each, places, question.server.place) for each in error.problems]) from None


def _origin(name: str, value: str | None, how: str) -> str:
    text = " ".join(filter(None, (name, value)))
    return "assumed" if how == "assumed" else text if len(text) < 60 else name


def _of_flag(problem: Problem, flags: Mapping[str, str], place: str) -> Problem:
    """Return a problem of the scenario at the flag that set its value; one of the whole pool at the command."""
    key = problem.place.rpartition(": ")[2]
    flag = next((flag for own, flag in flags.items() if own == key or key.startswith(f"{own}.")), key)
    place = place if flag == POOL else f"{place}: {flag}"
    return Problem(place, problem.rule, problem.value, problem.remedy)


def _fitted(folder: Path, load: LoggedLoad, progress: Progress | None) -> tuple[LogFit | None, str]:
    """Return the fit to the logs, or why there is none."""
    if load.log is None:
        what = "No log was given" if load.facts.kind == "assumed" else "The log has no requests"
        return None, f"{what}, so constants are as shipped."
    if not load.logs:
        return None, "The log has no latencies, so constants are as shipped, and nothing can be compared."
    try:
        return fit_files(load.logs, Server(folder / SCENARIO_FILE), progress, LogReading(load.columns)), ""
    except CalibrationError as error:
        return None, as_sentence(str(error).partition(": ")[2])


def _use(folder: Path, settings: ServerSettings, fit: LogFit, load: LoggedLoad) -> None:
    """Write the fitted constants as `calibrate --logs` does, and let the scenario have them."""
    base, names = Server(folder / SCENARIO_FILE).calibration, [path.name for path in load.logs]
    keys: dict[str, object] = {f"engine.{name}": fitted.value for name, fitted in fit.fitted.items()}
    if base is not None:
        file = f"{fit.setup.gpu.name}/{fit.setup.engine.name}.json"
        write_fitted(folder / file, base, fit, load.logs)
        keys = {f"{POOL}.calibration": file}
    settings.keys |= keys
    for key in keys:
        settings.note("--log", ", ".join(names), "simulated", "fitted", key)


def _word(fit: LogFit | None, replay: ReplayedLog | None, why: str) -> tuple[Word, str]:
    """Return the decision and its reason."""
    if replay is None or not replay.metrics:
        return "no fit", why
    errors = {name: replay.error_of_mean(name) for name in replay.metrics}
    worst = max(errors, key=lambda name: abs(errors[name].value))
    deciding = "e2e_s" if "e2e_s" in errors else worst
    left_out = fit.errors.get(deciding) if fit is not None and fit.is_enough else None
    off_frac = abs(errors[deciding].value) if left_out is None else left_out.fitted_frac
    cause = CAUSES.get((SHORT[worst], errors[worst].value < 0), "")
    if fit is not None and fit.at_bound:
        return "not explained", f"{', '.join(fit.at_bound)} ended at its bound: it stands for another cost. {cause}"
    if off_frac > EXPLAINED_FRAC:
        what = f"Mean {SHORT[deciding]} is {share(off_frac)} off, more than {share(EXPLAINED_FRAC)}."
        return "not explained", " ".join(filter(None, (what, cause, why)))
    if fit is None:
        return "no fit", f"{why} With shipped constants mean {SHORT[deciding]} is {share(off_frac)} off."
    return "explained", _explained(fit, off_frac, deciding)


def _explained(fit: LogFit, off_frac: float, deciding: str) -> str:
    """Return how well a fit explains its logs."""
    if not fit.is_enough:
        used = f"Only {fit.used_frac:.0%} of the requests could be used, so constants are as shipped"
        return f"{used}: log a time with less load. Mean {SHORT[deciding]} is {share(off_frac)} off."
    n, verb = plural(len(fit.fitted), "constant"), "is" if len(fit.fitted) == 1 else "are"
    what = f"{n} {verb} fitted to {fit.n_requests:,} requests" if fit.fitted else "Constants stay as shipped"
    return f"Mean {SHORT[deciding]} is {share(off_frac)} off in what was left out of the fit ({fit.parts}). {what}."


def _fit_facts(fit: LogFit) -> TwinFit:
    constants = [
        ConstantOfTwin(
            name=name,
            shipped=fitted.shipped,
            value=fitted.value,
            interval=(fitted.low, fitted.high),
            is_at_bound=name in fit.at_bound,
        )
        for name, fitted in fit.fitted.items()
    ]
    return TwinFit(
        n_requests=fit.n_requests,
        used_frac=fit.used_frac,
        is_used=bool(fit.fitted) and fit.is_enough,
        parts=fit.parts,
        constants=constants,
        as_shipped=fit.as_shipped,
        errors=[
            LatencyOfTwin(latency=name, shipped_frac=each.shipped_frac, fitted_frac=each.fitted_frac)
            for name, each in fit.errors.items()
        ],
    )


def _breaks_at(scenario: Scenario, precision_frac: float) -> TwinSlo:
    """Return the capacity and its first sentence, as `simserve capacity` says it, or why there is none."""
    study = study_rate if scenario.workload.client is None else study_concurrency
    try:
        answer: Any = study(CapacityQuestion(scenario, GOAL_FRAC, precision_frac)).answer
    except SimserveError as error:
        return TwinSlo(breaks_at=f"Where it breaks is not known: {error}.")
    return TwinSlo(breaks_at=SENTENCE_END.split(paragraphs(answer)[0])[0], capacity=answer)


def _cautions(fit: LogFit | None, load: LoggedLoad, named: Sequence[str]) -> list[str]:
    """Return what to know of the logs and their fit."""
    notes, left_out = ((), {}) if fit is None else (fit.notes, fit.left_out)
    lost = load.log is not None and load.log.trace.prefixes is not None and load.facts.kind == "closed_loop"
    return [
        *dict.fromkeys((*named, *notes)),
        *(f"{n} requests left out of the fit: {reason}" for reason, n in left_out.items()),
        *(["clients draw lengths of the log, without the prefixes that its prompts share"] if lost else []),
    ]
