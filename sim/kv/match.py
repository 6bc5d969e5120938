"""Which blocks lie on which replica, as a router knows it: told by the engines' events, or noted when it sends a prompt."""

from __future__ import annotations

from sim.kv.content import Spans


class Index:
    """Lines of blocks by their first key (sim/kv/content.py), and how many blocks of each line each replica has.

    Fed with events it is what the engines have, as late as the events come. Fed with the router's own decisions it never
    hears of an eviction; `most` blocks a replica (the line that was sent longest ago goes first, from its end) and `lasting`
    seconds since they were sent are how such routers forget.
    """

    def __init__(self, replicas: int, most: int | None = None, lasting: float | None = None) -> None:
        self._lines: dict[int, dict[int, int]] = {}
        self._most, self._lasting = most, lasting
        self._sent: list[dict[int, float]] = [{} for _ in range(replicas)]  # by line: when, oldest first
        self._blocks = [0] * replicas

    def tell(self, key: int, replica: int, live: int) -> None:
        """The replica now has the first `live` blocks of the line."""
        line = self._lines.setdefault(key, {})
        if live:
            line[replica] = live
            return
        line.pop(replica, None)
        if not line:
            del self._lines[key]

    def send(self, path: Spans, blocks: int, replica: int, now: float) -> None:
        """A prompt of so many whole blocks went to the replica at `now`, s."""
        sent = self._sent[replica]
        for first, key, length in reversed(path):  # its start last: that is what is forgotten last
            if first < blocks:
                had, has = self._lines.get(key, {}).get(replica, 0), min(length, blocks - first)
                if has > had:
                    self.tell(key, replica, has)
                    self._blocks[replica] += has - had
                sent.pop(key, None)
                sent[key] = now
        while self._most is not None and self._blocks[replica] > self._most:
            key = next(iter(sent))
            had = self._lines[key][replica]
            left = max(0, had - (self._blocks[replica] - self._most))
            self.tell(key, replica, left)
            self._blocks[replica] -= had - left
            if not left:
                del sent[key]

    def forget(self, now: float) -> None:
        """Drop what was sent too long ago."""
        if self._lasting is None:
            return
        for replica, sent in enumerate(self._sent):
            while sent:
                key, when = next(iter(sent.items()))
                if now - when <= self._lasting:
                    break
                del sent[key]
                self._blocks[replica] -= self._lines[key][replica]
                self.tell(key, replica, 0)

    def match(self, path: Spans, blocks: int, replicas: int) -> list[int]:
        """How many of the first `blocks` blocks each replica has, in a row from the start. [replicas]"""
        found, alive = [0] * replicas, None
        for first, key, length in path:
            line = self._lines.get(key)
            if line is None or first >= blocks:
                break
            there = min(length, blocks - first)
            whole = []
            for replica in line if alive is None else alive:
                live = line.get(replica, 0)
                if live >= there:
                    found[replica] = first + there
                    whole.append(replica)
                elif live:
                    found[replica] = first + live
            if not whole:
                break
            alive = whole
        return found
