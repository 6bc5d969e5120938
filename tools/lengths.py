"""`python -m tools.lengths TRACE.csv`: quantiles of a trace's prompt and reply lengths, as assets/ keeps them, on stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

PROBABILITIES = np.unique(np.concatenate([np.arange(101) / 100, [0.001, 0.005, 0.995, 0.999]]))
HEAD = """\
# Lengths in tokens of openchat_sharegpt4 as Sarathi-Serve's artifact has them (sarathi_openchat_sharegpt4_8k.csv, branch
# niyama_asplos2026 of microsoft/sarathi-serve, Apache-2.0): quantiles of 30,731 requests, total at most 8,192 tokens.
# Prompt and reply are nearly independent there (Spearman's rho 0.05). Made by tools/lengths.py.
probability,prompt,output
"""


def table(file: Path) -> str:
    """The table of a CSV file with the columns num_prefill_tokens and num_decode_tokens."""
    trace = pd.read_csv(file)
    columns = [np.quantile(trace[name], PROBABILITIES) for name in ("num_prefill_tokens", "num_decode_tokens")]
    return HEAD + "".join(f"{p:g},{a:g},{b:g}\n" for p, a, b in zip(PROBABILITIES, *columns, strict=True))


if __name__ == "__main__":
    sys.stdout.write(table(Path(sys.argv[1])))
