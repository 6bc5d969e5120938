"""Distances: how large a prefix cache must be for each block to be found in it, and so the hit rate of every size in one pass.

A cache that drops the least recently used block holds, whatever its size, the most recently used ones. So a block is found in
caches of `needed` blocks and larger, where `needed` counts the different blocks used since its last use, itself included
(its stack distance; Mattson, Gecsei, Slutz and Traiger 1970, "Evaluation techniques for storage hierarchies").

Requests come one after another, as if each were over when the next one comes; a replay that knows no time. Each first looks
for its blocks from its start on, then uses all of them, the last one first, so that a prefix outlives what goes on from it.
vLLM frees the blocks of a request in that order, and kvcache-simulator's LRU, which drops only ends of chains, differs from
it by 1e-4 at most (peers/sglang-router/ROUTING.md section 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.kv.content import Chains
from sim.trace import Content, Floats, Ints, Trace

NEVER = int(np.iinfo(np.int64).max)
"""What a block needs that was not there before: no cache is large enough."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a trace's requests; those of request i are first[i] ≤ j < first[i+1].

    key     int64[m]    equal keys, equal tokens from the start of the request to the block's end; none twice in a request
    first   int64[n+1]
    tokens  int64[m]    prompt tokens that need not be computed where the block is found; 0 for a block of the reply
    """

    key: Ints
    first: Ints
    tokens: Ints


def blocks(trace: Trace, size: int, replies: bool = True, partial: bool = False) -> Blocks:
    """The full blocks of `size` tokens that each request leaves behind, as an engine caches them.

    The last prompt token is always computed, and the last output token never, so neither lies in a block that counts.
    replies: the blocks that hold a reply are used too, though nobody looks for them in the request that they answer.
    partial: a prompt's last block counts even where it is not full, and up to its last token, as in simulators that
    replay a trace of hash blocks, where a number stands for it; makes sense for `size` of such a trace and without replies.
    """
    if partial:
        kept, found = _filled(trace, size), -(-trace.prompt // size)
        count = found
    else:
        kept, found = trace, (trace.prompt - 1) // size
        count = (trace.prompt + trace.output - 1 if replies else trace.prompt) // size
    first = np.append(0, np.cumsum(count))
    key = _keys(kept, size, first)
    place = np.arange(first[-1]) - np.repeat(first[:-1], count)
    left = np.repeat(trace.prompt, count) - place * size  # prompt tokens from the block's start on
    return Blocks(key, first, np.where(place < np.repeat(found, count), np.minimum(left, size), 0))


def _filled(trace: Trace, size: int) -> Trace:
    """The trace with every prompt's last block filled up."""
    content, more = trace.content, -trace.prompt % size
    if content is not None:
        length = content.length.copy()
        length[content.first[1:] - 1] += more
        content = Content(content.first, content.stream, content.start, length, content.reply)
    return Trace(trace.arrival, trace.prompt + more, trace.output, content=content)


def _keys(trace: Trace, size: int, first: Ints) -> Ints:
    """Keys of the blocks; blocks that no other request can have are given one each, below 0."""
    chains = Chains(size)
    chains.submit(trace)
    request, spans = [], []
    for i in range(len(trace)):  # as many rounds as there are runs of tokens, not blocks
        own = chains.spans(i)
        spans += own
        request += [i] * len(own)
        chains.drop(i)
    key = -1 - np.arange(first[-1])
    if spans:
        owner, (begin, base, length) = np.array(request), np.array(spans, np.int64).T
        length = np.clip(np.diff(first)[owner] - begin, 0, length)
        within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        key[np.repeat(first[owner] + begin, length) + within] = np.repeat(base, length) + within
    return key


