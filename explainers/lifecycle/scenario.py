"""The set-up of the life of one request: its knobs, the worked example on paper, and the runs beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from explainers.kit.knobs import Knob, Preset, Value, defaults
from sim import workloads
from sim.engine import Engine, simulate
from sim.hardware import GPUS
from sim.kv.stays import stays_of
from sim.metrics import e2e, output_throughput, token_times
from sim.policy import Memory, Policy, continuous, vllm
from sim.run import Event, Run, closed
from sim.service import Service, attention_units, service, step_us
from sim.slots import instants
from sim.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Values = Mapping[str, Value]

BLOCK = 16
"""Tokens in a block: vLLM's default."""
BUDGET = 2048
"""Tokens in a step: vLLM's default max_num_batched_tokens of its offline engine."""
PROMPT_MEAN, PROMPT_CAP, OUTPUT_MEAN, OUTPUT_CAP, CV = 400, 1024, 150, 600, 1.0
"""Lengths of the other requests: lognormal, in tokens; CV is standard deviation over mean."""
CROWD, CROWD_PROMPT, CROWD_OUTPUT = (1, 32), 128, 101
"""Requests at once, tokens of their prompts and replies, in the two runs on throughput: as many requests as the larger number."""
QUEUE_PROMPT, QUEUE_OUTPUTS = 128, (160, 20, 80, 10, 40)
"""Prompts and replies, in tokens, of the five who wait for one slot in the two runs on order."""
REACHED = 0.8
"""Share of a link's rate that a copy reaches: assumed, as for the A40's PCIe in sim.hardware."""
LINKS: dict[str, float] = {
    "Ethernet, 10 Gb/s": 1.25e9, "InfiniBand HDR, 200 Gb/s": 25e9, "PCIe 4.0 x16": 31.5e9, "InfiniBand NDR, 400 Gb/s": 50e9,
    "PCIe 5.0 x16": 63e9,
}
"""Bytes per second each way, by the standards: PCIe 4.0 and 5.0 are 16 and 32 GT/s a lane, 128 of 130 bits carry data."""
TOKEN_BYTES = 4
"""Bytes of a token's number: vocabularies are larger than 2 bytes can count."""
MOST_TOKENS = 300
OTHERS = (0, 1, 2, 4, 8, 16, 24, 32, 40, 48, 60)
"""What the sweep goes over."""
SEEDS = 20
"""The band runs seeds 1 to SEEDS."""

KNOBS: tuple[Knob, ...] = (
    Knob("wait", "Queue wait", 30, 0, 600, 5, unit="ms", main=True,
         help="How long the request waits from its arrival until the server starts to work on it: until it is admitted."),
    Knob("prefill", "Prefill", 50, 5, 600, 5, unit="ms", main=True,
         help="How long the server works on the prompt, to read it. At the end of that comes the first token of the reply."),
    Knob("tokens", "Reply length", 101, 1, MOST_TOKENS, 1, unit="tokens", main=True,
         help="How long the reply is. The first token ends the prefill; each further one comes after a gap."),
    Knob("gap", "Gap", 5, 1, 60, 1, unit="ms", main=True,
         help="The time from one token to the next, on average: the inter-token latency, ITL."),
    Knob("arrival", "Arrival", 0, 0, 300, 10, group="Worked example", unit="ms",
         help="When the request comes. Every latency counts from here, whatever the clock says."),
    Knob("launch", "Time to enqueue a step", 2, 0, 20, 1, group="Worked example", unit="ms",
         help="How long the CPU takes to hand a step to the GPU. Used in the first of the three short arguments."),
    Knob("others", "Other requests", 32, 0, 60, 1, group="In company", unit="requests",
         help="How many others use the server. The request that we follow comes in the middle of them."),
    Knob("rate", "Arrival rate", 10.0, options=(1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 40.0), group="In company",
         unit="requests/s", help="How many requests come in a second, on average, each at random (Poisson)."),
    Knob("slots", "Slots", 8, options=(1, 2, 4, 8, 12, 16, 32, 64), group="In company", unit="slots",
         help="How many requests may run at once; the others wait. vLLM calls it max_num_seqs."),
    Knob("memory", "KV memory", 320, options=(256, 320, 400, 512, 768, 1024, 2048), group="In company", unit="blocks",
         help="How many blocks of 16 tokens the server has for keys and values."),
    Knob("prompt", "Prompt of our request", 512, options=(32, 128, 256, 512, 1024, 2048), group="In company", unit="tokens",
         help="Prompt tokens of the request that we follow. Its reply has as many tokens as in the worked example."),
    Knob("seed", "Seed", 2, 0, 9999, group="In company", help="Another number draws other requests and other arrivals."),
    Knob("model", "Model", "Llama-3-8B", options=("Llama-3-8B", "Llama-2-7B", "Mistral-7B", "OPT-13B"), group="Server",
         help="Sets the time of a step, and the bytes of a token's keys and values."),
    Knob("gpu", "GPU", "A100-80G", options=tuple(GPUS), group="Server", help="A faster GPU takes less time for a step."),
    Knob("moment", "It leaves after", 50, 0, 99, 1, group="Leaving early", unit="% of its response time",
         help="When its client gives up, or when it is handed off: 0 is its arrival, 100 would be its last token in company."),
    Knob("link", "Link", "InfiniBand NDR, 400 Gb/s", options=tuple(LINKS), group="Leaving early",
         help="What connects the two servers, for the hand-off."),
)

