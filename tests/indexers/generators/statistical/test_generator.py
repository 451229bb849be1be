"""The generator `statistical` on the sample shop: what it answers, what it must not look at, what
it refuses.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from _new_items import retrieved_by

from cogr.errors import GeneratorError, SnapshotError
from cogr.keywords import parse, self_keyword
from cogr.records import Dataset, Item, Query
from cogr.snapshots import Provenance, Row
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.generators import fingerprint_hash
from indexers.generators.statistical import MANIFEST
from indexers.generators.statistical.artefact import Artefact, calibrate
from indexers.generators.statistical.fitting import fit
from indexers.generators.statistical.generator import (
    EVIDENCE,
    FOLDER,
    JOINED,
    LATEST,
    Statistical,
    old_fits,
)
from indexers.generators.statistical.item_keywords import assemble, writable
from indexers.generators.statistical.storage import open_artefact, save
from indexers.text import Analyser
from tests.damages import damage, files_below
from tests.indexers.generators.statistical.retrieval import cut_f1, f1
from tests.shops import sample_part, training_shop


def test_shoppers_words_find_the_catalogues(dataset: Dataset, artefact: Artefact) -> None:
    """BM25 reaches 0.10 to 0.20 here; test queries are combinations that nobody has asked for in
    training.
    """
    assert cut_f1(dataset, artefact) > 0.6
    queries = dataset.queries["test"]
    found = retrieved_by(artefact, dataset, queries)
    assert f1(dataset, found) > 0.5
    # An item whose keywords or title share one with the query's is retrieved, and no other.
    sets = {
        item.id: {*artefact.item_keywords(item), self_keyword(item.title)} for item in dataset.items
    }
    for query, keywords in zip(queries, artefact.query_keywords(queries), strict=True):
        asked = {*keywords, self_keyword(query.text)}
        assert found[query.id] == {id_ for id_, words in sets.items() if words & asked}


def test_the_reported_figure_is_of_training_queries_answered_out_of_fold(
    dataset: Dataset, artefact: Artefact
) -> None:
    """So it is an estimate for unseen ones, not a memory. Their keywords lose little of it."""
    found = cut_f1(dataset, artefact, "train")
    assert found == pytest.approx(artefact.facts["f1_out_of_fold"], abs=0.03)
    assert found < 0.8


def test_completions_parse_into_the_very_keywords(dataset: Dataset, artefact: Artefact) -> None:
    """Of items and queries, none told its own text, and queries whatever their company."""
    asked, items = [*dataset.all_queries()[::5], Query("", "sofa " * 50_000)], dataset.items[::4]
    answers = [
        *map(artefact.item_keywords, items),
        *(artefact.query_keywords([query])[0] for query in asked),
    ]
    texts = [item.title for item in items] + [query.text for query in asked]
    for text, keywords in zip(texts, answers, strict=True):
        assert parse(", ".join(keywords)) == tuple(keywords)
        assert len(keywords) <= 30
        assert self_keyword(text) not in keywords
    assert artefact.query_keywords(asked) == answers[len(items) :]


def test_a_new_query_with_the_text_of_a_training_query_is_answered_by_its_labels_too(
    dataset: Dataset, artefact: Artefact
) -> None:
    known = dataset.queries["train"]
    live = [Query(f"live {query.id}", query.text) for query in known]
    relevant = {f"live {query.id}": dataset.relevant[query.id] for query in known}
    asked = replace(dataset, queries={"test": live}, relevant=relevant)
    assert cut_f1(asked, artefact) > 0.9


def test_a_keyword_costs_where_nobody_says_it_or_one_item_has_it() -> None:
    titles = ["Oak chest of drawers", "Pine chest of drawers"]
    wanted = {"chest drawers": 0, "brass knobs": 0, "knobs hidden": 0.04, "tallboy": 0.01}
    words = [*wanted][:3]
    keywords = assemble([["tallboy"], []], [words, words[:2]], titles)
    costs = keywords.costs(Analyser(), ["something with brass knobs"], 0.04)
    wanted["oak chest of drawers"] = 0.01
    assert {word: costs[keywords.ids.find(word)] for word in wanted} == wanted


@pytest.mark.slow
def test_a_damaged_artefact_is_fitted_again(
    dataset: Dataset,
    artefact: Artefact,
    fitted_shop: Store,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shutil.copytree(fitted_shop.local(""), tmp_path, dirs_exist_ok=True)
    damage(random.Random(0).choice(list(files_below(tmp_path))), "cut", random.Random(0))
    again = Statistical(dataset, store=Store(tmp_path))
    assert again.artefact.facts == artefact.facts
    assert "Fitting again" in caplog.text


def test_a_new_or_changed_item_gets_known_phrases(dataset: Dataset, artefact: Artefact) -> None:
    known = dataset.items[0]
    vocabulary = set(artefact.keywords.keywords)
    for item in (
        Item("new", known.title, known.text),
        Item(known.id, known.title, f"{known.text} Now with castors."),
    ):
        keywords = artefact.item_keywords(item)
        assert keywords
        assert set(keywords) <= vocabulary
        assert parse(", ".join(keywords)) == tuple(keywords)
    assert artefact.item_keywords(Item("blank", "", "")) == []


ITEMS = [Item(f"i{n}", f"red lamp {n}" if n % 2 else f"blue chair {n}", "") for n in range(30)]
ITEMS += [
    Item("empty", "", ""),
    Item("twin", ITEMS[0].title, ""),
    Item("comma", "Lamp, red, large", "lamp; red"),
]


def test_tiny_data_with_empty_and_equal_items() -> None:
    queries = {
        f"q{n}": (f"light {n % 3}" if n % 2 else "seat", [f"i{n}", "twin", "comma"])
        for n in range(12)
    }
    fitted = fit(training_shop(ITEMS, queries))
    assert fitted.item_keywords(ITEMS[30]) == []
    asked = [Query(text, text) for text in ("light", "seat", "lamp", "Lamp, red, large")]
    assert all(len(keywords) <= 30 for keywords in fitted.query_keywords(asked))
    assert all(writable(keyword) for item in ITEMS for keyword in fitted.item_keywords(item))


def test_a_skewed_estimate_is_straightened() -> None:
    """Expected F1 of 0.2 to 0.8 that is twice too hopeful in its logit."""
    rng = np.random.default_rng(0)
    expected = rng.uniform(0.2, 0.8, 2000)
    true = 1 / (1 + np.exp(-(0.5 * np.log(expected / (1 - expected)) - 1)))
    found = calibrate(expected, rng.binomial(10, true) / 10)(expected)
    assert np.abs(found - true).max() < 0.05
    # However bad the estimate, confidence rises with it.
    sure = calibrate(expected, 1 - expected)(np.linspace(0, 1, 50))
    assert (np.diff(sure) >= 0).all()
    assert ((sure > 0) & (sure < 1)).all()


def test_the_shops_confidence_tells_good_sets_from_bad_ones(
    dataset: Dataset, artefact: Artefact
) -> None:
    """Test queries, of which the fit knows nothing: mean within 0.1 of F1, and the surer half is
    better.
    """
    queries = dataset.queries["test"]
    sets = retrieved_by(artefact, dataset, queries)
    sure = [answer.confidence for answer in artefact.answers(queries)]
    assert abs(np.mean(sure) - f1(dataset, sets)) < 0.1
    order = [queries[at].id for at in np.argsort(sure)]
    worse, better = (
        f1(dataset, {id_: sets[id_] for id_ in half}) for half in (order[:25], order[25:])
    )
    assert better > worse + 0.1


@pytest.mark.parametrize("count", [0, 9])
def test_too_few_labels_point_to_extractive(count: int) -> None:
    with pytest.raises(GeneratorError, match=rf"{count} .*'extractive'"):
        fit(training_shop(ITEMS, {f"q{n}": (f"light {n}", ["i1"]) for n in range(count)}))


# What is kept


@pytest.fixture
def copy(fitted_shop: Store, tmp_path: Path) -> Path:
    """A copy of the fitted artefact's folder."""
    (fitted,) = Path(fitted_shop.local(FOLDER)).glob(f"*/{MANIFEST}")
    return Path(shutil.copytree(fitted.parent, tmp_path / "copy"))