def needed(found: Blocks, replica: ArrayLike | None = None) -> Ints:
    """The smallest cache, blocks, in which each block is found with all that go before it in its request, (m,); NEVER.

    replica, (n,): where each request goes, to caches that know nothing of each other; the size is that of each of them.
    Raises ValueError if a request has a key twice.
    """
    count = np.diff(found.first)
    where = np.zeros_like(count) if replica is None else np.asarray(replica)
    order = np.argsort(where, kind="stable")
    # The blocks in the order of their use: replica by replica, request by request, each from its last block to its first.
    begin = np.cumsum(count[order]) - count[order]  # of each request
    start = np.repeat(begin, count[order])
    at = np.repeat(found.first[order + 1] - 1 + begin, count[order]) - np.arange(len(start))
    cache = np.repeat(where[order], count[order])
    before = _last_use(found.key[at], cache)
    if (before >= start).any():
        raise ValueError("a request has one key twice")
    size = np.full(len(at), NEVER)
    again = np.flatnonzero(before >= 0)
    # Of the uses before the request, those whose last use lies before `before`: all up to it, and one of each other block since.
    size[again] = _count_below(before + 1, start[again], before[again] + 1) - before[again]
    result = np.empty_like(size)
    result[at] = size
    return _running_max(result, found.first)


def _last_use(key: Ints, cache: Ints) -> Ints:
    """Where the same key was used last in the same cache, (m,); −1: nowhere."""
    order = np.lexsort((key, cache))  # stable
    same = (key[order[1:]] == key[order[:-1]]) & (cache[order[1:]] == cache[order[:-1]])
    before = np.full(len(key), -1)
    before[order[1:][same]] = order[:-1][same]
    return before


def _count_below(values: Ints, end: Ints, bound: Ints) -> Ints:
    """How many of values[:end] are smaller than bound, for each pair of end and bound. Values and bounds are ≥ 0.

    Bit by bit from the highest, the values are parted into those with a 0 and those with a 1, each in their order (a wavelet
    matrix: Claude and Navarro 2012); each query follows its bound's bits, and counts the zeros it leaves behind.
    """
    top = int(max(len(values), values.max(initial=0), bound.max(initial=0)))
    kind = np.int32 if top < 2**31 else np.int64  # half the memory is half the time
    values, high, bound = values.astype(kind), end.astype(kind), bound.astype(kind)
    low, count = np.zeros_like(high), np.zeros_like(high)
    zeros = np.zeros(len(values) + 1, kind)
    for bit in reversed(range(top.bit_length())):
        one = (values >> bit & 1).astype(bool)
        np.cumsum(~one, out=zeros[1:])  # in front of each place
        low_zeros, high_zeros = zeros[low], zeros[high]
        goes_on = (bound >> bit & 1).astype(bool)
        count += np.where(goes_on, high_zeros - low_zeros, 0)
        low = np.where(goes_on, zeros[-1] + low - low_zeros, low_zeros)
        high = np.where(goes_on, zeros[-1] + high - high_zeros, high_zeros)
        values = np.concatenate((values[~one], values[one]))
    return count.astype(np.int64)


def _running_max(values: Ints, first: Ints) -> Ints:
    """The largest value so far within each request; values are at most their number, or NEVER."""
    high = len(values) + 1
    above = np.repeat(np.arange(len(first) - 1) * (high + 1), np.diff(first))  # so that requests do not reach into each other
    largest = np.maximum.accumulate(np.minimum(values, high) + above) - above
    return np.where(largest == high, NEVER, largest)


def hit_tokens(size: Ints, tokens: Ints, sizes: ArrayLike) -> Ints:
    """Prompt tokens found by caches of each of these `sizes`, blocks, (k,). size: what `needed` says; tokens: of each block."""
    order = np.argsort(size)
    total = np.append(0, np.cumsum(tokens[order]))
    found: Ints = total[np.searchsorted(size[order], np.minimum(np.asarray(sizes), NEVER - 1), side="right")]
    return found


def curve(trace: Trace, block_size: int, replica: ArrayLike | None = None) -> tuple[Ints, Floats]:
    """Hit rate over cache size, at every size where it changes: blocks, (k,), from 0 on, and share of all prompt tokens, (k,).

    Between two sizes the hit rate is that of the smaller one; the last one is that of an infinite cache.
    """
    found = blocks(trace, block_size)
    size = needed(found, replica)
    useful: NDArray[np.bool_] = (size < NEVER) & (found.tokens > 0)
    sizes = np.append(0, np.unique(size[useful]))
    return sizes, hit_tokens(size, found.tokens, sizes) / trace.prompt.sum()