PRESETS: tuple[Preset, ...] = (
    Preset("worked", "The worked example", {},
           "Four numbers make up the whole response time. Move one and watch which brackets grow with it."),
    Preset("queue", "A long queue", {"wait": 400, "rate": 20.0, "slots": 4},
           "Most of the response time passes before anybody works on the request: the gaps are as short as ever."),
    Preset("prompt", "A long prompt", {"prefill": 400, "prompt": 2048},
           "The first token takes long, the others do not: TTFT and the gaps are different things."),
    Preset("short", "A reply of one token", {"tokens": 1},
           "The first token is the last: there is no gap, TTFT is the whole response time, and ITL and TPOT do not exist."),
    Preset("early", "Gives up in the queue", {"moment": 10, "slots": 4},
           "Who leaves while waiting holds neither a slot nor blocks: there is nothing to give back, and nothing to forget."),
    Preset("alone", "Nobody else there", {"others": 0},
           "Company makes no difference when there is none: both lives are the same."),
)


@dataclass(frozen=True)
class Worked:
    """The worked example, ms: instants on the clock, and the four numbers that they are made of."""

    arrival: float
    wait: float
    prefill: float
    tokens: int
    gap: float

    @property
    def admitted(self) -> float:
        """When the server starts to work on it."""
        return self.arrival + self.wait

    @property
    def first(self) -> float:
        """When its first token is there."""
        return self.admitted + self.prefill

    @property
    def gaps(self) -> int:
        """Gaps between its tokens: one fewer than tokens."""
        return self.tokens - 1

    @property
    def last(self) -> float:
        """When its last token is there."""
        return self.first + self.gaps * self.gap

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.first - self.arrival

    @property
    def e2e(self) -> float:
        """Response time: arrival to last token."""
        return self.last - self.arrival

    def e2e_of(self, tokens: int) -> float:
        """The response time with a reply of so many tokens."""
        return self.ttft + (tokens - 1) * self.gap


@dataclass(frozen=True)
class Scenario:
    """The requests of the company, which of them we follow, and the rules and the speed of the server."""

    trace: Trace
    service: Service
    policy: Policy
    me: int
    values: dict[str, Value]

    @property
    def policies(self) -> dict[str, Policy]:
        """The rules are the same, alone and in company."""
        return {"alone": self.policy, "company": self.policy}


@dataclass(frozen=True)
class Left:
    """The request leaves before its end: asked for at `asked_us`, noticed and gone at `gone_us`.

    tokens, blocks  what it had in the KV memory when it left, 0: it was waiting;  slot  whether it held one
    """

    asked_us: float
    gone_us: float
    tokens: int
    blocks: int
    slot: bool


@dataclass(frozen=True)
class Books:
    """The audit of the KV memory after the decisions of the last step of each row: blocks, int64[rows]; start, end µs.

    ours, others  what requests hold, from the steps that each was in;  free  what the allocator says is free
    missing       the pool less all three: 0, or blocks have been lost

    The last row is the rest of time, when nothing runs any more.
    """

    start_us: Floats
    end_us: Floats
    ours: Ints
    others: Ints
    free: Ints
    missing: Ints


@dataclass(frozen=True)
class Transfer:
    """What must travel to another server, bytes, and how long that takes over each link, ms; and to compute it anew there."""

    kv_bytes: float
    token_bytes: int
    over_ms: dict[str, float]
    anew_ms: float


@dataclass(frozen=True)
class Sweep:
    """Over the number of others, else as on the screen: our request's E2E, s, and the server's output tokens per second.

    x  from 0, nobody else;  x_here  the knob's value on the screen
    """

    x: Floats
    x_here: float
    e2e: Floats
    tokens_per_s: Floats


@dataclass(frozen=True)
class Band:
    """Our request's E2E in company over the seeds 1 to SEEDS, else as on the screen, s."""

    seeds: tuple[int, ...]
    e2e: Floats


