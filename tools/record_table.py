"""`python -m tools.record_table`: computes every claim and writes README's table of them, between its two marks."""

from __future__ import annotations

from collections.abc import Iterable

from explainers.course import evidence
from sim import record
from sim.record import Claim

README = evidence.ROOT / "README.md"
BEGIN, END = "<!-- record: written by tools/record_table.py -->", "<!-- end of record -->"


def line(claim: Claim) -> str:
    """One row of the table."""
    cells = evidence.row(claim)
    return "| " + " | ".join(cells[key].replace("|", "\\|") for key in ("Figure", "Theirs", "Ours", "Allowed", "")) + " |"


def table(claims: Iterable[Claim]) -> str:
    """All of them under their headings."""
    by_name = {claim.name: claim for claim in claims}
    parts = []
    for heading, patterns in evidence.GROUPS:
        there = [by_name[name] for name in evidence.names(patterns) if name in by_name]
        if there:
            head = f"\n{heading}\n\n| Figure | Theirs | Ours | Allowed | |\n|---|---|---|---|---|\n"
            parts.append(head + "\n".join(map(line, there)))
    return "\n".join(parts)


def stands_in_readme(claims: Iterable[Claim]) -> bool:
    """Whether README's table has these claims as they come out now."""
    text = README.read_text(encoding="utf-8")
    shown = text[text.index(BEGIN):text.index(END)].splitlines()
    return all(line(claim) in shown for claim in claims)


def main() -> None:
    """Write the table anew."""
    text = README.read_text(encoding="utf-8")
    head, tail = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END):]
    README.write_text(f"{head}\n{table(record.compute())}\n\n{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
