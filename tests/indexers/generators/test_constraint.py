"""Constrained decoding: whatever is drawn, every keyword is known, none comes twice, and the budget
holds.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.errors import GeneratorError
from cogr.keywords import parse
from cogr.prompts import PAPER, Prompter
from cogr.records import Query
from cogr.snapshots import Provenance, Row
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.generators import Completion, Request, make_generator
from indexers.generators.constraint import KeywordConstraint, known_keywords, without_last
from tests.indexers.generators.test_generator_contract import IN_CHILD
from trainers.tiny import tiny_tokenizer

KEYWORDS = [
    "sofa",
    "sofa bed",
    "velvet sofa",
    "oak",
    "oak table",
    "oak tables",
    "a",
    "café",
    "c++",
    "e.t",
    "4 k tv",
    "無線",
]
TEXTS = ["a velvet sofa, an oak table", "oak tables and sofa beds"]
END = 1


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    pytest.importorskip("transformers")
    return tiny_tokenizer(TEXTS * 3)


def write(vocabulary: KeywordConstraint, choose: random.Random, most: int = 200) -> list[int]:
    """A completion by one that draws from whatever is allowed, without the end."""
    writing, tokens = vocabulary.start(), []
    while len(tokens) < most:
        token = int(choose.choice(vocabulary.allowed(writing)))
        vocabulary.advance(writing, token)
        if writing.ended:
            assert not vocabulary.allowed(writing)
            return tokens
        tokens.append(token)
    return tokens


@pytest.mark.slow
@given(st.sets(st.sampled_from(KEYWORDS), min_size=1), st.integers(1, 5), st.integers(0, 10_000))
@settings(deadline=None, max_examples=60)
def test_every_keyword_is_known_and_none_comes_twice(
    tokenizer: Any, known: set[str], limit: int, seed: int
) -> None:
    vocabulary = KeywordConstraint(sorted(known), tokenizer, [END], limit)
    assert set(vocabulary.keywords) == known
    tokens = write(vocabulary, random.Random(seed))
    text = tokenizer.decode(tokens)
    keywords = parse(text)
    assert set(keywords) <= known
    assert 1 <= len(keywords) <= limit
    assert text.count(",") == len(keywords) - 1
    cut = tokenizer.decode(tokens[: seed % (len(tokens) + 1)])
    assert set(parse(without_last(cut))) <= known


@pytest.mark.slow
def test_all_that_may_be_written_can_be(tokenizer: Any) -> None:
    """Every keyword of the vocabulary is reachable, first and later, so the model loses nothing but
    what is unknown.
    """
    vocabulary = KeywordConstraint(KEYWORDS, tokenizer, [END], 2)
    with pytest.raises(ValueError, match="token 1"):
        vocabulary.advance(vocabulary.start(), END)
    with pytest.raises(GeneratorError, match="keywords"):
        KeywordConstraint(["sofa, bed", "1."], tokenizer, [END], 3)
    for keyword in KEYWORDS:
        for text in (keyword, f"velvet sofa, {keyword}", f"oak, {keyword}"):
            if len(parse(text)) < 1 + ("," in text):
                continue
            writing = vocabulary.start()
            # A keyword that ends in punctuation is cut otherwise before a comma; the answer is the
            # same text.
            first, comma, second = text.partition(", ")
            before = len(tokenizer("a")["input_ids"])
            ids = tokenizer(first)["input_ids"] + (
                tokenizer(f"a, {second}")["input_ids"][before:] if comma else []
            )
            for token in [*ids, END]:
                assert token in vocabulary.allowed(writing)
                vocabulary.advance(writing, token)
            assert writing.ended


@pytest.mark.model
@pytest.mark.slow
def test_known_keywords_alone_are_written(tiny: Path, tmp_path: Path) -> None:
    """By a random model, whose free answers would be nonsense."""
    store = Store(str(tmp_path))
    rows = [Row(f"{n:02}", f"Chair, {n}", (word,)) for n, word in enumerate(KEYWORDS)]
    items = write_snapshot(store, "item", [*rows, Row("x", "Oak Shelf", ())], Provenance())
    known = known_keywords(items)
    assert {"oak shelf", *KEYWORDS} <= {*known}
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 20}
    options = {"kind": IN_CHILD or "transformers", "model": str(tiny), "sampling": sampling}
    options |= {"vocabulary": items.id, "k_max": 3}
    prompter = Prompter(PAPER["query"])
    queries = [Query(str(n), "couch " * (n + 1)) for n in range(12)]
    with make_generator(options, "query", None, store) as generator:
        assert generator.fingerprint["vocabulary"] == items.id
        answers = [*generator.generate(Request(q.id, q, prompter(q)) for q in queries)]
    written = [parse(answer.text) for answer in answers if isinstance(answer, Completion)]
    assert len(written) == len(queries)
    assert {word for words in written for word in words} <= {*known}
    assert max(map(len, written)) <= 3
    assert sum(map(len, written)) > len(written)
