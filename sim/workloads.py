"""Workloads: seeded generators of arrivals and lengths, small functions that compose into a Trace.

    requests = workload(poisson(n, rate=7, seed=1), lognormal(n, 798, 1.0, seed=1, of="prompt"), uniform(n, 1, 128, seed=1))

The same seed gives the same bytes. Arrivals, prompt lengths, output lengths, shared prefixes and think times draw from
separate streams of the seed, one draw a request: to change the arrivals leaves every length as it was, and to ask for more
requests leaves the first ones' lengths and prefixes (and, unless their span is made exact, arrivals) as they were. A
parameter out of range raises ValueError with its name and range.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.trace import MAX_TOKENS, Content, Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Of = Literal["prompt", "output"]

MAX_REQUESTS = 10_000_000

_STREAMS = {None: 0, "prompt": 1, "output": 2}  # None: arrivals
_PREFIXES, _THINK = 3, 4


def workload(arrivals: ArrayLike, prompt: ArrayLike, output: ArrayLike, name: str = "", content: Content | None = None) -> Trace:
    """The trace of these arrivals (s), prompt and output lengths (tokens), and what the prompts hold. Raises TraceError."""
    return Trace(np.asarray(arrivals), np.asarray(prompt), np.asarray(output), name=name, content=content)


# ------------------------------------------------------------------------------------------- arrivals, seconds, (n,)

def all_at_once(n: int) -> Floats:
    """Every request at 0 s: offline serving, and vLLM's bench with --request-rate inf."""
    return np.zeros(_count(n))


def evenly_spaced(n: int, rate: float) -> Floats:
    """One request every 1/rate seconds, the first at 0 s. rate: requests/s."""
    return np.arange(_count(n)) / _rate(rate)


def poisson(n: int, rate: float, seed: int) -> Floats:
    """A Poisson process from 0 s on: independent gaps, exponential with mean 1/rate; the first request ends the first gap."""
    return gamma_bursts(n, rate, 1, seed, exact_span=False)


def gamma_bursts(n: int, rate: float, burstiness: float, seed: int, exact_span: bool = True) -> Floats:
    """Independent gaps, Gamma(shape = burstiness, scale = 1/(rate · burstiness)), as vLLM's bench defines burstiness.

    The mean gap is 1/rate and its coefficient of variation 1/sqrt(burstiness): 1 is Poisson, less comes in bursts, more
    is more regular. The first request ends the first gap. exact_span, as in vLLM's bench: all arrivals are rescaled, so
    that the last one is at exactly n/rate seconds (papers/FACTS.md section 10; vllm/benchmarks/serve.py).
    """
    _between("burstiness", burstiness, 0.001, 1000)
    gaps = _random(seed).standard_gamma(burstiness, _count(n))
    if not exact_span:
        return np.cumsum(gaps) / (_rate(rate) * burstiness)
    if not gaps.any():
        gaps[0] = 1.0  # few requests and so bursty that every draw underflowed: one gap is the whole span
    times: Floats = np.cumsum(gaps / gaps.max())  # by the largest, so that tiny draws do not vanish in the sum
    times *= n / _rate(rate) / times[-1]
    return times


# -------------------------------------------------------------------------------------------- lengths, tokens, (n,)

def equal(n: int, mean: float) -> Ints:
    """All of one length, rounded to whole tokens."""
    return _tokens(np.full(_count(n), _mean(mean)), None)


def uniform(n: int, low: int, high: int, seed: int, of: Of = "output") -> Ints:
    """Every whole number from low to high, both included, is as likely as any other."""
    _between("low", low, 1, MAX_TOKENS, "tokens", whole=True)
    _between("high", high, low, MAX_TOKENS, "tokens", whole=True)
    return low + np.floor(_random(seed, of).random(_count(n)) * (high - low + 1)).astype(np.int64)


def lognormal(n: int, mean: float, cv: float, seed: int, cap: int | None = None, of: Of = "output") -> Ints:
    """Lognormal with this mean and coefficient of variation (standard deviation / mean), before rounding and cap.

    ln X is normal with variance s² = ln(1 + cv²) and mean ln(mean) − s²/2. Rounded to whole tokens, at least 1, at most cap.
    """
    _between("cv", cv, 0, 100)
    variance = math.log1p(cv**2)
    normal = _random(seed, of).standard_normal(_count(n))
    return _tokens(np.exp(math.log(_mean(mean)) - variance / 2 + math.sqrt(variance) * normal), cap)


def heavy_tailed(n: int, mean: float, alpha: float, seed: int, cap: int | None = None, of: Of = "output") -> Ints:
    """1 + Lomax (Pareto II): P(X > x) = (1 + (x − 1)/s)^−alpha for x ≥ 1, s = (mean − 1)(alpha − 1), so that E X = mean.

    The smaller alpha, the heavier the tail; at alpha ≤ 2 the variance is infinite. Mean before rounding and cap; the cap
    lowers it. Rounded to whole tokens, at most cap.
    """
    _between("alpha", alpha, 1.01, 100)
    survival = 1 - _random(seed, of).random(_count(n))  # in (0, 1]
    return _tokens(1 + (_mean(mean) - 1) * (alpha - 1) * (survival ** (-1 / alpha) - 1), cap)


