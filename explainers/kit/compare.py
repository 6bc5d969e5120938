"""Words that compare two runs of one trace: which of them lets the last reply come sooner, and by how much."""

from __future__ import annotations

from collections.abc import Mapping

from explainers.kit.grammar import duration

Summary = Mapping[str, float]


def turns_out(one: Summary, other: Summary) -> str:
    """ "so" where the other run is sooner than the one, "but" where it is not."""
    last, typical = (one[key] - other[key] for key in ("makespan", "e2e_p50"))
    sooner = last if abs(last) >= 0.01 * one["makespan"] else typical if abs(typical) >= 0.01 * one["e2e_p50"] else 0.0
    return "so" if sooner > 0 else "but"


def reply_clause(one: Summary, other: Summary, under: str = "") -> str:
    """Which is sooner: the last reply where that differs by 1 % or more, else the typical one.

    under  the other run's policy, where the sentence has not named it: "with continuous batching "
    """
    gain, typical = one["makespan"] - other["makespan"], one["e2e_p50"] - other["e2e_p50"]
    if abs(gain) >= 0.01 * one["makespan"]:
        return f"{under}the last reply comes {duration(abs(gain))} {'sooner' if gain > 0 else 'later'}"
    if not abs(typical) >= 0.01 * one["e2e_p50"]:
        return "the last reply and the median E2E latency differ by less than 1 %"
    return (f"{under}the median E2E latency is {duration(other['e2e_p50'])} instead of {duration(one['e2e_p50'])}, "
            "with the last reply at about the same time")
