"""Interruptions: Ctrl-C reaches every process of a terminal, at any instruction; these say where it may not."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def leave_interruptions_to_the_parent() -> None:
    """Ignore Ctrl-C in this process; the parent ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay a Ctrl-C until the block is over; processes that begin in it are deaf to Ctrl-C from birth. Signals reach
    only the main thread, so the block is not delayed in others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[Any, ...]] = []
    before = signal.signal(signal.SIGINT, lambda *what: held.append(what))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by processes, also through exec
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
        if held and callable(before):
            before(*held[0])
