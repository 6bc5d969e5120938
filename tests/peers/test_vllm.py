"""vLLM's recorded decisions, replayed: the copies in tests/peers/data, and the command that replays a folder."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers.vllm import replay

DATA = Path(__file__).parent / "data" / "vllm"
FILES = sorted(DATA.glob("*.json.gz"))


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tests.peers", "vllm", str(folder)], capture_output=True, text=True, check=False)


def test_all_recordings_are_here() -> None:
    assert len(FILES) == 64


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_every_decision_is_vllms(path: Path) -> None:
    assert replay(path).difference == ""


@pytest.mark.parametrize("name", ["kv_scarce_prefix_cache", "priority_preempt", "abort_mixed", "fuzz_12"])
def test_one_step_at_a_time_decides_the_same(name: str) -> None:
    result = replay(DATA / f"{name}.json.gz", longest_stretch=1)
    assert (result.difference, result.rows) == ("", result.steps)


def test_long_decode_stretches_are_few_rows() -> None:
    result = replay(DATA / "poisson_light.json.gz")
    assert result.rows * 10 < result.steps


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda d: d["output"]["steps"][3].update(free=1), "step 3: free"),
        (lambda d: d["output"]["steps"][5]["sched"].popitem(), "step 5: sched"),
        (lambda d: d["output"]["requests"][0].update(finish_us=1), "request r00: finish_us"),
        (lambda d: d["output"]["requests"][0]["token_us"].__setitem__(2, 1), "request r00: token 2 at"),
        (lambda d: d["output"]["requests"][1].update(num_output_tokens=1), "tokens, theirs 1"),
        (lambda d: d["output"]["totals"].update(recomputed_tokens=1), "tokens recomputed"),
    ],
)
def test_a_recording_that_was_tampered_with_differs_at_that_place(tmp_path: Path, spoil: object, says: str) -> None:
    recording = json.loads(gzip.decompress((DATA / "kv_scarce_prefix_cache.json.gz").read_bytes()))
    spoil(recording)  # type: ignore[operator]
    (tmp_path / "x.json").write_text(json.dumps(recording))
    assert says in replay(tmp_path / "x.json").difference
    done = run(tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "0 agree, 1 differ"


def test_a_folder_without_recordings_fails(tmp_path: Path) -> None:
    assert run(tmp_path).returncode == 1


def test_the_command_ends_with_the_count(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes((DATA / "burst14_seqs4.json.gz").read_bytes())
    done = run(tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 agree, 0 differ")
