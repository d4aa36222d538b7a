"""What the flags of a server set in a scenario, and how each was read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simserve.catalog.specs import ModelSpec
from simserve.metrics.answers.twin import How, ServerSetting
from simserve.servers.command_line import Flag

POOL, TENSOR = "cluster.pools.0", ("tensor-parallel-size", "tp-size")


class BadValue(Exception):
    """A value that its flag cannot have: rule and remedy."""

    def __init__(self, rule: str, remedy: str | None = None) -> None:
        super().__init__(rule)
        self.rule, self.remedy = rule, remedy


@dataclass
class ServerSettings:
    """What the flags of a server set in a scenario, each key by its dotted path, and how each flag was read."""

    engine: str
    flags: Mapping[str, Flag]
    """Flags by the engine's long names; of one that is given twice the last."""
    keys: dict[str, Any] = field(default_factory=dict)
    notes: list[ServerSetting] = field(default_factory=list)
    model: ModelSpec | None = None
    replicas: int = 1
    """Engines behind the server's port."""

    def note(self, name: str, value: object, how: How, why: str = "", key: str | None = None) -> None:
        """List a setting; `key`: what it sets."""
        becomes = None if key is None else str(self.keys[key])
        text = None if value is None else str(value)
        self.notes.append(ServerSetting(name=name, value=text, how=how, key=key, becomes=becomes, why=why or None))

    def set(self, flag: Flag, key: str, value: object, why: str = "") -> None:
        """Set a key to what a flag says."""
        self.keys[key] = value
        self.note(flag.written, flag.value, "simulated", why, key)

    def read(self, flag: Flag, why: str) -> None:
        """List a flag that sets no key of its own."""
        self.note(flag.written, flag.value, "simulated", why)

    def assume(self, key: str, value: object, why: str) -> None:
        """Set a key that no flag sets."""
        self.keys[key] = value
        self.note(key, value, "assumed", why, key)

    @property
    def tensor(self) -> int:
        """GPUs of tensor parallelism, as the engine counts them, by all parts of a context; 1 without a flag."""
        values = [self.flags[name].value for name in (*TENSOR, "cp-size") if name in self.flags]
        return math.prod(int(value) for value in values if value.isdecimal() and int(value))


def whole(text: str) -> int:
    """Return a whole number from 1 on. Raises BadValue."""
    if not text.isdecimal() or not int(text):
        raise BadValue("must be a whole number from 1 on")
    return int(text)


def number(text: str) -> float:
    """Return a number. Raises BadValue."""
    try:
        return float(text)
    except ValueError:
        raise BadValue("must be a number") from None
