"""What SGLang's router remembers: one radix tree of the texts it has sent, and to which worker each piece of them went."""

from __future__ import annotations

from typing import Any

Text = str | tuple[int, ...]
"""Characters, or the numbers of blocks: anything that is cut, compared and indexed by its first element."""


class _Node:
    """A piece of text behind its parent's: which workers have it, and which of them had it first."""

    __slots__ = ("children", "owner", "text", "workers")

    def __init__(self, text: Text, workers: set[int], owner: int) -> None:
        self.text, self.workers, self.owner = text, workers, owner
        self.children: dict[Any, _Node] = {}


class Tree:
    """Texts by their common beginnings (sglang-router 0.3.2, src/policies/tree.rs; peers/sglang-router/ROUTING.md).

    A node that is split hands its workers and its owner on to both halves. A worker that sends a text that is there
    already joins the nodes on its way but does not come to own them.
    """

    def __init__(self) -> None:
        self._root = _Node("", set(), -1)

    def match(self, text: Text) -> tuple[int, int]:
        """How many elements of the text are known, and the owner of the node where they end, −1 if none are."""
        node, place = self._root, 0
        while place < len(text):
            child = node.children.get(text[place])
            if child is None:
                break
            shared = common(child.text, text, place)
            place += shared
            node = child
            if shared < len(child.text):
                break
        return place, node.owner

    def insert(self, text: Text, worker: int) -> None:
        """The text went to the worker."""
        node, place = self._root, 0
        while place < len(text):
            child = node.children.get(text[place])
            if child is None:
                node.children[text[place]] = _Node(text[place:], {worker}, worker)
                return
            shared = common(child.text, text, place)
            if shared < len(child.text):
                upper = _Node(child.text[:shared], set(child.workers), child.owner)
                child.text = child.text[shared:]
                upper.children[child.text[0]] = child
                node.children[text[place]] = child = upper
            child.workers.add(worker)
            node, place = child, place + shared

    def shares(self, text: Text, workers: int) -> list[int]:
        """How many elements of the text each worker was sent, from its start."""
        found, node, place = [0] * workers, self._root, 0
        while place < len(text):
            child = node.children.get(text[place])
            if child is None:
                break
            shared = common(child.text, text, place)
            place += shared
            node = child
            for worker in child.workers:
                found[worker] = place
            if shared < len(child.text):
                break
        return found


def common(piece: Text, text: Text, place: int) -> int:
    """How many elements of the piece the text has from `place` on; halving, as comparing slices is cheap."""
    most = min(len(piece), len(text) - place)
    if piece[:most] == text[place : place + most]:
        return most
    low = 0  # so many are equal
    while most - low > 1:
        middle = (low + most) // 2
        if piece[low:middle] == text[place + low : place + middle]:
            low = middle
        else:
            most = middle
    return low