def from_quantiles(n: int, probabilities: ArrayLike, values: ArrayLike, seed: int, of: Of = "output") -> Ints:
    """Drawn from a quantile table by its inverse distribution function, linear between the points.

    probabilities, (k,): increasing, from 0 (its value is the minimum) to 1 (the maximum). values, (k,): tokens,
    non-decreasing. For example ([0, .5, .99, 1], [1, 1020, 4142, 14050]).
    """
    p, v = np.asarray(probabilities, np.float64), np.asarray(values, np.float64)
    if p.ndim != 1 or len(p) < 2 or p[0] != 0 or p[-1] != 1 or not np.all(np.diff(p) > 0):
        raise ValueError(f"probabilities must increase from 0 to 1, not {_shown(probabilities)}")
    if v.shape != p.shape or not (v[0] >= 1 and v[-1] <= MAX_TOKENS and np.all(np.diff(v) >= 0)):
        raise ValueError(f"values must be one for each probability, from 1 to {MAX_TOKENS} tokens and must not decrease, "
                         f"not {_shown(values)}")
    return _tokens(np.interp(_random(seed, of).random(_count(n)), p, v), None)


# ------------------------------------------------------------------------------------ what the prompts hold, Content

def shared_prefixes(prompt: ArrayLike, prefixes: ArrayLike, skew: float, seed: int) -> Content:
    """Prompts that start with one of a few system prompts and go on with tokens of their own, as their replies are.

    prompt, (n,): tokens in each prompt. prefixes, (k,): tokens in each system prompt, the most used one first: that of
    rank r is drawn with a weight of 1/r^skew (Zipf; 0: all alike). A prompt that is not longer than its system prompt holds
    all but the last token of its own length of it.
    """
    lengths, prefix = _lengths("prompt", prompt), _lengths("prefixes", prefixes)
    n, k = len(lengths), len(prefix)
    which = _popular(n, k, skew, seed)
    shared = np.minimum(prefix[which], lengths - 1)
    # Two runs a request, the shared one first; it is left out of prompts of one token. Streams: k prefixes, then rest and
    # reply of each request.
    own = k + 2 * np.arange(n)
    pairs = np.stack([shared, lengths - shared], axis=1).ravel()
    there = pairs > 0
    first = np.concatenate(([0], np.cumsum(1 + (shared > 0))))
    stream = np.stack([which, own], axis=1).ravel()[there]
    return Content(first, stream, np.zeros(len(stream), np.int64), pairs[there], own + 1)


def think_times(n: int, mean: float, seed: int) -> Floats:
    """Seconds that the user takes between a reply and the next turn, (n,): independent, exponential with this mean."""
    think: Floats = _between("mean", mean, 0, 1e6, "s") * _generator(seed, _THINK).standard_exponential(_count(n))
    return think


def sessions(starts: ArrayLike, turns: ArrayLike, prefixes: ArrayLike, skew: float, question: ArrayLike, answer: ArrayLike,
             think: ArrayLike, token_s: float, seed: int, name: str = "") -> Trace:
    """Conversations: each turn's prompt is its system prompt, every question and reply so far, and the next question.

    starts, (s,): when each session's first turn arrives, s. turns, a number or (s,): how many it has. prefixes, (k,):
    tokens of the system prompts, the most used one first; each session draws one, by rank r with a weight of 1/r^skew.
    question, answer, (turns of all sessions,), session by session: tokens of each question and of its reply.
    think, likewise: seconds between the reply before and each turn; that of a first turn plays no part. For instance

        sessions(poisson(200, 0.5, seed), 5, [2000] * 8, 1.0, lognormal(1000, 150, 1.0, seed, of="prompt"),
                 lognormal(1000, 250, 0.8, seed), think_times(1000, 20, seed), 0.03, seed)

    A reply is tokens of its own, which the next turns quote whole, so a server that kept them finds them.

    What is modelled of time: the arrivals are fixed beforehand (an open loop). A turn comes `think` after its reply would
    have ended if each of its tokens had taken `token_s` seconds since the turn arrived. Where the server is slower than
    that, users do not wait for it, and a turn may quote what is not there yet: `before_the_reply` tells which. The load
    rises from nothing at 0 s for as long as sessions last.
    """
    begin = np.asarray(starts, np.float64)
    if begin.ndim != 1 or not len(begin):
        raise ValueError(f"starts must be one time a session, for at least one, not {_shown(starts)}")
    count = np.full(begin.shape, turns) if np.ndim(turns) == 0 else np.asarray(turns)
    if count.dtype.kind not in "iu" or count.shape != begin.shape or count.min() < 1 or count.sum() > MAX_REQUESTS:
        raise ValueError(f"turns must be a whole number from 1 on, or one for each of the {len(begin)} sessions, "
                         f"and at most {MAX_REQUESTS} together, not {_shown(turns)}")
    n = int(count.sum())
    asked, replied, waits = _lengths("question", question), _lengths("answer", answer), np.asarray(think, np.float64)
    for what, column in (("question", asked), ("answer", replied), ("think", waits)):
        if column.shape != (n,):
            raise ValueError(f"{what} must be one number for each of the {n} turns, not of shape {column.shape}")
    if not (waits.min() >= 0 and waits.max() <= 1e6):
        raise ValueError(f"think must be from 0 to 1e6 s, not {_shown(think)}")
    _between("token_s", token_s, 0, 1000, "s")
    prefix = _lengths("prefixes", prefixes)

    session = np.repeat(np.arange(len(begin)), count)
    opening = np.repeat(np.cumsum(count) - count, count)  # row of the session's first turn
    which = _popular(len(begin), len(prefix), skew, seed)[session]
    # Within a session, the time and the tokens that have gone by before each turn: running sums less those at its opening.
    gap = np.where(np.arange(n) == opening, 0.0, waits + np.roll(replied, 1) * token_s)
    gone, said = np.cumsum(gap), np.cumsum(asked + replied) - replied
    arrival = begin[session] + gone - gone[opening]
    prompt = prefix[which] + said - (said - asked)[opening]
    content = _quotes(np.arange(n) - opening, opening, which, prefix, asked, replied)
    order = np.argsort(arrival, kind="stable")
    return Trace(arrival[order], prompt[order], replied[order], session=session[order], name=name, content=content.take(order))


