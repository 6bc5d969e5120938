"""The glossary beyond what must be in it (test_words.py): neighbours, states that set something, words in our sense of them."""

from __future__ import annotations

import pytest

from explainers.kit import glossary

BY_KEY = {term.key: term for term in glossary.terms()}


@pytest.mark.parametrize("key", ["slot", "step", "e2e", "ridge", "watermark", "swap", "recompute", "copy_on_write", "admission"])
def test_words_that_the_lessons_use_are_there(key: str) -> None:
    assert key in BY_KEY


@pytest.mark.parametrize("term", glossary.terms(), ids=lambda t: t.key)
def test_every_word_leads_to_a_state_that_shows_it(term: glossary.Term) -> None:
    assert term.state, f"{term.key}: no knob is set"


def test_a_word_is_not_its_own_neighbour_and_names_none_twice() -> None:
    for term in glossary.terms():
        assert term.key not in term.see and len(set(term.see)) == len(term.see), term.key


@pytest.mark.parametrize("text, key", [
    ("Three preemptions", "preemption"), ("KV caches", "kv_cache"), ("two token budgets", "token_budget"),
    ("continuous batches", "continuous_batching"), ("it has swapped out", "swap"),
])
def test_plural_and_inflected_forms_count(text: str, key: str) -> None:
    assert key in [term.key for term in glossary.first_uses([text])]


def test_a_hyphenated_word_is_not_the_shorter_word_within_it() -> None:
    assert [t.key for t in glossary.first_uses(["A prefix-cache hit, not a re-step"])] == ["prefix_cache"]


def test_a_lessons_own_sentence_is_told_for_every_spelling_and_keeps_what_the_word_is_not() -> None:
    own = (("Prefill", "Reading a prompt."), ("Bus, lorry", "It drives."))
    cut = glossary.pieces(["A Prefill, prefills,", " lorries, a lorry."], own)
    assert [[piece for piece, _ in text] for text in cut] == [["A ", "Prefill", ", prefills,"], [" lorries, a ", "lorry", "."]]
    prefill, lorry = cut[0][1][1], cut[1][1][1]
    assert prefill == glossary.Word("Prefill", "Reading a prompt.", BY_KEY["prefill"].not_, "prefill")
    assert lorry == glossary.Word("Bus, lorry", "It drives.", "", "")
