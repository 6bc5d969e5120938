"""What the blocks of a request hold, as keys: equal keys, equal tokens from the start of the request to the block's end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sim.trace import Trace

_RUN = 1 << 28  # keys set aside for one run of blocks
Piece = tuple[int, int, int]  # stream, start, length


class Chains:
    """Keys of the blocks of every request, prompt and reply.

    Tokens are given as runs of streams. Blocks that lie within one run get consecutive keys, found by where the run
    goes on from and with which token, so that a request costs as much as it has runs, not blocks. A block across runs
    is found by its pieces.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._runs: list[tuple[Piece, ...]] = []
        self._users: Counter[int] = Counter()  # of a stream: requests whose prompts or replies hold it
        self._expected = False
        self._speaker: dict[int, int] = {}  # stream of a reply → its request
        self.quoted: set[int] = set()  # requests whose replies others quote
        self._base: dict[tuple[object, ...], int] = {}
        self._spans: dict[int, list[tuple[int, int, int]]] = {}  # request → (first block, first key, blocks)

    def expect(self, trace: Trace) -> None:
        """Count who has which stream, ahead of the pieces that will be submitted."""
        self._count(_pieces(trace))
        self._expected = True

    def submit(self, trace: Trace) -> None:
        """Add requests, in order. Without content every prompt and reply is private."""
        pieces, offset = _pieces(trace), len(self._runs)
        self._runs += pieces
        if not self._expected:
            self._count(pieces)
        for i, runs in enumerate(pieces, offset):
            if runs:
                self._speaker[runs[-1][0]] = i
        for i, runs in enumerate(pieces, offset):
            self.quoted |= {self._speaker[s] for s, _, _ in runs[:-1] if s in self._speaker}
            if runs and self._users[runs[-1][0]] > 1:
                self.quoted.add(i)

    def _count(self, pieces: list[tuple[Piece, ...]]) -> None:
        for runs in pieces:
            self._users.update({stream for stream, _, _ in runs})

    def shared(self, request: int) -> int:
        """How many blocks from the start may be quoted by others; those behind them nobody else has."""
        spans = self._spans_of(request)
        return spans[-1][0] + spans[-1][2] if spans else 0

    def keys(self, request: int, first: int, end: int) -> Iterator[range]:
        """Keys of the blocks first ≤ j < end of the request that may be shared, as ranges, in order."""
        for start, key, blocks in self._spans_of(request):
            a, b = max(first, start), min(end, start + blocks)
            if a < b:
                yield range(key + a - start, key + b - start)

    def _spans_of(self, request: int) -> list[tuple[int, int, int]]:
        spans = self._spans.get(request)
        if spans is None:
            runs = self._runs[request]
            alone = next((j for j, piece in enumerate(runs) if self._users[piece[0]] == 1), len(runs))
            spans = self._spans[request] = self._find_spans(runs[:alone])
        return spans

    def _find_spans(self, runs: tuple[Piece, ...]) -> list[tuple[int, int, int]]:
        size, parent, block = self.block_size, -1, 0
        spans: list[tuple[int, int, int]] = []
        pending: list[Piece] = []  # pieces of a block across runs
        room = size
        for stream, start, length in _merged(runs):
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
        return self._base.setdefault(place, len(self._base) * _RUN)


def _pieces(trace: Trace) -> list[tuple[Piece, ...]]:
    """Runs of each request, its reply as the last one; empty without content."""
    content = trace.content
    if content is None:
        return [()] * len(trace)
    first = content.first.tolist()
    pieces = list(zip(content.stream.tolist(), content.start.tolist(), content.length.tolist(), strict=True))
    replies = zip(content.reply.tolist(), trace.output.tolist(), strict=True)
    return [(*pieces[first[i] : first[i + 1]], (reply, 0, output)) for i, (reply, output) in enumerate(replies)]


def _merged(runs: tuple[Piece, ...]) -> list[Piece]:
    """The runs with neighbours joined where one goes on as the other ended."""
    merged: list[Piece] = []
    for stream, start, length in runs:
        if merged and merged[-1][0] == stream and merged[-1][1] + merged[-1][2] == start:
            merged[-1] = (stream, merged[-1][1], merged[-1][2] + length)
        else:
            merged.append((stream, start, length))
    return merged
