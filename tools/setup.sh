#!/bin/sh
# Makes .venv hold what is pinned: `tools/setup.sh run` for the course, `tools/setup.sh dev` for tests and checks too.
#
# A stamp in .venv names what was installed, by the checksum of everything that decides it, and the interpreter. It is
# removed before pip starts and written after pip has ended well. So a .venv without a stamp was left half made, and is
# made anew; one with an old stamp is brought up to date in place.
set -eu
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

# The version of interpreter $1 as "3.11"; fails where it does not start.
version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" && { echo "$PYTHON"; return; }
        say "PYTHON=$PYTHON does not start, or is older than Python 3.11, the oldest that Stepwise runs on."
        return 1
    fi
    for candidate in python3 python3.13 python3.12 python3.11; do
        new_enough "$candidate" && { echo "$candidate"; return; }
    done
    say "Stepwise needs Python 3.11 or newer; python3 here is $(version python3 || echo missing)."
    say "Install one (Debian 12 or later: apt install python3 python3-venv), or name one: make setup PYTHON=/path/to/python3"
    return 1
}

make_venv() {
    python=$(find_python) || exit 1
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        say "$python cannot make a virtual environment: its venv module is not complete. On Debian and Ubuntu:"
        say "    apt install python3-venv"
        exit 1
    fi
    say "Making .venv with Python $(version "$python")"
    rm -rf .venv
    "$python" -m venv .venv
}

# What .venv must match to be believed, for $1 = run or dev.
expected() {
    files="requirements.txt constraints.txt Makefile tools/setup.sh"
    [ "$1" = dev ] && files="$files requirements-dev.txt"
    echo "$(version .venv/bin/python || echo none) $(cat $files | cksum)"
}

holds() { [ -f ".venv/$1.stamp" ] && [ "$(cat ".venv/$1.stamp")" = "$(expected "$1")" ]; }

install() {
    rm -f .venv/run.stamp .venv/dev.stamp
    say "Installing what is pinned ($*); the first time takes a minute"
    if ! .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input "$@"; then
        say "pip could not install the pinned packages; its own message is above. Mend the cause and run the same command again."
        exit 1
    fi
}

what=${1:-}
case $what in run | dev) ;; *) say "usage: tools/setup.sh run|dev"; exit 2 ;; esac
holds "$what" && exit 0

# Believed only if an install ended here before, and the interpreter it was made with still is the one that starts.
made_with=$(cat .venv/run.stamp 2>/dev/null | cut -d ' ' -f 1)
if [ -z "$made_with" ] || [ "$made_with" != "$(version .venv/bin/python)" ]; then
    make_venv
fi

case $what in
    run) install -r requirements.txt ;;
    dev) install -r requirements.txt -r requirements-dev.txt; expected dev > .venv/dev.stamp ;;
esac
expected run > .venv/run.stamp