def test_equal_fits_have_equal_bytes_and_opened_ones_answer_alike(tmp_path: Path) -> None:
    shop = sample_part(120)
    fitted, stores = fit(shop), [Store(tmp_path / name) for name in "ab"]
    assert (
        len({save(one, store) for one, store in zip((fitted, fit(shop)), stores, strict=True)}) == 1
    )
    opened, queries = open_artefact(stores[1]), shop.all_queries()
    assert opened.answers(queries) == fitted.answers(queries)
    assert [*map(opened.item_keywords, shop.items)] == [*map(fitted.item_keywords, shop.items)]
    assert opened.facts == fitted.facts


def test_a_flipped_byte_in_any_file_a_missing_file_and_another_format_are_seen(copy: Path) -> None:
    for path in sorted(copy.iterdir()):
        whole = path.read_bytes()
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        with pytest.raises(SnapshotError, match=str(copy)):
            open_artefact(Store(copy))
        path.unlink()
        with pytest.raises(SnapshotError, match=path.name):
            open_artefact(Store(copy))
        path.write_bytes(whole)
    open_artefact(Store(copy))
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps(manifest | {"format": 999}))
    with pytest.raises(SnapshotError, match="version"):
        open_artefact(Store(copy))


def test_fits_that_nothing_names_are_old(tmp_path: Path) -> None:
    """Kept are the newest, those that wrote a snapshot that stays, and those not yet whole, but for
    what a dead process left.
    """
    store, wrote = Store(tmp_path), {"kind": "statistical", "dataset_hash": "d"}
    rows = [Row("a", "Sofa", ("couch",))]
    written = {**wrote, EVIDENCE: [["i", "q"]], JOINED: ["i", None]}
    kept = write_snapshot(store, "item", rows, Provenance(generator=written))
    names = ["newest", "old", fingerprint_hash(wrote)]
    for name in names:
        store.write_json(f"statistical/{name}/{MANIFEST}", {})
    store.write_json("statistical/beginning/folds.npy", {})
    store.write_json(LATEST, ["newest"])
    assert old_fits(store, [kept.manifest]) == ["statistical/old"]
    assert len(old_fits(store, [])) == 2
    os.utime(tmp_path / "statistical/beginning", (0, 0))
    assert old_fits(store, [kept.manifest]) == ["statistical/beginning", "statistical/old"]