@dataclass(frozen=True)
class Result:
    """The worked example, and the runs. All arrays are read-only.

    runs    "alone", "company"; "cancelled": its client gives up; "leaked": the same, and the server forgets to take back what
            it held (there is none where it held nothing)
    books   of "cancelled" and "leaked"
    crowd   the same requests, by how many may run at once (CROWD)
    orders  "fcfs" and "shortest": five requests and one slot
    """

    scenario: Scenario
    worked: Worked
    runs: dict[str, Run]
    left: Left
    books: dict[str, Books]
    transfer: Transfer
    crowd: dict[int, Run]
    orders: dict[str, Run]


def filled(values: Values) -> dict[str, Value]:
    """`values` with the default for every knob that it leaves out."""
    return {**defaults(KNOBS), **values}


def worked(values: Values) -> Worked:
    """The worked example of the knobs."""
    v = filled(values)
    return Worked(float(v["arrival"]), float(v["wait"]), float(v["prefill"]), int(v["tokens"]), float(v["gap"]))


# --- the request and its company --------------------------------------------------------------------------------------


def build(values: Values) -> Scenario:
    """The company and the request in the middle of it."""
    v = filled(values)
    n, seed = int(v["others"]) + 1, int(v["seed"])
    me = n // 2
    arrivals = workloads.poisson(n, float(v["rate"]), seed)
    prompt = workloads.lognormal(n, PROMPT_MEAN, CV, seed, cap=PROMPT_CAP, of="prompt")
    output = workloads.lognormal(n, OUTPUT_MEAN, CV, seed, cap=OUTPUT_CAP)
    prompt[me], output[me] = int(v["prompt"]), int(v["tokens"])
    trace = workloads.workload(arrivals - arrivals[0], prompt, output, "company")
    policy = vllm(int(v["slots"]), BUDGET, Memory(int(v["memory"]), BLOCK), "vLLM's rules")
    return Scenario(trace, service(str(v["model"]), str(v["gpu"])), policy, me, v)


def result(values: Values, uploaded: None = None) -> Result:
    """Everything that the page shows. There is no file to upload; the argument is every lesson's."""
    scene = build(values)
    trace, server, policy, me = scene.trace, scene.service, scene.policy, scene.me
    company = simulate(trace, server, policy)
    runs = {"alone": simulate(trace.take(slice(me, me + 1)), server, policy), "company": company}
    arrival, end = float(trace.arrival_us[me]), float(company.finished_us[me])
    asked = arrival + int(scene.values["moment"]) / 100 * (end - arrival)
    runs["cancelled"], free = leaving(scene, asked)
    left = _left(runs["cancelled"], me, asked)
    books = {"cancelled": audit(runs["cancelled"], me, free)}
    if left.blocks:
        runs["leaked"], free = leaving(scene, asked, left)
        books["leaked"] = audit(runs["leaked"], me, free)
    runs = {key: closed(run) for key, run in runs.items()}
    transfer = _transfer(scene, runs["cancelled"], left)
    return Result(scene, worked(values), runs, left, books, transfer, _crowd(server), _orders(server))


def leaving(scene: Scenario, asked_us: float, forgotten: Left | None = None) -> tuple[Run, int]:
    """The company's run, in which our client gives up at `asked_us`; and how many blocks are free at its end.

    forgotten  what the server fails to take back. At the end of the step in which it notices the client is gone, and before
               anybody else is let in, as many blocks and one slot are taken out of its books. It is what a bug does: the
               engine cannot do so by itself
    """
    engine = Engine(scene.service, scene.policy)
    engine.submit(scene.trace)
    engine.cancel(scene.me, asked_us)
    if forgotten is None:
        engine.advance(math.inf)
        return engine.run(scene.trace), engine.pool.free
    engine.advance(forgotten.gone_us)
    engine.pool.free -= forgotten.blocks
    if scene.policy.slots > 1:
        engine.policy = replace(scene.policy, slots=scene.policy.slots - 1)
        engine.advance(math.inf)
        engine.policy = scene.policy
    return engine.run(scene.trace), engine.pool.free


def departure(run: Run, me: int) -> Event | None:
    """The event of its leaving while it ran, None: it was waiting, or had ended."""
    return next((event for event in run.events if event.kind == "cancelled" and event.request == me), None)


def _left(run: Run, me: int, asked_us: float) -> Left:
    event = departure(run, me)
    if event is not None:
        return Left(asked_us, event.at_us, event.tokens, event.blocks, True)
    ends = np.sort(run.steps.end_us)  # noticed at the end of the step that runs, at once where none does
    later = ends[np.searchsorted(ends, asked_us):]
    return Left(asked_us, float(later[0]) if len(later) else asked_us, 0, 0, False)


