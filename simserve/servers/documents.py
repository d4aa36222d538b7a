"""Files that deploy a server: the containers of a compose file, a Kubernetes manifest or Helm values."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from simserve.errors import Problem, ScenarioError, SimserveError
from simserve.input_files import SCENARIO_BYTES, read_file
from simserve.servers.command_line import ASSIGNMENT, TEMPLATE, ServerCommand, of_words, server_command, with_variables

WORDS = ("entrypoint", "command", "args", "extraArgs")
"""Keys with the words of a container, in the order in which they run."""

COUNTS = ("replicas", "replicaCount", "scale", "minReplicas")
"""Keys with the number of copies of what they stand in."""

OPTIONS = "--compose, --manifest or --values"


def server_of_file(path: Path, env: Mapping[str, str], name: str | None = None) -> ServerCommand:
    """Return the server that a file deploys, the one of that name if there are several. Raises SimserveError."""
    servers = {own: server for document in _documents(path) for own, server in _servers(document, path, env, set())}
    if not servers:
        rule = "must have a container that starts vllm serve, sglang.launch_server or trtllm-serve"
        raise ScenarioError([Problem(str(path), rule, None, "give its command line in quotes instead")])
    if name is None and len(servers) > 1:
        rule = f"has {len(servers)} servers"
        raise ScenarioError([Problem(str(path), rule, ", ".join(servers), "say which with --service NAME")])
    if name is not None and name not in servers:
        raise ScenarioError([Problem("--service", f"is in {path} the name of a server", name, ", ".join(servers))])
    return servers[name or next(iter(servers))]


def read_server(
    line: str | None, files: Mapping[str, Path | None], env: Mapping[str, str], service: str | None = None
) -> ServerCommand:
    """Return the server of a command line or of the one file that an option names. Raises SimserveError."""
    given = {option: path for option, path in files.items() if path is not None}
    if (line is not None) + len(given) != 1:
        got = ", ".join([*(["a command line"] if line is not None else []), *given]) or "neither"
        raise SimserveError(f"twin: takes a command line, or one of {OPTIONS}, got {got}; give one")
    if line is None:
        return server_of_file(next(iter(given.values())), env, service)
    if re.fullmatch(r"\S+\.(ya?ml|json)", line):
        raise SimserveError(f"COMMAND: must be a command line, got the file {line}; give it as one of {OPTIONS}")
    if service is not None:
        raise SimserveError(f"--service: is for a file, got {service} beside a command line; leave it out")
    return server_command(line, env)


def assignments(given: Sequence[str], option: str) -> dict[str, str]:
    """Parse NAME=VALUE. Raises SimserveError."""
    pairs = [(text, ASSIGNMENT.fullmatch(text)) for text in given]
    wrong = next((text for text, match in pairs if match is None), None)
    if wrong is not None:
        raise SimserveError(f"{option}: must be NAME=VALUE, got {wrong}; for example {option} TP=2")
    return {match[1]: match[2] for _, match in pairs if match is not None}


def _documents(path: Path) -> list[Any]:
    """Return the documents of a YAML file; templates stay as text. Raises ScenarioError."""
    try:
        text = read_file(path, SCENARIO_BYTES).decode("utf-8-sig")
        quoted = re.sub(rf"(?m)^(\s*(?:- |[\w.-]+: ))({TEMPLATE.pattern}.*)$", r"\1'\2'", text)
        return list(yaml.safe_load_all(quoted))
    except OSError as error:
        raise ScenarioError([Problem(str(path), f"cannot be read ({error.strerror})")]) from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = str(path) if mark is None else f"{path}:{mark.line + 1}"
        rule = f"is not YAML ({getattr(error, 'problem', None) or str(error).splitlines()[0]})"
        remedy = "render its templates first (helm template)" if "{{" in str(text) else "correct it"
        raise ScenarioError([Problem(place, rule, None, remedy)]) from None


def _servers(
    node: Any, path: Path, env: Mapping[str, str], seen: set[int], name: str = "server", replicas: int | None = None
) -> Iterator[tuple[str, ServerCommand]]:
    """Yield the servers below a node by their names, each with the copies of what encloses it. `seen`: nodes that were
    looked at, by identity, as an alias may contain itself."""
    if id(node) in seen:
        return
    match node:
        case list():
            seen.add(id(node))
            for item in node:
                yield from _servers(item, path, env, seen, name, replicas)
        case dict():
            seen.add(id(node))
            own, replicas = _name(node) or name, _copies(node) or replicas
            server = _container(node, path, env)
            if server is not None:
                yield own, replace(server, replicas=replicas)
                return
            for key, value in node.items():
                below = str(key) if own == name and key != "spec" else own
                yield from _servers(value, path, env, seen, below, replicas)


def _name(node: Mapping[str, Any]) -> str | None:
    """Return the name that a mapping gives itself."""
    match node:
        case {"name": str(name)} | {"metadata": {"name": str(name)}}:
            return name
    return None


def _copies(node: Mapping[str, Any]) -> int | None:
    """Return how many copies run of what a mapping describes."""
    match node:
        case {"deploy": {"replicas": int(n)}}:
            return n
    return next((node[key] for key in COUNTS if type(node.get(key)) is int), None)


def _container(node: Mapping[str, Any], path: Path, env: Mapping[str, str]) -> ServerCommand | None:
    """Return the server that a container starts; None: it is none, or starts another program."""
    image = _image(node)
    own = _variables(node) | dict(env)
    written = [re.sub(r"\$\((\w+)\)", r"${\1}", word) for key in WORDS for word in _list(node.get(key))]  # Kubernetes'
    words = [with_variables(word, own) for word in written]
    match node:
        case {"modelURL": str(model)}:  # the production stack of vLLM
            words = ["vllm", "serve", model, *_stack_flags(node.get("vllmConfig"))]
    server = of_words(words, own, image=image, place=str(path)) if words else None
    return None if server is None else replace(server, n_gpus=_n_gpus(node))


def _n_gpus(node: Mapping[str, Any]) -> int | None:
    """Return the GPUs that a container asks for."""
    match node:
        case {"requestGPU": int(n)}:
            return n
        case {"resources": {"limits": {**wanted}}} | {"resources": {"requests": {**wanted}}}:
            counts = [str(count) for name, count in wanted.items() if str(name).endswith("/gpu")]
            return next((int(count) for count in counts if count.isdecimal()), None)
    return None


def _image(node: Mapping[str, Any]) -> str:
    match node.get("image"):
        case str(image):
            return image
        case {"repository": repository, **others}:
            return f"{repository}:{others.get('tag', '')}"
    return f"{node.get('repository', '')}:{node.get('tag', '')}".strip(":")


def _list(words: Any) -> list[str]:
    """Return words that stand in a list, or in one text as a shell would split it."""
    match words:
        case list():
            return [str(word) for word in words]
        case str():
            try:
                return shlex.split(words)
            except ValueError:  # an open quote, which the flags will show
                return words.split()
    return []


def _variables(node: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a container; those of secrets and other sources have no value here."""
    result: dict[str, str] = {}
    for key in ("env", "environment"):
        match node.get(key):
            case dict() as pairs:
                result |= {str(name): str(value) for name, value in pairs.items()}
            case list() as items:
                for item in items:
                    match item:
                        case {"name": str(name), "value": value}:
                            result[name] = str(value)
                        case str() if match := ASSIGNMENT.fullmatch(item):
                            result[match[1]] = match[2]
    return result


def _stack_flags(config: Any) -> Iterator[str]:
    """Yield the flags that the production stack makes of its `vllmConfig`: its keys are theirs in camel case."""
    match config:
        case {**pairs}:
            for key, value in pairs.items():
                flag = "--" + re.sub(r"([A-Z])", r"-\1", str(key)).lower()
                match value:
                    case True:
                        yield flag
                    case False if key in ("enablePrefixCaching", "enableChunkedPrefill"):
                        yield flag.replace("--", "--no-", 1)
                    case list() if key == "extraArgs":
                        yield from map(str, value)
                    case str() | float() | int() if value is not False:
                        yield from (flag, str(value))
