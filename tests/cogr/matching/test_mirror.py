"""The mirror against plain Python sets, and its two ways of ranking against one another."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from cogr import mapped
from cogr.errors import DataError
from cogr.mapped import arrow_strings
from cogr.matching import bm25, postings
from cogr.matching.bm25 import BM25
from cogr.matching.mirror import Mirror
from cogr.matching.postings import PostingsBuilder
from cogr.snapshots import Provenance, Row
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store

WORDS = ["velvet sofa", "sofa", "sessel", "椅子", "mid century", "a", "zz top"]
ID_LIST = ["", "a", "a1", "a10", "a2", "Z", "ä", "椅", "\U0001f6cb", "￿"]
words = st.lists(st.sampled_from(WORDS), max_size=9)
worlds = st.dictionaries(
    st.sampled_from(ID_LIST), st.tuples(words, st.sampled_from(["", "title", *WORDS[:2]]))
)


def mirror_of(world: dict[str, tuple[list[str], str]], how: BM25 = bm25.DEFAULT) -> Mirror:
    mirror = Mirror.from_sets(
        [*world], [keywords for keywords, _ in world.values()], [own for _, own in world.values()]
    )
    return mirror.scored_by(how)


weighted = st.dictionaries(st.sampled_from(WORDS), st.floats(1e-3, 1000), max_size=9)


def plain(world: dict[str, tuple[list[str], str]]) -> dict[str, set[str]]:
    return {id_: {*keywords, own} - {""} for id_, (keywords, own) in world.items()}


@settings(max_examples=60, deadline=None)
@given(worlds, words, st.sampled_from([BM25(), BM25(flavour="2.x")]))
def test_equals_plain_sets(
    world: dict[str, tuple[list[str], str]], query: list[str], how: BM25
) -> None:
    mirror, sets = mirror_of(world, how), plain(world)
    ids = sorted(world)
    expected = [at for at, id_ in enumerate(ids) if sets[id_] & set(query)]
    assert list(mirror.retrieved(query)) == expected
    assert len(mirror.retrieved(query)) == len(expected)
    assert [mirror.ids[at] for at in range(len(mirror))] == ids
    assert all(mirror.dense(id_) == at for at, id_ in enumerate(ids))
    assert all(mirror.df(word) == sum(word in having for having in sets.values()) for word in WORDS)
    assert list(mirror.words) == sorted(set().union(*sets.values()))
    for id_, (keywords, own) in world.items():
        assert mirror.keywords_of(id_) == tuple(
            dict.fromkeys([*keywords, own] if own else keywords)
        )
        assert mirror.own_keyword(id_) == own
    assert_scores(mirror, sets, query, how)


@settings(max_examples=60, deadline=None)
@given(worlds, weighted, st.sampled_from([BM25(), BM25(flavour="2.x")]))
def test_weights_change_scores_by_the_formulas_and_never_the_set(
    world: dict[str, tuple[list[str], str]], query: dict[str, float], how: BM25
) -> None:
    mirror, sets = mirror_of(world, how), plain(world)
    assert_scores(mirror, sets, query, how)
    assert mirror.retrieved(query) == mirror.retrieved([*query])
    weighted, plainly = mirror.search(query, 100), mirror.search([*query], 100)
    assert weighted.total == plainly.total == len(mirror.retrieved(query))
    assert sorted(weighted.ids) == sorted(plainly.ids)
    ones = mirror.search(dict.fromkeys(query, 1.0), 100)
    assert (ones.ids, ones.scores.tobytes()) == (plainly.ids, plainly.scores.tobytes())


def assert_scores(
    mirror: Mirror, sets: dict[str, set[str]], query: list[str] | dict[str, float], how: BM25
) -> None:
    """Scores, order and explanations by the formulas of `cogr.matching.bm25`, an entity
    at a time.
    """
    lengths = [len(having) for having in sets.values() if having]
    scores = {}
    for id_, having in sets.items():
        boosts = query if isinstance(query, dict) else Counter(query)
        said = {word: boost for word, boost in boosts.items() if word in having}
        if not said:
            continue
        norms = bm25.norm_table(how, bm25.mean_length(sum(lengths), len(lengths)))
        df = {word: sum(word in other for other in sets.values()) for word in said}
        weights = [
            bm25.weight(how, bm25.idf(len(lengths), df[word]), boost)
            for word, boost in said.items()
        ]
        code = bm25.length_codes(np.array([len(having)]))[0]
        parts = bm25.term_scores(np.array(weights), norms)[:, code]
        assert mirror.explain(query, id_) == dict(zip(said, parts.tolist(), strict=True))
        scores[id_] = float(np.float32(parts.astype(np.float64).sum()))
    ranking = mirror.search(query, size=len(sets) + 1)
    assert dict(zip(ranking.ids, ranking.scores.tolist(), strict=True)) == scores
    assert ranking.ids == sorted(scores, key=lambda id_: (-scores[id_], id_))
    assert ranking.total == len(scores)


@pytest.fixture(scope="module")
def skewed() -> Mirror:
    """4,000 items with common and rare keywords that go together, lengths of 1 to 60, many equal
    scores.
    """
    rng = random.Random(0)
    sets = []
    for _ in range(4000):
        topic = rng.randrange(12)
        size = rng.choice([1, 3, 8, 15, 60])
        sets.append([f"k{min(int(rng.paretovariate(0.5)), 400) * 12 + topic}" for _ in range(size)])
    return Mirror.from_sets([f"i{number}" for number in range(4000)], sets)


@pytest.mark.parametrize("spread", [None, 1.0, 3.0])
def test_best_has_the_bits_of_the_whole(skewed: Mirror, spread: float | None) -> None:
    """Also with weights from 1 / 1,000 to 1,000, which put frequent keywords before rare ones."""
    rng = random.Random(1)
    for _ in range(100):
        topic = rng.randrange(12)
        said = [
            f"k{min(int(rng.paretovariate(0.4)), 400) * 12 + topic}"
            for _ in range(rng.randrange(1, 20))
        ]
        query = said if spread is None else {w: 10 ** rng.uniform(-spread, spread) for w in said}
        whole = skewed.search(query, len(skewed))
        assert (
            whole.dense.tolist() == whole.dense[np.lexsort((whole.dense, -whole.scores))].tolist()
        )
        for size in (0, 1, 10, 100):
            ranking = skewed.search(query, size)
            assert ranking.total == len(whole.dense) == len(skewed.retrieved(query))
            assert ranking.dense.tolist() == whole.dense[:size].tolist()
            assert ranking.scores.tobytes() == whole.scores[:size].tobytes()


@settings(max_examples=60, deadline=None)
@given(worlds, weighted, st.sampled_from(WORDS))
def test_a_keyword_of_weight_0_leaves_out_what_has_it(
    world: dict[str, tuple[list[str], str]], query: dict[str, float], without: str
) -> None:
    mirror, sets = mirror_of(world), plain(world)
    wanted = {word: weight for word, weight in query.items() if word != without}

    def found(asked: dict[str, float]) -> list[tuple[str, float]]:
        ranking = mirror.search(asked, len(world))
        assert ranking.total == len(ranking.ids) == len(mirror.retrieved(asked))
        return list(zip(ranking.ids, ranking.scores.tolist(), strict=True))

    before = found(wanted)
    assert found({**wanted, without: 0.0}) == [one for one in before if without not in sets[one[0]]]
    assert found(wanted) == before


def test_unknown_ids_raise(skewed: Mirror) -> None:
    for ask in (
        skewed.dense,
        skewed.keywords_of,
        skewed.own_keyword,
        lambda id_: skewed.explain(["k1"], id_),
    ):
        with pytest.raises(DataError, match="'nobody'"):
            ask("nobody")
    assert skewed.wanted(["i0", "nobody"]) == BitMap([skewed.dense("i0"), 4000])


def test_repeated_ids_are_refused() -> None:
    with pytest.raises(DataError, match="'a' follows 'a'"):
        Mirror.from_sets(["a", "b", "a"], [["x"], ["y"], ["z"]])


@settings(max_examples=60, deadline=None)
@given(worlds, st.integers(1, 3), st.integers(1, 9))
def test_postings_do_not_depend_on_batches_and_ranges(
    world: dict[str, tuple[list[str], str]], rows: int, at_once: int
) -> None:
    whole, parts = PostingsBuilder(), PostingsBuilder()
    ids = sorted(world)
    add(whole, world, ids)
    for start in range(0, len(ids), rows):
        add(parts, world, ids[start : start + rows])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(postings, "AT_ONCE", at_once)
        patched.setattr(mapped, "_SMALL", 8)
        found, expected = parts.finish(), whole.finish()
    assert list(found.ids) == list(expected.ids) == ids
    assert list(found.terms) == list(expected.terms)
    for name in ("starts", "entities", "set_starts", "set_terms", "own", "length_codes"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist(), name


def add(builder: PostingsBuilder, world: dict[str, tuple[list[str], str]], ids: list[str]) -> None:
    builder.add(
        arrow_strings(ids),
        arrow_strings(word for id_ in ids for word in world[id_][0]),
        np.array([len(world[id_][0]) for id_ in ids], np.int64),
        arrow_strings(world[id_][1] for id_ in ids),
    )


@settings(max_examples=30, deadline=None)
@given(worlds, st.integers(1, 3))
def test_a_mirror_of_a_snapshot_is_that_of_its_sets(
    world: dict[str, tuple[list[str], str]], at_once: int
) -> None:
    rows = [Row(id_, own, tuple(dict.fromkeys(said))) for id_, (said, own) in sorted(world.items())]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cogr.snapshots.ROWS", at_once)
        snapshot = write_snapshot(Store("memory://mirror"), "item", rows, Provenance())
        mirror, expected = Mirror.build(snapshot), mirror_of(world)
    assert (mirror.snapshot, list(mirror.ids)) == (snapshot.id, list(expected.ids))
    for id_ in world:
        assert mirror.keywords_of(id_) == expected.keywords_of(id_)
    ours, theirs = mirror.search(WORDS, 20), expected.search(WORDS, 20)
    assert (ours.ids, ours.scores.tobytes()) == (theirs.ids, theirs.scores.tobytes())
