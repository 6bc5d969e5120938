"""The commands of `python -m sim`, and what becomes of an error: a message on stderr and an exit code."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence

from sim import record
from sim.cli import capacity, options, run
from sim.cli.progress import Progress

_EXAMPLES = """\
examples:
  python -m sim run --trace assets/azure_conv_2023_sample.csv --length 60
  python -m sim run --requests 1000 --rate 2 --policy static:slots=8,continuous:slots=8,continuous:slots=32:budget=2048
  python -m sim run --requests 1000 --rate 8 --policy vllm,vllm-v0:swap=25,orca,sarathi-serve --blocks 2000 --slots 128
  python -m sim capacity --slo-tbt 0.1 --model Mistral-7B
  python -m sim record --json
"""
_CODES = "exit codes: 0 done, 1 the input cannot be read or served, 2 usage, 130 interrupted"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and run one command; its exit code. Usage that argparse refuses by itself ends in SystemExit(2)."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.command is None:
        parser.print_help()
        return 0
    try:
        code: int = asked.work(asked)
        return code
    except options.UsageError as error:
        asked.parser.print_usage(sys.stderr)
        print(f"{asked.parser.prog}: error: {error}", file=sys.stderr)
        return 2
    except run.BadInputError as error:
        print(f"{asked.parser.prog}: error: {error}", file=sys.stderr)
        return 1


def _run(asked: argparse.Namespace) -> int:
    with Progress(asked.progress) as progress:
        comparison = run.compare(asked, progress)
    print(json.dumps(run.to_json(comparison), indent=1, allow_nan=False) if asked.json else run.table(comparison))
    return 0


def _capacity(asked: argparse.Namespace) -> int:
    with Progress(asked.progress) as progress:
        found = capacity.find(asked, progress)
    if asked.csv:
        print(capacity.to_csv(found), end="")
    else:
        print(json.dumps(capacity.to_json(asked, found), indent=1, allow_nan=False) if asked.json else capacity.table(found))
    return 0


def _record(asked: argparse.Namespace) -> int:
    with Progress(asked.progress) as progress:
        try:
            claims = record.compute(asked.name or None, lambda done, of, name: progress(f"{name} ({done + 1} of {of})"))
        except ValueError as error:
            raise options.UsageError(str(error)) from None
    print(json.dumps(record.to_json(claims), indent=1) if asked.json else record.table(claims))
    return 1 if asked.strict and any(claim.inside is False for claim in claims) else 0


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m sim", formatter_class=plain, epilog=f"{_EXAMPLES}\n{_CODES}",
                                     description="How an LLM server schedules requests, simulated.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    one = commands.add_parser("run", formatter_class=plain, epilog=f"{options.POLICY_HELP}\n{_CODES}",
                              usage="python -m sim run [--trace FILE] [OPTION …]",
                              help="serve a trace under several policies",
                              description="Serve one trace on one server under several policies, and compare.")
    options.add_to(one)
    limit = options.real(0, math.inf)
    add = one.add_argument_group("output").add_argument
    add("--ttft-limit", type=limit, metavar="S", help="also goodput: finished requests per second with a TTFT of at most S")
    add("--tpot-limit", type=limit, metavar="S", help="the same for the mean time per output token")
    _add_output(one, "{version, trace, seed, service, runs: [{policy, metrics, ledger}]}; times in s")
    one.set_defaults(work=_run, parser=one)

    three = commands.add_parser("capacity", formatter_class=plain, epilog=f"{options.POLICY_HELP}\n{_CODES}",
                                usage="python -m sim capacity --slo-tbt S [OPTION …]",
                                help="the largest rate at which each policy keeps its limits",
                                description="Find the largest Poisson rate at which both limits hold, by Sarathi-Serve's rule.")
    capacity.add_to(three)
    _add_output(three, "{limits, requests, seed, model, gpu, tp, policies: [{policy, capacity, points}]}; times in s")
    three.add_argument("--csv", action="store_true", help="print a CSV line for each rate that was tried")
    three.set_defaults(work=_capacity, parser=three)

    two = commands.add_parser("record", help="published and measured figures beside ours",
                              description="Compute what was published or measured elsewhere, and say whether ours agrees.")
    two.add_argument("name", nargs="*", metavar="NAME", help="a claim, or the start of several followed by * (default: all)")
    two.add_argument("--strict", action="store_true", help="exit with 1 where a claim is outside its tolerance")
    _add_output(two, "a list of {name, source, theirs, ours, tolerance, inside, note, …}")
    two.set_defaults(work=_record, parser=two)
    return parser


def _add_output(parser: argparse.ArgumentParser, keys: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print JSON instead of a table: {keys}")
    parser.add_argument("--progress", action="store_true", help="show progress on stderr even where it is no terminal")
