"""What the blocks of a request hold, as keys: equal keys, equal tokens from the start of the request to the block's end."""

from __future__ import annotations

from array import array

import numpy as np

from sim.trace import Ints, Trace

_SPAN = 1 << 28  # keys set aside for one span of blocks
Spans = list[tuple[int, int, int]]  # first block, its key, how many blocks


class Chains:
    """Keys of the blocks of every request, prompt and reply.

    Tokens are given as runs of streams. Blocks that lie within one run get consecutive keys, found by where the run
    goes on from and with which token, so that a request costs as much as it has runs, not blocks. A block across runs
    is found by its pieces.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        # The runs of all requests, prompt by prompt, each with its reply behind it; those of request i end before _end[i + 1].
        self._stream, self._start, self._length, self._end = array("q"), array("q"), array("q"), array("q", [0])
        self._common: set[int] = set()  # streams that two requests or more have
        self._expected = False
        self._seen: dict[int, int] = {}  # stream of one of the first `_noted` requests → whose reply it is, or -1
        self._noted = 0
        self.quoted: set[int] = set()  # requests whose replies others quote
        self._base: dict[tuple[object, ...], int] = {}
        self._spans: dict[int, Spans] = {}  # of requests that have been looked for and are not over

    def expect(self, trace: Trace) -> None:
        """Count who has which stream, ahead of the pieces that will be submitted."""
        if trace.content is not None:
            stream, _, _, end = _runs(trace)
            self._common |= _in_common(stream, end)
        self._expected = True

    def submit(self, trace: Trace) -> None:
        """Add requests, in order. Without content every prompt and reply is private."""
        offset, n = len(self._end) - 1, len(trace)
        if trace.content is None:
            self._end.extend([self._end[-1]] * n)
            return
        stream, start, length, end = _runs(trace)
        if not self._expected:
            self._common |= _in_common(stream, end)
            if offset:
                self._compare(stream)
        for column, values in ((self._stream, stream), (self._start, start), (self._length, length)):
            column.frombytes(values.tobytes())
        self._end.frombytes((end + self._end[-1]).tobytes())
        self.quoted.update([i for i, reply in enumerate(trace.content.reply.tolist(), offset) if reply in self._common])

    def adopt(self, spans: Spans, quoted: bool) -> None:
        """Add a request whose blocks have keys from the chains of a larger trace."""
        request = len(self._end) - 1
        self._end.append(self._end[-1])
        self._spans[request] = spans
        if quoted:
            self.quoted.add(request)

    def _compare(self, stream: Ints) -> None:
        """Find the streams that requests submitted before have too."""
        for i in range(self._noted, len(self._end) - 1):
            for run in range(self._end[i], self._end[i + 1]):
                self._seen[self._stream[run]] = i if run + 1 == self._end[i + 1] else -1
        self._noted = len(self._end) - 1
        again = self._seen.keys() & set(stream.tolist())
        self._common |= again
        self.quoted |= {self._seen[s] for s in again} - {-1}

    def spans(self, request: int) -> Spans:
        """Those blocks of the request that others may quote, or it itself when it comes back, from its start."""
        spans = self._spans.get(request)
        if spans is None:
            spans = self._spans[request] = self._find_spans(request)
        return spans

    def quote_itself(self, request: int) -> int:
        """The request will come back, and look for all its blocks: those behind the ones that others may quote get keys too."""
        spans = self.spans(request)
        shared = spans[-1][0] + spans[-1][2] if spans else 0
        if not spans or spans[-1][1] >= 0:
            spans.append((shared, -1 - request, _SPAN))
        return shared + _SPAN

    def drop(self, request: int) -> None:
        """Nobody will ask for the request again."""
        self._spans.pop(request, None)

    def _find_spans(self, request: int) -> Spans:
        streams, common, size = self._stream, self._common, self.block_size
        spans: Spans = []
        parent, block, room = -1, 0, size
        pending: list[tuple[int, int, int]] = []  # pieces of a block across runs
        run, end = self._end[request], self._end[request + 1]
        while run < end and (stream := streams[run]) in common:
            start, length = self._start[run], self._length[run]
            run += 1
            while run < end and streams[run] == stream and self._start[run] == start + length:  # it goes on as it ended
                length += self._length[run]
                run += 1
            while length:
                if not pending and length >= size:
                    blocks = length // size
                    key = self._key((parent, stream, start))
                    spans.append((block, key, blocks))
                    block, parent = block + blocks, key + blocks - 1
                    start, length = start + blocks * size, length - blocks * size
                    continue
                part = min(room, length)
                pending.append((stream, start, part))
                start, length, room = start + part, length - part, room - part
                if not room:
                    key = self._key((parent, *pending))
                    spans.append((block, key, 1))
                    block, parent, room = block + 1, key, size
                    pending = []
        return spans

    def _key(self, place: tuple[object, ...]) -> int:
        return self._base.setdefault(place, len(self._base) * _SPAN)


def _in_common(stream: Ints, end: Ints) -> set[int]:
    """The streams that two requests have; their runs end at `end`."""
    request = np.repeat(np.arange(len(end)), np.diff(end, prepend=0))
    order = np.argsort(stream, kind="stable")
    one, other = order[:-1], order[1:]
    return set(stream[one[(stream[one] == stream[other]) & (request[one] != request[other])]].tolist())


def _runs(trace: Trace) -> tuple[Ints, Ints, Ints, Ints]:
    """Stream, start and length of each request's runs, its reply as the last one; and where the runs of each end."""
    content = trace.content
    assert content is not None
    end = content.first[1:]
    return (
        np.insert(content.stream, end, content.reply), np.insert(content.start, end, 0),
        np.insert(content.length, end, trace.output), end + np.arange(1, len(trace) + 1),
    )