def audit(run: Run, me: int, free_at_end: int) -> Books:
    """Who holds how many blocks, beside what the allocator calls free; two sources that must add up to the pool."""
    assert run.policy.memory is not None
    stays, steps, size = stays_of(run, instants(run)), run.steps, run.policy.memory.block_size
    row = np.arange(len(steps.count) + 1)
    exits, leave = stays.exit[:, None], stays.leave[:, None]
    # Tokens of each stay after the last step of each row: while its prompt is computed, while it decodes, until it leaves.
    begun = np.append(stays.begun[1], 0)
    tokens = np.where((stays.ready[:, None] <= row) & (row < exits), stays.offset[:, None] + begun, 0)
    tokens = np.where((exits <= row) & (row < leave), stays.end[:, None], tokens)
    tokens[stays.stay, stays.row] = stays.tokens[1]
    tokens[:, -1] = 0
    blocks = -(-tokens // size)
    ours, others = blocks[stays.request == me].sum(axis=0), blocks[stays.request != me].sum(axis=0)
    free, end = np.append(steps.free, free_at_end), float(steps.end_us[-1]) if len(steps.count) else 0.0
    return Books(np.append(steps.start_us, end), np.append(steps.end_us, end), ours, others, free,
                 run.policy.memory.blocks - ours - others - free)


def _transfer(scene: Scenario, run: Run, left: Left) -> Transfer:
    """The KV that it has when it leaves; the tokens themselves must travel in any case: its prompt, and its reply so far."""
    server = scene.service
    known = int(scene.trace.prompt[scene.me]) + len(token_times(run, scene.me))
    size = float(server.kv_bytes_per_token * left.tokens)
    return Transfer(size, TOKEN_BYTES * known, {name: size / (rate * REACHED) * 1000 for name, rate in LINKS.items()},
                    float(step_us(server, known, attention=attention_units(known), requests=1)) / 1000)


# --- the short arguments ----------------------------------------------------------------------------------------------


def _crowd(server: Service) -> dict[int, Run]:
    n = max(CROWD)
    trace = workloads.workload(workloads.all_at_once(n), workloads.equal(n, CROWD_PROMPT), workloads.equal(n, CROWD_OUTPUT))
    return {slots: closed(simulate(trace, server, continuous(slots, prompts="whole"))) for slots in CROWD}


def _orders(server: Service) -> dict[str, Run]:
    n = len(QUEUE_OUTPUTS)
    trace = workloads.workload(workloads.all_at_once(n), workloads.equal(n, QUEUE_PROMPT), np.array(QUEUE_OUTPUTS))
    one = continuous(1, prompts="whole")
    policies = {"fcfs": one, "shortest": replace(one, order="shortest", name="shortest first")}
    return {key: closed(simulate(trace, server, policy)) for key, policy in policies.items()}


# --- over the range of a knob, over the seeds -------------------------------------------------------------------------


def sweep(values: Values, uploaded: None = None, over: str = "others") -> Sweep:
    """The company over the number of others. There is no other range; the arguments are every lesson's."""
    here = int(filled(values)["others"])
    xs = sorted({*OTHERS, here})
    took, rate = zip(*(_in_company({**values, "others": x}) for x in xs), strict=True)
    return Sweep(np.array(xs, float), float(here), np.array(took), np.array(rate))


def band(values: Values) -> Band:
    """The company over the seeds."""
    seeds = tuple(range(1, SEEDS + 1))
    return Band(seeds, np.array([_in_company({**values, "seed": seed})[0] for seed in seeds]))


def _in_company(values: Values) -> tuple[float, float]:
    """Our request's E2E, s, and the server's output tokens per second."""
    scene = build(values)
    run = simulate(scene.trace, scene.service, scene.policy)
    return float(e2e(run)[scene.me]), output_throughput(run)


def alone(result: Result, request: int) -> Run:
    """Any request of the company, by itself."""
    scene = result.scenario
    if request == scene.me:
        return result.runs["alone"]
    return simulate(scene.trace.take(slice(request, request + 1)), scene.service, scene.policy)


# --- the first short argument -----------------------------------------------------------------------------------------


def gap_with_launch(result: Result, waits: bool) -> float:
    """ms from token to token if the GPU takes `gap` for a step and the CPU `launch` to enqueue it.

    waits  whether the next step can only be enqueued when this one's token is there; else that is done while the GPU works,
           and only the longer of the two counts
    """
    gap, launch = result.worked.gap, float(result.scenario.values["launch"])
    return gap + launch if waits else max(gap, launch)
