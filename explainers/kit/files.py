"""Files to take away: a CSV of requests, and a trace in Chrome's format for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

Event = dict[str, Any]


def requests_csv(tables: Mapping[str, pd.DataFrame]) -> str:
    """One table from each policy's (sim.metrics.frame and the like), the policy first; requests and slots counted from 1."""
    table = pd.concat([rows.assign(policy=key) for key, rows in tables.items()], ignore_index=True)
    for column in {"request", "slot"} & set(table.columns):
        table[column] += 1
    text: str = table[["policy", *(c for c in table.columns if c != "policy")]].to_csv(index=False, lineterminator="\n")
    return text


def chrome_trace(events: Sequence[Event]) -> str:
    """JSON that Perfetto and chrome://tracing open."""
    return json.dumps({"traceEvents": list(events), "displayTimeUnit": "ms"}, separators=(",", ":"))


def names(pid: int, process: str, threads: Sequence[str]) -> list[Event]:
    """The events that name a process and its threads, numbered from 1."""
    return [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}},
            *({"ph": "M", "name": "thread_name", "pid": pid, "tid": k, "args": {"name": thread}}
              for k, thread in enumerate(threads, start=1))]


def piece(pid: int, thread: int, name: str, kind: str, start_us: float, took_us: float, args: Mapping[str, Any]) -> Event:
    """A piece of time on a thread, µs."""
    return {"ph": "X", "name": name, "cat": kind, "pid": pid, "tid": thread, "ts": round(start_us, 3), "dur": round(took_us, 3),
            "args": dict(args)}


def ms(us: Any, zero: float) -> list[float | None]:
    """Times of a Run (µs, nan: never) as ms after `zero` (µs), for what is drawn in the browser."""
    return [round(x, 3) if x == x else None for x in ((us - zero) / 1000).tolist()]
