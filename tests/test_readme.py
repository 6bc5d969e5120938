"""What the README says can be done, and with what, is so."""

import re
import shlex
import subprocess
import sys

import pytest

from explainers import PATH
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines() if "python -m sim" in line]


def pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", (ROOT / name).read_text(), re.MULTILINE))


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_five_lines_run_and_name_both_policies():
    (code,) = blocks("python")
    assert len(code.splitlines()) == 5
    out = run("-c", code)
    assert [line.split()[0] for line in out.splitlines()] == ["static", "continuous"]


@pytest.mark.parametrize("command", [line for line in COMMANDS if "--trace" not in line])
def test_the_commands_run(command):
    assert run(*shlex.split(command)[1:])


def test_a_trace_is_read_as_the_readme_says(shared):
    (command,) = (line for line in COMMANDS if "--trace" in line)
    file = "AzureLLMInferenceTrace_conv.csv"
    out = run(*shlex.split(command.replace(file, str(shared(f"traces/{file}"))))[1:])
    assert "static" in out and "continuous" in out


def test_the_dependency_tables_are_the_pins():
    table = dict(re.findall(r"^\| ([a-z0-9-]+) \| (\d[\d.]*) \|", README, re.MULTILINE))
    assert table == pins("requirements.txt") | pins("requirements-dev.txt")


def test_no_package_is_pinned_twice():
    assert not pins("constraints.txt").keys() & (pins("requirements.txt") | pins("requirements-dev.txt")).keys()


def test_every_target_that_it_names_is_in_the_makefile():
    named = set(re.findall(r"(?:`|^|: )make ([a-z-]+)", README, re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"app", "test", "bench", "lint", "setup"} <= named <= targets


def test_every_place_on_the_map_exists():
    places = re.findall(r"^\| `([^`]+)` \|", README, re.MULTILINE)
    assert len(places) > 8
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_its_lessons_are_those_of_the_path():
    for title in (entry.title for entry in PATH):
        assert f"| {title} |" in README


def test_its_picture_is_there():
    (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert (ROOT / picture).is_file()
