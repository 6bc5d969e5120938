"""How much of a static batch is idle when its members end at different steps: the arithmetic of Orca's workload."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from sim import workloads
from sim.engine import simulate
from sim.policy import static
from sim.record.claim import Claim
from sim.run import Run
from sim.service import service

SLOTS, REQUESTS, LONGEST = 8, 10_000, 128


@lru_cache(maxsize=1)
def uniform_run() -> Run:
    """10,000 requests at once, prompts uniform 32 to 512 and outputs uniform 1 to 128, in static batches of 8."""
    trace = workloads.workload(
        workloads.all_at_once(REQUESTS),
        workloads.uniform(REQUESTS, 32, 512, seed=0, of="prompt"),
        workloads.uniform(REQUESTS, 1, LONGEST, seed=0, of="output"),
        "Orca's lengths",
    )
    return simulate(trace, service("OPT-13B", "A100-40G"), static(SLOTS))


def idle_slot_steps(run: Run) -> float:
    """Share of slots x steps in which the slot's request had already ended or no request was there; static batches."""
    return 1 - float(run.trace.output.sum()) / (run.policy.slots * float(run.steps.count.sum()))


def idle_slot_time(run: Run) -> float:
    """Share of slots x time, from the first admission to the last release, in which no unfinished request held the slot."""
    busy = (run.finished_us - run.admitted_us).sum()
    return 1 - float(busy / (run.policy.slots * (run.released_us.max() - run.admitted_us.min())))


def expected_idle_slot_steps() -> float:
    """1 - E[O]/E[longest of 8 O] for O uniform 1 to 128, a prompt being the step of the first token: 1 - 64.5/114.27."""
    longest = LONGEST - sum((k / LONGEST) ** SLOTS for k in range(LONGEST))
    return 1 - (LONGEST + 1) / 2 / longest


_SET_UP = (
    f"{REQUESTS:,} requests at once, outputs uniform 1 to {LONGEST}, prompts uniform 32 to 512, static batches of {SLOTS}, "
    "OPT-13B on one A100-40G, seed 0"
)


def _slot_steps() -> Claim:
    theirs = round(100 * expected_idle_slot_steps(), 1)
    return Claim(
        "orca-idle-slot-steps",
        "worked out from the workload of Orca (OSDI 2022, section 6.2: input uniform 32 to 512, output uniform 1 to 128)",
        "share of slot-steps that are idle because a member of the batch has ended, the prompt counted as one step",
        theirs,
        round(100 * idle_slot_steps(uniform_run()), 2),
        "%",
        theirs - 1,
        theirs + 1,
        _SET_UP,
        "arithmetic on the paper's lengths (1 − 64.5/114.27); the paper itself does not print this share",
    )


def _slot_time() -> Claim:
    return Claim(
        "orca-idle-slot-time",
        "not published; to tell it from orca-idle-slot-steps",
        "share of slot-time that is idle because a member of the batch has ended",
        None,
        round(100 * idle_slot_time(uniform_run()), 2),
        "%",
        None,
        None,
        _SET_UP,
        "less than the share of slot-steps: no slot is idle in the prompt step, which takes longest; it depends on GPU and model",
    )


CLAIMS: dict[str, Callable[[], Claim]] = {"orca-idle-slot-steps": _slot_steps, "orca-idle-slot-time": _slot_time}
