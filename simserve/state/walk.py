"""Walk: the queue of a replica as a built-in policy walks along it, in columns or in a view."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mypy_extensions import i64

from simserve.state.request import WAITING, Request
from simserve.state.view import ReplicaView


class Walk:
    """Requests that need prefill, between two steps: partly computed ones first, then waiting ones in order. The walk
    is at one of them; numbers are those of the replica before any of them is taken."""

    def __init__(self) -> None:
        self.n_decoding: i64 = 0
        self.decode_tokens: i64 = 1
        """Tokens of the budget that each decoding request takes."""
        self.n_running: i64 = 0
        """Slots in use, ..."""
        self.n_members: i64 = 0
        """... and those of requests that can be preempted."""
        self.n_prefilling: i64 = 0
        """Partly computed prompts."""
        self.free_blocks: i64 = 0
        """Free blocks after the decoding requests have taken theirs for the next step."""
        self.total_blocks: i64 = 0
        self.block_size: i64 = 0
        self.max_model_len: i64 = 0
        self.just_preempted = False
        """A request was preempted at this very boundary, as blocks ran out."""
        self.is_new = False
        """The request has no slot and no blocks."""

    def next(self) -> bool:
        """Go to the next request; return whether there is one."""
        raise NotImplementedError

    def skip_started(self) -> None:
        """Go to the last of the partly computed prompts, so that the next request is the first that waits."""
        raise NotImplementedError

    def take(self, n_tokens: i64, reserve_tokens: i64) -> None:
        """Let the step compute so many tokens of the request, which reserves blocks for others if the policy does."""
        raise NotImplementedError

    # -- the request ---------------------------------------------------------------------------------------------------

    def left_tokens(self) -> i64:
        """Return the tokens to compute before it can produce its next one, without its prefix cache hit."""
        raise NotImplementedError

    def new_tokens(self) -> i64:
        """Return the most tokens that it can still produce."""
        raise NotImplementedError

    def most_tokens(self) -> i64:
        """Return the most tokens that it can ever store: its prompt and the longest answer."""
        raise NotImplementedError

    def blocks_to_admit(self, n_tokens: i64) -> i64:
        """Return the free blocks that the next n_tokens of a new request take."""
        raise NotImplementedError

    def blocks_for_chunk(self, n_tokens: i64) -> i64:
        """Return the blocks that the next n_tokens begin."""
        raise NotImplementedError

    def tokens_of_hit(self) -> i64:
        """Return the tokens that would fill the free blocks which a new request takes besides those for its chunks."""
        raise NotImplementedError

    def missing_block(self) -> int | None:
        """Return the id of the first whole block to compute; None: all are there, or have no id."""
        raise NotImplementedError

    # -- the replica ---------------------------------------------------------------------------------------------------

    def blocks_for(self, n_tokens: i64) -> i64:
        """Return the most blocks that a request of n_tokens ever holds."""
        raise NotImplementedError

    def tokens_in(self, n_blocks: i64) -> i64:
        """Return the tokens that n_blocks hold."""
        raise NotImplementedError


class ViewWalk(Walk):
    """The walk along the queue of a view, with requests as objects."""

    def __init__(self, view: ReplicaView) -> None:
        super().__init__()
        self._view = view
        self._queue: Iterator[Request] = iter(view.queue)
        self.n_decoding, self.decode_tokens, self.n_running = view.n_decoding, view.decode_tokens, view.n_running
        self.n_members, self.n_prefilling = len(view.running), len(view.prefilling)
        self.free_blocks, self.total_blocks, self.block_size = view.free_blocks, view.total_blocks, view.block_size
        self.max_model_len, self.just_preempted = view.max_model_len, view.just_preempted
        self.request: Any = None
        """The request that the walk is at."""
        self.chunks: list[tuple[Request, int]] = []
        """Requests that were taken, each with its tokens, and ..."""
        self.reserve_tokens: list[int] = []
        """... the tokens that each reserves blocks for."""

    def next(self) -> bool:
        """Go to the next request; return whether there is one."""
        for request in self._queue:
            self.request = request
            self.is_new = request.phase is WAITING
            return True
        return False

    def skip_started(self) -> None:
        """Go to the last of the partly computed prompts, so that the next request is the first that waits."""
        self._queue = iter(self._view.waiting)

    def take(self, n_tokens: i64, reserve_tokens: i64) -> None:
        """Let the step compute so many tokens of the request, which reserves blocks for others if the policy does."""
        self.chunks.append((self.request, n_tokens))
        self.reserve_tokens.append(reserve_tokens)

    def left_tokens(self) -> i64:
        """Return the tokens to compute before it can produce its next one, without its prefix cache hit."""
        request: Request = self.request
        return request.prefill_left_tokens

    def new_tokens(self) -> i64:
        """Return the most tokens that it can still produce."""
        request: Request = self.request
        return request.max_tokens - request.emitted_tokens

    def most_tokens(self) -> i64:
        """Return the most tokens that it can ever store: its prompt and the longest answer."""
        request: Request = self.request
        return request.prompt_tokens + request.max_tokens

    def blocks_to_admit(self, n_tokens: i64) -> i64:
        """Return the free blocks that the next n_tokens of a new request take."""
        return self._view.blocks_to_admit(self.request, n_tokens)

    def blocks_for_chunk(self, n_tokens: i64) -> i64:
        """Return the blocks that the next n_tokens begin."""
        return self._view.blocks_for_chunk(self.request, n_tokens)

    def tokens_of_hit(self) -> i64:
        """Return the tokens that would fill the free blocks which a new request takes besides those for its chunks."""
        return self._view.tokens_of_hit(self.request)

    def missing_block(self) -> int | None:
        """Return the id of the first whole block to compute; None: all are there, or have no id."""
        return self._view.missing_block(self.request)

    def blocks_for(self, n_tokens: i64) -> i64:
        """Return the most blocks that a request of n_tokens ever holds."""
        return self._view.blocks_for(n_tokens)

    def tokens_in(self, n_blocks: i64) -> i64:
        """Return the tokens that n_blocks hold."""
        return self._view.tokens_in(n_blocks)
