"""The real sglang-router 0.3.2 and ours send every request to the same worker."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from tests.peers import blake3
from tests.peers.__main__ import main
from tests.peers.router import Broken, NotReplayable, read, replay

DATA = Path(__file__).parent / "data" / "router"
BY_RULE = sorted(path for path in DATA.glob("*_n*.json.gz")
                 if any(rule in path.name for rule in ("cache_aware", "round_robin", "consistent_hashing")))


@pytest.mark.parametrize("path", BY_RULE, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_every_decision_of_the_real_router_is_ours(path: Path) -> None:
    result = replay(path)
    assert not result.difference
    assert result.agree == len(read(path)["requests"]) in (290, 240)


def test_what_is_drawn_at_random_or_refused_is_said_to_be_no_comparison() -> None:
    for name, reason in (("A_n4_seq_random", "at random"), ("A_n4_w48_manual_min_load", "at random"),
                         ("A_n4_seq_prefix_hash", "refused"), ("workload_A", "no decisions")):
        with pytest.raises(NotReplayable, match=reason):
            replay(DATA / f"{name}.json.gz")


def altered(folder: Path, name: str, change: dict[str, object]) -> Path:
    """A copy of a recording and its workload, with one request changed."""
    recording = read(DATA / f"{name}.json.gz")
    recording["requests"][100] |= change
    shutil.copy(DATA / f"{recording['workload']}.gz", folder)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(recording))
    return path


def test_one_decision_that_differs_is_found(tmp_path: Path) -> None:
    name = "A_n4_w16_cache_aware_default"
    real = read(DATA / f"{name}.json.gz")["requests"][100]["worker"]
    result = replay(altered(tmp_path, name, {"worker": (real + 1) % 4}))
    assert result.agree == 100 and "request 100" in result.difference


@pytest.mark.parametrize("change", [{"sha": "0" * 12}, {"turn": 9}, {"worker": 4}, {"loads_before": [0]},
                                    {"router_reported_loads": [9, 9, 9, 9]}])
def test_a_file_that_contradicts_itself_is_no_recording(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(Broken):
        replay(altered(tmp_path, "A_n4_w16_cache_aware_default", change))


def test_the_command_fails_where_nothing_was_replayed_or_something_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["router", str(tmp_path)]) == 1
    (tmp_path / "summary.json").write_text("{}")
    assert main(["router", str(tmp_path)]) == 1
    assert capsys.readouterr().out.endswith("\n0 agree, 0 differ\n")
    altered(tmp_path, "A_n4_w16_round_robin", {})
    assert main(["router", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "summary.json: skipped" in out and out.endswith("\n1 agree, 0 differ\n")
    (tmp_path / "torn.json.gz").write_bytes(gzip.compress(b'{"policy": '))
    assert main(["router", str(tmp_path)]) == 1
    assert capsys.readouterr().out.endswith("\n1 agree, 1 differ\n")


def test_blake3_is_the_published_hash() -> None:
    # No input as in the reference test vectors (test_vectors.json), and "abc" as b3sum prints it.
    assert blake3.digest(b"").hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert blake3.digest(b"abc").hex() == "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
    with pytest.raises(ValueError, match=str(1024)):
        blake3.digest(bytes(1025))