def _quotes(turn: Ints, opening: Ints, which: Ints, prefix: Ints, question: Ints, answer: Ints) -> Content:
    """Turn t of a session holds the system prompt, then question and reply of the turns before, then its question.

    Streams: the system prompts first, then question and reply of each row.
    """
    runs = 2 * turn + 2
    first = np.append(0, np.cumsum(runs))
    place = np.arange(first[-1]) - np.repeat(first[:-1], runs)  # in its prompt: 0 the system prompt, 1 a question, 2 a reply
    row = np.repeat(opening, runs) + (place - 1) // 2  # whose question or reply it is; where place is 0, unused
    system, k = np.repeat(which, runs), len(prefix)
    stream = np.where(place == 0, system, k + 2 * row + 1 - place % 2)
    length = np.where(place == 0, prefix[system], np.where(place % 2 == 1, question[row], answer[row]))
    return Content(first, stream, np.zeros_like(stream), length, k + 2 * np.arange(len(turn)) + 1)


def before_the_reply(trace: Trace, finished: ArrayLike) -> NDArray[np.bool_]:
    """Which requests arrive before their session's turn before them has ended, (n,).

    finished, (n,): seconds when each request ended, NaN: it never did. Raises ValueError for a trace without sessions.
    """
    if trace.session is None:
        raise ValueError("the trace does not say which requests belong to one session")
    order = np.argsort(trace.session, kind="stable")
    one, other = order[:-1], order[1:]
    early = np.zeros(len(trace), bool)
    early[other] = (trace.session[one] == trace.session[other]) & ~(np.asarray(finished, np.float64)[one] <= trace.arrival[other])
    return early


# ------------------------------------------------------------------------------------------------------------------

def _popular(n: int, k: int, skew: float, seed: int) -> Ints:
    """n draws of 0 to k − 1; number r − 1 has the weight 1/r^skew."""
    _between("skew", skew, 0, 100)
    weight = np.cumsum(np.arange(1, k + 1) ** -float(skew))
    drawn: Ints = np.searchsorted(weight, _generator(seed, _PREFIXES).random(n) * weight[-1], side="right")
    return drawn


def _lengths(name: str, values: ArrayLike) -> Ints:
    lengths = np.asarray(values, np.int64)
    if lengths.ndim != 1 or not len(lengths) or lengths.min() < 1 or lengths.max() > MAX_TOKENS:
        raise ValueError(f"{name} must be lengths from 1 to {MAX_TOKENS} tokens, at least one, not {_shown(values)}")
    return lengths


def _random(seed: int, of: Of | None = None) -> np.random.Generator:
    if of not in _STREAMS:
        raise ValueError(f"of must be 'prompt' or 'output', not {_shown(of)}")
    return _generator(seed, _STREAMS[of])


def _generator(seed: int, stream: int) -> np.random.Generator:
    _between("seed", seed, 0, 2**63 - 1, whole=True)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int(seed), spawn_key=(stream,))))


def _tokens(lengths: Floats, cap: int | None) -> Ints:
    if cap is not None:
        _between("cap", cap, 1, MAX_TOKENS, "tokens", whole=True)
    return np.clip(np.rint(lengths), 1, cap or MAX_TOKENS).astype(np.int64)


def _count(n: int) -> int:
    _between("n", n, 1, MAX_REQUESTS, "requests", whole=True)
    return int(n)


def _rate(rate: float) -> float:
    return _between("rate", rate, 0.001, 1_000_000, "requests/s")


def _mean(mean: float) -> float:
    return _between("mean", mean, 1, MAX_TOKENS, "tokens")


def _between(name: str, value: float, low: float, high: float, unit: str = "", whole: bool = False) -> float:
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    if not isinstance(value, kinds) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{name} must be {kind} from {low} to {high} {unit}".rstrip() + f", not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
