"""A browser for the tests: found where there is one, asked of apt-get where that is allowed, and otherwise said to be missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools import chromium


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine(name, script)` puts a program on a machine that has nothing else; it logs its arguments to the path `log`."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(chromium, "MAC", ())
    log = tmp_path / "log"
    log.touch()

    def program(name: str, script: str = "exit 0") -> str:
        file = tmp_path / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> "{log}"\n{script}\n')
        file.chmod(0o755)
        return str(file)

    program.log = log
    program("env", 'shift; exec "$@"')
    return program


def test_the_first_known_name_that_starts_is_taken(machine):
    machine("chromium-browser", "exit 1")  # Ubuntu's stub
    chrome = machine("google-chrome")
    assert chromium.find() == chrome


def test_the_environment_s_choice_comes_first(machine, monkeypatch):
    machine("chromium")
    mine = machine("my-browser")
    monkeypatch.setenv("CHROMIUM", mine)
    assert chromium.find() == mine


def test_a_choice_that_does_not_start_is_an_error_and_not_passed_over(machine, monkeypatch, capsys):
    machine("chromium")
    monkeypatch.setenv("CHROMIUM", "/nowhere/chrome")
    with pytest.raises(FileNotFoundError, match="CHROMIUM=/nowhere/chrome does not start"):
        chromium.find()
    assert chromium.main([]) == 1
    assert "CHROMIUM=/nowhere/chrome" in capsys.readouterr().err


def test_root_installs_debian_s(machine, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    browser = Path(machine.log.parent / "chromium")
    machine("apt-get", f'case "$*" in *install*) printf "#!/bin/sh\\n" > "{browser}"; /bin/chmod +x "{browser}";; esac')
    assert chromium.main(["--install"]) == 0
    assert capsys.readouterr().out == f"{browser}\n"
    calls = [line for line in machine.log.read_text().splitlines() if line.startswith("apt-get")]
    assert calls == ["apt-get -q update", "apt-get -q install -y --no-install-recommends chromium fonts-liberation"]


def test_without_root_it_is_asked_of_sudo_without_a_password(machine, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    machine("apt-get")
    machine("sudo")
    chromium.install()
    assert "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get -q update" in machine.log.read_text().splitlines()


def test_where_sudo_wants_a_password_nothing_is_installed_and_the_way_is_said(machine, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    machine("apt-get")
    machine("sudo", "exit 1")
    assert chromium.main(["--install"]) == 1
    assert "apt-get" not in machine.log.read_text()
    assert "apt install chromium" in capsys.readouterr().err


def test_nothing_is_installed_unasked(machine, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    machine("apt-get")
    assert chromium.main([]) == 1
    assert machine.log.read_text() == ""


def run_pytest(ci: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**os.environ, "CI": ci, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_without_a_browser_the_browser_tests_skip_and_say_how_to_get_one(tmp_path):
    done = run_pytest("", "tests/browser", PATH=str(tmp_path), CHROMIUM="")
    assert done.returncode == 0 and "skipped" in done.stdout and "passed" not in done.stdout
    assert "apt install chromium" in done.stdout


def test_in_ci_the_browser_tests_fail_without_a_browser(tmp_path):
    done = run_pytest("true", "tests/browser/test_frame.py", PATH=str(tmp_path), CHROMIUM="")
    assert done.returncode == 1 and "skipped" not in done.stdout
    assert "apt install chromium" in done.stdout


def test_in_ci_a_browser_test_that_skips_itself_has_failed(tmp_path):
    test = tmp_path / "test_skips.py"
    test.write_text("import pytest\n\n@pytest.mark.browser\ndef test_page():\n    pytest.skip('not today')\n")
    outside = run_pytest("", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), str(test))
    assert outside.returncode == 0 and "1 skipped" in outside.stdout
    in_ci = run_pytest("true", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), str(test))
    assert in_ci.returncode == 1 and "may not be skipped in CI" in in_ci.stdout and "not today" in in_ci.stdout
