"""Command lines of serving engines, as a shell, a container or a document has them: the engine and its flags."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

import yaml

from simserve.errors import Problem, ScenarioError

ENGINES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "vllm": (("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server"), ("-m", "vllm.entrypoints.api_server")),
    "sglang": (("-m", "sglang.launch_server"), ("sglang", "serve")),
    "trtllm": (("trtllm-serve", "serve"), ("trtllm-serve",)),
}
"""Words that start each engine; its flags follow."""

SCRIPT = re.compile(r"vllm serve|launch_server|api_server|sglang serve|trtllm-serve")

IMAGES = {"vllm": r"vllm-openai|/vllm(-\w+)*(:|@|$)", "sglang": r"sglang", "trtllm": r"tensorrt-?llm"}
"""Patterns of the names of container images."""

ENDS = frozenset(";&|<>()\n")
"""Characters of shell operators."""

TEMPLATE = re.compile(r"\{\{.*?\}\}")
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)")

PLACE = "command line"
EXAMPLE = 'give it as "vllm serve MODEL --tensor-parallel-size 2", in one text'


@dataclass(frozen=True)
class Flag:
    """A flag as it was written, with its values; none of a switch."""

    written: str
    values: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name without dashes before it, and with dashes inside."""
        return self.written.lstrip("-").replace("_", "-")

    @property
    def value(self) -> str:
        """Return the values as one text."""
        return " ".join(self.values)


@dataclass(frozen=True)
class ServerCommand:
    """How a server is started."""

    engine: str
    flags: tuple[Flag, ...]
    model: str | None = None
    """The model that stands without a flag."""
    place: str = PLACE
    """Where it was read, for messages."""
    env: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None
    """Version of the engine, of the tag of the image; None where none is named."""
    replicas: int | None = None
    n_gpus: int | None = None
    """GPUs that a container asks for."""
    not_read: tuple[str, ...] = ()
    """What stands around it and was not read."""

    def refused(self, about: str, rule: str, value: object = None, remedy: str | None = None) -> ScenarioError:
        """Return the error of a part of it."""
        return ScenarioError([Problem(f"{self.place}: {about}", rule, None if value is None else str(value), remedy)])


@cache
def known_flags(engine: str) -> Mapping[str, Any]:
    """Return what is known of the flags of an engine (flags.yaml)."""
    text = (resources.files("simserve.servers") / "flags.yaml").read_text(encoding="utf-8")
    engines: dict[str, Mapping[str, Any]] = yaml.safe_load(text)
    return engines[engine]


def server_command(text: str, env: Mapping[str, str]) -> ServerCommand:
    """Return the server that a text of a shell starts. Raises SimserveError where it starts none."""
    try:
        words = _words(text)
    except ValueError as error:
        rule = f"must be words of a shell ({str(error).lower()})"
        raise ScenarioError([Problem(PLACE, rule, _short(text), "close the quote")]) from None
    server = of_words(words, env)
    if server is None:
        rule = "must start vllm serve, sglang.launch_server or trtllm-serve"
        raise ScenarioError([Problem(PLACE, rule, _short(text), EXAMPLE)])
    return server


def of_words(
    words: Sequence[str], env: Mapping[str, str], *, image: str = "", place: str = PLACE
) -> ServerCommand | None:
    """Return the server that words start, in a container of that image if any; None where they start none."""
    script = next((word for word in words if " " in word.strip() and SCRIPT.search(word)), None)
    own, not_read, start = dict(env), list[str](), None
    words = words if script is None else _words(script)  # sh -c
    for command in _commands(words):
        part = command
        while part and (match := ASSIGNMENT.fullmatch(part[0] if part[0] != "export" else " ".join(part[1:2]))):
            own = {match[1]: match[2]} | own
            part = part[2 if part[0] == "export" else 1 :]
        if start is None and (start := _started(part, image)) is not None:
            continue
        if part:
            not_read.append(" ".join(part))
    if start is None:
        return None
    engine, rest, tag, more = start
    model, flags = _flags(rest, known_flags(engine), own | more)
    version = VERSION.search((tag or image).rpartition(":")[2])
    return ServerCommand(
        engine=engine,
        flags=flags,
        model=model,
        place=place,
        env=own | more,
        version=version[1] if version else None,
        not_read=tuple(not_read),
    )


def _words(text: str) -> list[str]:
    """Split as a shell does, with its operators as words of their own. Raises ValueError for an open quote."""
    text = re.sub(r"\\?[ \t]*\r?\n\s*(?=[-–—])", " ", re.sub(r"\\\r?\n", " ", text.strip()))
    text = TEMPLATE.sub(lambda match: shlex.quote(match[0]) if "'" not in match[0] else match[0], text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="".join(ENDS))
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    return [re.sub(r"^[–—](?=\w)", "--", word) for word in lexer]  # dashes that an editor has joined


def _commands(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the commands between the operators; what is behind a pipe or a redirection begins with it."""
    part: list[str] = []
    for word in words:
        if not word or set(word) - ENDS:
            part.append(word)
            continue
        yield part
        part = [] if set(word) <= set(";&\n") else [word]
    yield part


def _started(words: Sequence[str], image: str) -> tuple[str, Sequence[str], str, dict[str, str]] | None:
    """Return the engine that a command starts, the words that follow, and image and variables of its container."""
    for engine, starts in ENGINES.items():
        for start in starts:
            for place in range(len(words) - len(start) + 1):
                here = words[place : place + len(start)]
                if (here[0].rpartition("/")[2], *here[1:]) == start:
                    tag = next((word for word in words[:place] if re.search(IMAGES[engine], word)), "")
                    return engine, words[place + len(start) :], tag, _given(words[:place])
    is_run = words[:1] in (["docker"], ["podman"], ["nerdctl"])
    for place, word in enumerate(words if is_run else ()):  # the image starts vLLM itself
        if re.search(IMAGES["vllm"], word):
            return "vllm", words[place + 1 :], word, _given(words[:place])
    if image and words and words[0].startswith("-"):
        of_image = next((name for name, pattern in IMAGES.items() if re.search(pattern, image)), None)
        return None if of_image is None else (of_image, words, "", {})
    return None


def _given(words: Sequence[str]) -> dict[str, str]:
    """Return the variables of `docker run -e NAME=VALUE`, and of assignments before the engine."""
    pairs = [ASSIGNMENT.fullmatch(word) for word in words]
    return {match[1]: match[2] for match in pairs if match is not None}


def _flags(
    words: Sequence[str], known: Mapping[str, Any], env: Mapping[str, str]
) -> tuple[str | None, tuple[Flag, ...]]:
    """Return the word that stands without a flag, the model, and the flags with their values."""
    model, flags = None, list[Flag]()
    for word in (with_variables(word, env) for word in words):
        is_flag = re.match(r"--?[A-Za-z]", word) is not None
        if is_flag:
            name, equals, value = word.partition("=")
            flags.append(Flag(name, (value,) if equals else ()))
        elif (
            flags
            and flags[-1].name not in known["switches"]
            and (not flags[-1].values or flags[-1].name in known["many"])
        ):
            flags[-1] = replace(flags[-1], values=(*flags[-1].values, word))
        elif model is None and word:
            model = word
        elif word:
            flags.append(Flag(word))
    return model, tuple(flags)


def with_variables(text: str, env: Mapping[str, str]) -> str:
    """Return a text with the variables that are known in place of their names."""
    return VARIABLE.sub(lambda match: env.get(match[1] or match[3]) or match[2] or match[0], text)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return f"'{text[:60]}...'" if len(text) > 60 else f"'{text}'"
