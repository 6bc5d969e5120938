"""Where is a Chromium that the browser tests can drive, and how does one get it where there is none?

`python -m tools.chromium` prints the path of one; with `--install` it first lets apt-get install Debian's where there is
none and it may. Exit code 1, and a message that says what to do, where none can be had.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)

# Quiet: nothing that the browser does on its own account leaves the machine, and no name but ours resolves.
FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)

STDERR = 2  # the file descriptor: only the path goes to stdout

MISSING = (
    "No Chromium here, which the browser tests drive. On Debian: apt install chromium fonts-liberation. Elsewhere: install "
    "Chromium or Google Chrome, or name one: CHROMIUM=/path/to/chromium make test"
)


def flags() -> list[str]:
    """How to start it. Its sandbox does not work as root, which is what containers run as."""
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    return [*FLAGS, "--no-sandbox"] if as_root else list(FLAGS)


def find() -> str | None:
    """Path of a Chromium that starts: the environment's CHROMIUM, or else the first known name; None where there is none.

    Raises FileNotFoundError where CHROMIUM is set to something that does not start: a wrong wish is not passed over.
    """
    wish = os.environ.get("CHROMIUM", "")
    if wish:
        path = shutil.which(wish)
        if path is None or not _starts(path):
            raise FileNotFoundError(f"CHROMIUM={wish} does not start; unset it, or give the path of a Chromium or Chrome")
        return path
    found = (shutil.which(name) for name in (*NAMES, *MAC))
    return next((path for path in found if path is not None and _starts(path)), None)


def _starts(path: str) -> bool:
    """Ubuntu's chromium-browser may be a stub that only says to install something else: so it is asked for its version."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def install() -> None:
    """Let apt-get install Debian's Chromium, if we are root or sudo asks for no password; do nothing otherwise.

    Its output goes to stderr. A failure is not an error here: whether there is a browser afterwards is what counts.
    """
    if shutil.which("apt-get") is None:
        return
    if os.geteuid() == 0:
        become: tuple[str, ...] = ()
    elif shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0:
        become = ("sudo", "-n")
    else:
        return
    print("No Chromium here: installing Debian's with apt-get", file=sys.stderr)
    apt = (*become, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q")
    for command in (("update",), ("install", "-y", "--no-install-recommends", "chromium", "fonts-liberation")):
        subprocess.run([*apt, *command], stdin=subprocess.DEVNULL, stdout=STDERR, check=False)


def main(arguments: Sequence[str]) -> int:
    """Print the path of a Chromium; exit code 1 and a message where there is none."""
    try:
        path = find()
        if path is None and "--install" in arguments:
            install()
            path = find()
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    if path is None:
        print(MISSING, file=sys.stderr)
        return 1
    print(Path(path).absolute())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
