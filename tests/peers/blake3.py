"""BLAKE3 of a short text: the hash by which the real router turns a session's key into a place.

Written from the BLAKE3 paper (O'Connor, Aumasson, Neves, Wilcox-O'Hearn, 2020, section 2); one chunk only, which is
all that keys and addresses need, so that the replay asks for no package.
"""

from __future__ import annotations

import struct

_IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_CHUNK_START, _CHUNK_END, _ROOT = 1, 2, 8
_CHUNK, _BLOCK, _WORD = 1024, 64, 0xFFFFFFFF
_QUARTERS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
             (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def digest(data: bytes) -> bytes:
    """The 32 bytes of the hash. ValueError beyond one chunk of 1,024 bytes."""
    if len(data) > _CHUNK:
        raise ValueError(f"only one chunk of {_CHUNK} bytes can be hashed here, not {len(data)} bytes")
    chain: tuple[int, ...] = _IV
    blocks = [data[i : i + _BLOCK] for i in range(0, len(data), _BLOCK)] or [b""]
    for i, block in enumerate(blocks):
        flags = (_CHUNK_START if i == 0 else 0) | (_CHUNK_END | _ROOT if i == len(blocks) - 1 else 0)
        chain = _compress(chain, struct.unpack("<16I", block.ljust(_BLOCK, b"\0")), len(block), flags)
    return struct.pack("<8I", *chain)


def number(text: str) -> int:
    """The first eight bytes of the hash of a text, little-endian, as the router takes them."""
    return int.from_bytes(digest(text.encode())[:8], "little")


def _compress(chain: tuple[int, ...], words: tuple[int, ...], length: int, flags: int) -> tuple[int, ...]:
    v = [*chain, *_IV[:4], 0, 0, length, flags]  # the counter of a first chunk is 0
    for _ in range(7):
        for column, (a, b, c, d) in enumerate(_QUARTERS):
            _mix(v, a, b, c, d, words[2 * column], words[2 * column + 1])
        words = tuple(words[i] for i in _PERMUTATION)
    return tuple(v[i] ^ v[i + 8] for i in range(8))


def _mix(v: list[int], a: int, b: int, c: int, d: int, x: int, y: int) -> None:
    for word, first, second in ((x, 16, 12), (y, 8, 7)):
        v[a] = (v[a] + v[b] + word) & _WORD
        v[d] = _right(v[d] ^ v[a], first)
        v[c] = (v[c] + v[d]) & _WORD
        v[b] = _right(v[b] ^ v[c], second)


def _right(word: int, by: int) -> int:
    return (word >> by | word << (32 - by)) & _WORD
