"""Chunks without hybrid batches: a step with a chunk of prompts and a step of decodes take turns, as Sarathi-Serve's ablation."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sim.service import StepTime, attention_units, step_us
from sim.trace import Floats, Trace


@dataclass
class _Server:
    """Who is there and what of each prompt is left; times in µs."""

    trace: Trace
    left: list[int]
    made: list[int]
    last: list[float]
    first: Floats
    running: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    arrived: int = 0
    now: float = 0.0


def serve(trace: Trace, service: StepTime, chunk: int, slots: int) -> tuple[Floats, Floats]:
    """Time to first token of each request [n] and all times between tokens [sum(output) − n], s; memory without limit.

    The rule of the artifact's simple_chunking scheduler: after a step that read prompts comes one that decodes, if anybody
    can, and the other way round. A step that reads goes on with the prompt that is begun, and only if there is none takes
    new ones, earliest first, until it has `chunk` tokens.
    """
    n = len(trace)
    server = _Server(trace, trace.prompt.tolist(), [0] * n, [0.0] * n, np.zeros(n))
    reads = True
    while server.arrived < n or server.running:
        if reads and (taken := _chunk(server, chunk, slots)):
            _read(server, service, taken)
        elif decoding := [i for i in server.running if not server.left[i]]:
            reads = False  # its turn is taken: the next may read
            _decode(server, service, decoding)
        elif not server.running:
            server.now = max(server.now, float(trace.arrival_us[server.arrived]))
        reads = not reads
    return server.first / 1e6, np.array(server.gaps) / 1e6


def _chunk(server: _Server, chunk: int, slots: int) -> list[tuple[int, int]]:
    """(request, prompt tokens) of the next step that reads."""
    begun = [i for i in server.running if server.left[i]]
    taken = [(i, min(chunk, server.left[i])) for i in begun]
    room = chunk - sum(tokens for _, tokens in taken)
    while not begun and room and server.arrived < len(server.trace) and len(server.running) < slots:
        new = server.arrived
        if server.trace.arrival_us[new] > server.now:
            break
        taken.append((new, min(room, server.left[new])))
        room -= taken[-1][1]
        server.running.append(new)
        server.arrived += 1
    return taken


def _read(server: _Server, service: StepTime, taken: list[tuple[int, int]]) -> None:
    prompt, left = server.trace.prompt, server.left
    work = sum(float(attention_units(tokens, int(prompt[i]) - left[i])) for i, tokens in taken)
    server.now += float(step_us(service, sum(tokens for _, tokens in taken), 0, work, len(taken)))
    for i, tokens in taken:
        left[i] -= tokens
    _tokens(server, [i for i, _ in taken if not left[i]])


def _decode(server: _Server, service: StepTime, decoding: list[int]) -> None:
    context = sum(int(server.trace.prompt[i]) + server.made[i] for i in decoding)
    server.now += float(step_us(service, len(decoding), context, 0.0, len(decoding)))
    _tokens(server, decoding)


def _tokens(server: _Server, these: list[int]) -> None:
    """A token for each of these, now; who has all of them leaves."""
    for i in these:
        if server.made[i]:
            server.gaps.append(server.now - server.last[i])
        else:
            server.first[i] = server.now - server.trace.arrival_us[i]
        server.made[i] += 1
        server.last[i] = server.now
        if server.made[i] == server.trace.output[i]:
            server.running.remove(i)
