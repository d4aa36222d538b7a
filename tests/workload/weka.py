"""A small Weka/AgentX trace, made up: two subagents at once, gaps of 9, 10 and 11 s, and one that nobody waits for."""

import json
from pathlib import Path
from typing import Any

Item = dict[str, Any]


def call(t: float, n_in: int, n_out: int, ids: list[int], api_time: float | None = 1.0, **more: Any) -> Item:
    """Return a request."""
    sizes = {"in": n_in, "out": n_out, "hash_ids": ids, "api_time": api_time}
    return {"t": t, "type": "n", "model": "m", "think_time": 0.0, "stop": "tool_use"} | sizes | more


def subagent(t: float, duration_ms: int | None, *requests: Item) -> Item:
    """Return a subagent."""
    about = {"type": "subagent", "agent_id": "a", "subagent_type": "Explore", "status": "completed"}
    return about | {"t": t, "duration_ms": duration_ms, "requests": [*requests]}


def session(name: str, *requests: Item, **more: Any) -> Item:
    """Return a session."""
    about = {"id": name, "models": ["m"], "block_size": 64, "hash_id_scope": "local"}
    return about | {"requests": [*requests]} | more


def fan_out(name: str = "a", *, is_absolute: bool = True) -> Item:
    """Return a session with two subagents at once; inner times count from its start, or from each subagent's."""
    x_s, y_s = (12.0, 12.5) if is_absolute else (0.0, 0.0)
    x = subagent(12.0, 6000, call(x_s, 64, 5, [9]), call(x_s + 3.0, 130, 6, [9, 10]))
    y = subagent(12.5, None, call(y_s + 0.5, 70, 7, [9], 4.0, type="s"))
    main = [call(0.0, 130, 10, [1, 2]), call(9.0, 200, 20, [1, 2, 3, 77], 2.0)]  # the last block is not whole
    after = [
        call(19.0, 260, 30, [1, 2, 3, 4]),
        call(29.0, 330, 9, [1, 2, 3, 4, 5]),
        call(40.0, 340, 8, [1, 2, 3, 4, 5]),
    ]
    return session(name, *main, x, y, *after)


def in_background(name: str = "b") -> Item:
    """Return a session whose subagent ends after it."""
    slow = subagent(1.5, 100_000, call(1.5, 64, 50, [1], 90.0))
    return session(name, call(0.0, 128, 4, [1, 2]), slow, call(3.0, 192, 4, [1, 2, 3]))


def written(path: Path, *sessions: Item) -> Path:
    """Write sessions, one a line."""
    path.write_text("".join(f"{json.dumps(each)}\n" for each in sessions))
    return path
