"""Shared prefixes of a file as Prefixes: block ids, checked row by row, or the name of a prefix."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.tables.columns import Flags, Floats, Lists
from simserve.workload.readers.base import Place, refuse_rows
from simserve.workload.readers.cells import numbers
from simserve.workload.trace import MOST_TOKENS, Prefixes, Trace

CHAINED = (
    "hash_ids were of the blocks' contents alone and were chained: a block is shared where all before it is equal too"
)

MOONCAKE_BLOCK_TOKENS = 512
VLLM_BLOCK_TOKENS = 16
LONGEST_VLLM_BLOCK_TOKENS = 32
"""Prompt tokens per hash id: at most 24 with blocks of 16, more with blocks of 512; prompts up to 32 tokens do not
tell."""

Ints = NDArray[np.int64]


def given_block_tokens(n_tokens: NDArray[Any], n_ids: Ints) -> int | None:
    """Return whether ids stand for 16 or 512 tokens each, from the first row that tells; None if no row does."""
    telling = np.flatnonzero((n_ids > 0) & (n_tokens > LONGEST_VLLM_BLOCK_TOKENS))
    if not len(telling):
        return None
    is_small = n_tokens[telling[0]] <= LONGEST_VLLM_BLOCK_TOKENS * n_ids[telling[0]]
    return VLLM_BLOCK_TOKENS if is_small else MOONCAKE_BLOCK_TOKENS


@dataclass(frozen=True)
class HashIds:
    """hash_ids as in a file: a list per row, empty for none."""

    rows: Lists
    block_tokens: int
    of_prompts: bool = True
    """One id for each block of the prompt; a last, partial block may have one or not. Otherwise the ids may end sooner,
    or extend into the output."""
    may_be_unchained: bool = False
    """An id may stand for its own block alone, whatever precedes it."""

    def put(self, place: Place, trace: Trace) -> Trace:
        """Return the trace with its prefixes. Needs checked lengths. Raises TraceError."""
        offered = np.diff(self.rows.offsets)
        n_ids = self._whole_blocks(place, trace, offered)
        kept = self.rows if np.array_equal(n_ids, offered) else self.rows.cut(self.rows.offsets[:-1], n_ids)
        ids, offsets = kept.values, kept.offsets
        unlike = first_other_predecessor(ids, offsets)
        notes = trace.notes
        if unlike is not None and self.may_be_unchained:
            ids, notes = chained(ids, offsets), (*notes, CHAINED)
        elif unlike is not None:
            self._refuse_unchained(place, ids, offsets, *unlike)
        return replace(trace, prefixes=Prefixes.from_ids(self.block_tokens, ids, offsets), notes=notes)

    def _whole_blocks(self, place: Place, trace: Trace, offered: Ints) -> Ints:
        """Return the number of each row's ids that are whole blocks."""
        tokens = trace.prompt_tokens if self.of_prompts else trace.prompt_tokens + trace.output_tokens
        whole = tokens // self.block_tokens
        most = -(-tokens // self.block_tokens)
        what = "its prompt has" if self.of_prompts else "its prompt and answer have"
        rule = f"hash_ids must be at most one for each block of {self.block_tokens} tokens that {what}"
        _refuse_counts(place, offered > most, rule, offered, tokens)
        if self.of_prompts:
            rule = f"hash_ids must be one for each block of {self.block_tokens} tokens, or none at all"
            _refuse_counts(place, (offered < whole) & (offered > 0), rule, offered, tokens)
        return np.minimum(offered, whole)

    def _refuse_unchained(self, place: Place, ids: Ints, offsets: Ints, at: Ints, first: Ints) -> None:
        row = np.searchsorted(offsets, at, side="right") - 1
        is_bad = np.zeros(len(place.numbers), np.bool_)
        is_bad[row] = True
        before, elsewhere = (f"after {ids[i - 1]}" if i not in offsets else "first" for i in (at[0], first[0]))
        text = f"{ids[at[0]]} {before}, and {elsewhere} elsewhere"
        rule = "hash_ids must be chained, an id always after the same one, as it stands for all that is before it"
        refuse_rows(place, is_bad, rule, [text] * len(is_bad))


@dataclass(frozen=True)
class PrefixNames:
    """prefix_id and prefix_tokens as in a file: rows with equal ids share their first prefix_tokens."""

    prefix_id: NDArray[np.str_]
    """Name of the prefix; empty for none."""
    prefix_tokens: NDArray[Any]
    block_tokens: int

    def put(self, place: Place, trace: Trace) -> Trace:
        """Return the trace with its prefixes. Needs checked lengths. Raises TraceError."""
        tokens = self.prefix_tokens
        is_whole = (tokens >= 0) & (tokens == np.floor(tokens)) & (tokens <= trace.prompt_tokens)
        refuse_rows(place, ~is_whole, "prefix_tokens must be whole and in [0, prompt_tokens]", tokens)
        n_ids = np.where(self.prefix_id == "", 0, tokens).astype(np.int64) // self.block_tokens
        names, name = np.unique(self.prefix_id, return_inverse=True)
        longest = np.zeros(len(names), np.int64)
        np.maximum.at(longest, name, n_ids)
        first_ids = (np.cumsum(longest) - longest)[name]
        return replace(trace, prefixes=Prefixes(self.block_tokens, first_ids, n_ids, np.arange(len(n_ids) + 1)))


def same_in_all(place: Place, name: str, column: Floats) -> int:
    """Return the single value of a column that describes the whole file. Raises TraceError."""
    if not len(column):
        raise TraceError(f"{place.path}: must hold at least one request, got none; is it the right file?")
    values = numbers(place, name, column)
    is_block = (values >= 1) & (values <= MOST_TOKENS) & (values == np.floor(values))
    refuse_rows(place, ~is_block, f"{name} must be whole and in [1, {MOST_TOKENS}]", values)
    refuse_rows(place, values != values[:1], f"{name} must be the same in all rows", values)
    return int(values[0])


def chained(ids: Ints, offsets: Ints) -> Ints:
    """Chain content ids: new ids are equal where the id and all before it in the row are equal."""
    n_ids = np.diff(offsets)
    contents, content = np.unique(ids, return_inverse=True)
    rows = np.argsort(-n_ids, kind="stable")  # the longest first, so that rows with a block i come first
    chain_ids = np.empty_like(ids)
    before = np.zeros(len(rows), np.int64)
    n_given = 0
    for i in range(int(n_ids.max(initial=0))):
        rows = rows[: np.searchsorted(-n_ids[rows], -i)]
        at = offsets[rows] + i
        distinct, new = np.unique(before[: len(rows)] * len(contents) + content[at], return_inverse=True)
        before = chain_ids[at] = n_given + new
        n_given += len(distinct)
    return chain_ids


def first_other_predecessor(ids: Ints, offsets: Ints) -> tuple[Ints, Ints] | None:
    """Return where an id follows another one than at its first use, and where that was; None if never."""
    before = np.concatenate([[-1], ids[:-1]])
    before[offsets[:-1][np.diff(offsets) > 0]] = -1
    _, first, same = np.unique(ids, return_index=True, return_inverse=True)
    at = np.flatnonzero(before != before[first][same])
    return (at, first[same][at]) if len(at) else None


def _refuse_counts(place: Place, is_bad: Flags, rule: str, n_ids: Ints, tokens: Ints) -> None:
    if is_bad.any():
        got = [f"{n} for {t} tokens" for n, t in zip(n_ids.tolist(), tokens.tolist(), strict=True)]
        refuse_rows(place, is_bad, rule, got)
