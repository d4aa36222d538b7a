"""Settings of a server: what the flags of its command set in a scenario; none is dropped in silence."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from simserve.errors import Problem, ScenarioError
from simserve.input_files import SCENARIO_BYTES, read_file
from simserve.servers.command_line import ENGINES, TEMPLATE, VARIABLE, Flag, ServerCommand, known_flags
from simserve.servers.forms import FORMS, SWITCHES
from simserve.servers.server_settings import POOL, TENSOR, BadValue, ServerSettings

NEAR = 0.85
"""Likeness of a misspelled flag to the one that was meant."""

FILES = ("config", "extra-llm-api-options")
"""Flags that name a file of further flags."""

OF_ENGINES = ("VLLM_", "SGLANG_", "SGL_", "TRTLLM_", "TLLM_", "NCCL_")
"""Beginnings of the names of variables that engines read."""


def settings_of(server: ServerCommand) -> ServerSettings:
    """Return the settings of a server. Raises ScenarioError with every flag that cannot be read, and what was."""
    known, problems = known_flags(server.engine), list[Problem]()
    simulated: Mapping[str, Mapping[str, str]] = known["simulated"]
    flags = {_canonical(known, flag.name): flag for flag in _with_files(server)}
    settings = ServerSettings(server.engine, flags)
    own = {} if server.model is None else {"model-path" if server.engine == "sglang" else "model": server.model}
    first = {name: flags[name] for name in TENSOR if name in flags}  # other flags divide or multiply it
    given = {name: Flag("MODEL", (model,)) for name, model in own.items()} | first | flags
    of_model = [name for name in given if simulated.get(name, {}).get("form") == "model"]
    for name in (*of_model, *(name for name in given if name not in of_model)):
        try:
            if name in simulated:
                _simulate(settings, given[name], **simulated[name])
            else:
                _list(settings, given[name], name, known)
        except BadValue as error:
            problems += server.refused(
                given[name].written, error.rule, given[name].value or None, error.remedy
            ).problems
    if not of_model:
        problems += server.refused("model", "is missing", None, "name it: vllm serve Qwen/Qwen3-32B").problems
    if problems:
        read = [f"{note.name} {note.value or ''}".strip() for note in settings.notes if note.how == "simulated"]
        not_read = [*(note.name for note in settings.notes if note.how == "unknown"), *server.not_read]
        others = f"; not read either: {', '.join(not_read)}" if not_read else ""
        rest = Problem(server.place, f"the rest was read: {', '.join(read) or 'nothing'}{others}")
        raise ScenarioError([*problems, rest])  # as the rest is to be corrected
    settings.notes = [
        note if note.key is None else note.model_copy(update={"becomes": str(settings.keys[note.key])})
        for note in settings.notes  # as a later flag may have changed it
    ]
    for text in server.not_read:
        settings.note(text, None, "not read", "it does not start the server")
    for name in server.env:  # values may be secrets
        settings.note(name, None, "not simulated" if name.startswith(OF_ENGINES) else "no effect", "a variable")
    return settings


def flags_by_key(engine: str) -> dict[str, str]:
    """Return the flag of each key that one flag alone sets, without the value that it needs."""
    simulated: Mapping[str, Mapping[str, str]] = known_flags(engine)["simulated"] if engine in ENGINES else {}
    flags: dict[str, str] = {}
    for name, each in simulated.items():
        flags.setdefault(each["key"].replace("pool.", f"{POOL}.", 1), f"--{name}")
    return flags


def _canonical(known: Mapping[str, Any], name: str) -> str:
    """Return the engine's long name of a flag, of which its beginning is enough."""
    name = known["aliases"].get(name, name)
    every = _every(known)
    longer = [each for each in every if each.startswith(name)]
    return longer[0] if name not in every and len(longer) == 1 and len(name) > len("tp-s") else name


def _every(known: Mapping[str, Any]) -> list[str]:
    return [*known["simulated"], *known["no_effect"], *known["not_simulated"]]


def _simulate(settings: ServerSettings, flag: Flag, key: str, form: str) -> None:
    """Set the key of a flag. Raises BadValue."""
    if not flag.values and form not in SWITCHES:
        raise BadValue("needs a value")
    if TEMPLATE.search(flag.value):
        raise BadValue("is a template", "render it first (helm template), or write its value")
    if flag.value.startswith(("$(", "`")):
        raise BadValue("is what another command prints", "write its value")
    if VARIABLE.search(flag.value):
        raise BadValue("is a variable that is not known", "give --env NAME=VALUE")
    FORMS[form](settings, flag, key.replace("pool.", f"{POOL}.", 1))


def _list(settings: ServerSettings, flag: Flag, name: str, known: Mapping[str, Any]) -> None:
    """List a flag that is not simulated. Raises BadValue for one that is nearly another, which is a mistake."""
    if name in known["no_effect"]:
        return settings.note(flag.written, None, "no effect")  # its value may be a secret
    if why := known["not_simulated"].get(name):
        return settings.note(flag.written, flag.value, "not simulated", why)
    near = difflib.get_close_matches(name, _every(known), 1, NEAR)
    if near:
        raise BadValue(f"{settings.engine} has no such flag", f"did you mean --{near[0]}?")
    return settings.note(flag.written, flag.value, "unknown", "it was not read")


def _with_files(server: ServerCommand) -> Iterator[Flag]:
    """Yield the flags, with those of a file in place of the flag that names it; a file elsewhere stays a name."""
    aliases = known_flags(server.engine)["aliases"]
    for flag in server.flags:
        if aliases.get(flag.name, flag.name) in FILES and Path(flag.value).is_file():
            yield from _of_file(Path(flag.value), server)
        else:
            yield flag


def _of_file(path: Path, server: ServerCommand) -> Iterator[Flag]:
    try:
        data = yaml.safe_load(read_file(path, SCENARIO_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        text = str(error).splitlines()[0]
        raise server.refused(str(path), f"cannot be read as YAML ({text})", None, "correct the file") from None
    match data:
        case {**keys}:
            yield from _of_keys(keys, "")
        case _:
            raise server.refused(str(path), "must be a mapping of flags", None, "correct the file")


def _of_keys(keys: Mapping[Any, Any], above: str) -> Iterator[Flag]:
    """Yield the keys of a file as flags; those of a mapping inside have its name and a dot before them."""
    for key, value in keys.items():
        match value:
            case {**inner}:
                yield from _of_keys(inner, f"{above}{key}.")
            case bool():
                yield Flag(f"--{above}{key}", (str(value).lower(),))
            case list():
                yield Flag(f"--{above}{key}", tuple(map(str, value)))
            case _:
                yield Flag(f"--{above}{key}", (str(value),))
