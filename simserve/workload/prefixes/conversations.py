"""Conversations: the prompt of a turn is the whole conversation so far plus a new part."""

from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic.dataclasses import dataclass

from simserve.tables.columns import Floats, Ints, by_appearance
from simserve.workload.amounts import Time, Whole, most_of, seconds, whole_numbers
from simserve.workload.lengths.base import STRICT, Drawn, Tokens
from simserve.workload.prefixes.base import BlockTokens, DrawLengths, PrefixStructure, SomeTokens, prefixed, runs_of_two
from simserve.workload.streams import Stream
from simserve.workload.trace import Dependencies, Prefixes, Trace

MOST_TURNS = 10_000
FEWEST = 64


class Turns(NamedTuple):
    """Requests in the order of arrival, `(n,)` each."""

    arrival_s: Floats
    conversation: Ints
    turn: Ints
    """Turn number, from 1."""

    def first(self, n: int) -> "Turns":
        """Return the first n requests."""
        return Turns(self.arrival_s[:n], self.conversation[:n], self.turn[:n])


@dataclass(config=STRICT)
class Conversations(PrefixStructure):
    """A prompt is all earlier prompts and answers of its conversation, followed by a new part.

    The arrival process starts conversations, so the request rate is `turns` times as high. With next_turn:
    after_arrival a turn comes think_s after the previous one arrived, answered or not: an open loop. With after_answer
    it comes think_s after the previous answer, and users of a closed loop may begin the conversations.
    """

    turns: Whole
    """Requests of a conversation: a number, [least, most], or lognormal {median, sigma, max}."""
    think_s: Time
    """[s] Time between turns: seconds, exponential {mean}, or lognormal {median, sigma, max}."""
    next_turn: Literal["after_arrival", "after_answer"] = "after_arrival"
    """Event from which think_s counts: the arrival of the turn before, answered or not, or its answer."""
    system_tokens: SomeTokens = 0
    """[tokens] Length of the system prompt that begins all conversations."""
    max_prompt_tokens: Tokens | None = None
    """[tokens] Limit above which a turn starts over, from the system prompt and its new part; null: none."""
    block_tokens: BlockTokens = 16
    """[tokens] Size of a shareable block: the engine's block size, or a multiple; larger blocks run faster."""

    makes_sessions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.needs_arrivals = self.next_turn == "after_arrival"  # type: ignore[misc]  # depends on the arguments
        if most_of(self.turns) > MOST_TURNS:
            raise ValueError(f"turns must be at most {MOST_TURNS}, got {most_of(self.turns)}")

    def draw(self, arrival_s: Floats, duration_s: float | None, lengths: DrawLengths, stream: Stream) -> Trace:
        """Return the first requests of all conversations; request i has the i-th lengths, in whichever conversation.
        After answers the order is unknown, so the rows go conversation by conversation."""
        if self.next_turn == "after_answer":
            return self._after_answers(arrival_s, duration_s, lengths, stream)
        turns = self._first(arrival_s, stream) if duration_s is None else self._until(arrival_s, duration_s, stream)
        return self._text(turns, lengths(len(turns.arrival_s)))

    def _after_answers(self, start_s: Floats, duration_s: float | None, lengths: DrawLengths, stream: Stream) -> Trace:
        n_turns = whole_numbers(self.turns, len(start_s), stream("prefixes/turns"))
        n = int(n_turns.sum()) if duration_s is not None else len(start_s)
        n_turns = n_turns[: int(np.searchsorted(np.cumsum(n_turns), n)) + 1]
        conversation = np.repeat(np.arange(len(n_turns)), n_turns)[:n]
        turn = np.arange(n) - np.searchsorted(conversation, conversation) + 1
        think_s = seconds(self.think_s, n, stream("prefixes/think"))
        trace = self._text(Turns(start_s[conversation], conversation, turn), lengths(n))
        return replace(trace, dependencies=Dependencies.chains(conversation, think_s))

    def _text(self, turns: Turns, drawn: Drawn) -> Trace:
        """Build the requests of these turns, with their conversations so far."""
        before, prefixes = self._history(turns, drawn)
        trace = prefixed(turns.arrival_s, drawn, before, prefixes)
        return replace(trace, session_id=turns.conversation.astype(np.str_), turn=turns.turn)

    def _first(self, start_s: Floats, stream: Stream) -> Turns:
        """Return as many requests as there are instants, drawing only the conversations needed."""
        n, n_begun = len(start_s), FEWEST
        while n_begun < n:
            turns = self._turns(start_s[:n_begun], stream)
            if np.searchsorted(turns.arrival_s, start_s[n_begun]) >= n:  # no later conversation comes before these
                break
            n_begun *= 2
        return self._turns(start_s[:n_begun], stream).first(n)

    def _until(self, start_s: Floats, duration_s: float, stream: Stream) -> Turns:
        turns = self._turns(start_s, stream)
        return turns.first(int(np.searchsorted(turns.arrival_s, duration_s)))

    def _turns(self, start_s: Floats, stream: Stream) -> Turns:
        """Draw all turns of the conversations that begin at these instants."""
        n_turns = whole_numbers(self.turns, len(start_s), stream("prefixes/turns"))
        first = np.cumsum(n_turns) - n_turns
        conversation = np.repeat(np.arange(len(start_s)), n_turns)
        turn = np.arange(len(conversation)) - first[conversation]
        think_s = seconds(self.think_s, len(conversation), stream("prefixes/think"))
        think_s[first] = 0.0
        passed_s = np.cumsum(think_s)
        arrival_s = start_s[conversation] + (passed_s - passed_s[first][conversation])
        order = np.argsort(arrival_s, kind="stable")  # on a tie, earlier conversations and turns first
        return Turns(arrival_s[order], conversation[order], turn[order] + 1)

    def _history(self, turns: Turns, drawn: Drawn) -> tuple[Ints, Prefixes]:
        """Return the tokens before each new part, and their ids: turn by turn, all conversations at once."""
        n = len(turns.conversation)
        n_conversations = int(turns.conversation.max(initial=-1)) + 1
        so_far = np.full(n_conversations, self.system_tokens)
        chain = np.arange(n_conversations)
        """Current chain of each conversation; a restart begins another one."""
        n_chains = n_conversations
        before, of_chain = np.empty(n, np.int64), np.empty(n, np.int64)
        by_turn = np.argsort(turns.turn, kind="stable")
        for rows in np.split(by_turn, np.flatnonzero(np.diff(turns.turn[by_turn])) + 1):
            conversation = turns.conversation[rows]
            prompts = so_far[conversation] + drawn.prompt_tokens[rows]
            too_long = (prompts > (self.max_prompt_tokens or np.inf)) & (turns.turn[rows] > 1)
            so_far[conversation[too_long]] = self.system_tokens
            chain[conversation[too_long]] = n_chains + np.arange(too_long.sum())
            n_chains += int(too_long.sum())
            before[rows], of_chain[rows] = so_far[conversation], chain[conversation]
            so_far[conversation] += drawn.prompt_tokens[rows] + drawn.output_tokens[rows]
        if self.next_turn == "after_answer":  # in the order of rows, so that further conversations change no id
            of_chain = by_appearance(of_chain)
        return before, self._prefixes(before, of_chain, n_chains, drawn)

    def _prefixes(self, before: Ints, of_chain: Ints, n_chains: int, drawn: Drawn) -> Prefixes:
        """Return the ids before a request's new part, and of its whole prompt and answer if another turn follows."""
        shared = np.full(n_chains, self.system_tokens)
        np.maximum.at(shared, of_chain, before)  # context of the last turn of each chain
        tokens = np.where(before < shared[of_chain], before + drawn.prompt_tokens + drawn.output_tokens, before)
        n_system = self.system_tokens // self.block_tokens
        n_own = shared // self.block_tokens - n_system
        own_first_ids = n_system + np.cumsum(n_own) - n_own
        return runs_of_two(self.block_tokens, self.system_tokens, own_first_ids[of_chain], tokens // self.block_tokens)
