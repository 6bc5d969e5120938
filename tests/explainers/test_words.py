"""The glossary and the readings: what must be there is there, and every link leads where it says."""

from __future__ import annotations

from importlib import import_module

import pytest

from explainers import LEVELS, PATH
from explainers.course import readings
from explainers.kit import glossary

REQUIRED = (
    "continuous batching", "static batching", "chunked prefill", "generation stall", "request scheduling", "preemption",
    "KV-cache-aware routing", "prefill", "decode", "TTFT", "ITL", "TPOT", "goodput", "KV cache", "block table", "prefix cache",
    "token budget", "ridge point", "iteration-level scheduling", "session affinity", "head-of-line blocking", "fragmentation",
)
PLANNED = {entry.key for entry in PATH} | {"lifecycle", "batching", "memory", "preemption", "chunked_prefill", "routing"}


def test_every_word_that_must_be_there_is_there_once() -> None:
    names = [term.term.lower() for term in glossary.terms()]
    assert len(names) == len(set(names)) and {name.lower() for name in REQUIRED} <= set(names)
    assert len({term.key for term in glossary.terms()}) == len(names)


@pytest.mark.parametrize("term", glossary.terms(), ids=lambda t: t.key)
def test_a_word_is_one_plain_sentence_and_what_it_is_not_and_leads_to_its_lesson(term: glossary.Term) -> None:
    for sentence in (term.short, term.not_):
        assert sentence.endswith(".") and sentence.count(". ") == 0 and len(sentence.split()) <= 26
    assert term.not_.startswith("Not ")
    assert term.lesson in PLANNED
    known = {t.key for t in glossary.terms()}
    assert set(term.see) <= known - {term.key}
    if any(entry.key == term.lesson for entry in PATH):
        knobs = {knob.key: knob for knob in import_module(f"explainers.{term.lesson}.scenario").KNOBS}
        for key, value in term.state.items():
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            assert knobs[key].fit(shown) == (value, None), (term.key, key)


def test_a_spelling_belongs_to_one_word() -> None:
    forms = [form.lower() for term in glossary.terms() for form in (term.term, *term.aliases)]
    assert len(forms) == len(set(forms))


def test_first_uses_are_found_in_order_as_whole_words_the_longest_first() -> None:
    found = glossary.first_uses(["Chunked prefill reads a prompt in chunks.", "A decode is no decoder; prefills stall the TTFT."])
    assert [term.key for term in found] == ["chunked_prefill", "decode", "prefill", "generation_stall", "ttft"]
    assert glossary.first_uses(["nothing of the kind"]) == []


def test_a_search_finds_names_spellings_and_sentences() -> None:
    assert [t.key for t in glossary.matching("tbt")] == ["itl"]
    assert glossary.matching("  ") == list(glossary.terms())
    assert glossary.matching("<script>") == []


def test_the_readings_are_an_ordered_path_of_at_least_twelve() -> None:
    path = readings.readings()
    assert len(path) >= 12 and [r.order for r in path] == list(range(1, len(path) + 1))
    assert [r.level for r in path] == sorted(r.level for r in path) and {r.level for r in path} == set(range(1, len(LEVELS) + 1))
    titles = " ".join(f"{r.title} {r.authors}" for r in path)
    musts = ("Orca", "PagedAttention", "Sarathi-Serve", "SGLang", "Mooncake", "DistServe", "ThunderAgent", "vLLM documentation")
    assert all(must in titles for must in musts)
    for r in path:
        assert r.url.startswith("https://") and r.lesson in PLANNED and 2022 <= r.year <= 2026
        assert r.why.endswith(".") and r.why.count(". ") == 0
