"""Earlier snapshot pairs as evidence: what they add, and that they take nothing away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from cogr.datasets.builder import by_hash
from cogr.errors import SnapshotError
from cogr.records import Dataset, Item, Query
from cogr.snapshots import Provenance, Row
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.generators import make_generator
from indexers.generators.statistical.generator import (
    Statistical,
    StatisticalOptions,
    fit_of,
)
from tests.indexers.generators.statistical.retrieval import exact_cut_run, f1, retrieved
from tests.shops import training_shop

COLOURS = [f"colour{n}" for n in range(44)]
LETTERS = "abcdefghij"

Pair = tuple[str, str]


def lamps() -> Dataset:
    """Ten lamps of each colour. Three of them are relevant to its query, and no text says which."""
    rng = np.random.default_rng(0)
    items = [Item(f"{c} {x}", f"{c} lamp {x}{c}") for c in COLOURS for x in LETTERS]
    best = {colour: rng.choice(list(LETTERS), 3, replace=False) for colour in COLOURS}
    made = training_shop(items, {c: (c, [f"{c} {x}" for x in best[c]]) for c in COLOURS})
    asked = made.queries["train"]
    return replace(made, queries={"train": asked[:20], "dev": asked[20:34], "test": asked[34:]})


def write_pair(store: Store, dataset: Dataset, finds: Callable[[Item], bool]) -> Pair:
    """A pair in which the items that `finds` says so have the keyword that queries ask for."""
    items = [
        Row(item.id, item.title, (f"good {item.id.split()[0]}",) if finds(item) else ())
        for item in sorted(dataset.items, key=lambda item: item.id)
    ]
    queries = [
        Row(query.id, query.text, (f"good {query.text}",))
        for query in sorted(dataset.all_queries(), key=lambda query: query.id)
    ]
    written = (
        write_snapshot(store, side, rows, Provenance(round=1))
        for side, rows in (("item", items), ("query", queries))
    )
    first, second = (snapshot.id for snapshot in written)
    return first, second


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return lamps()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def knowing(store: Store, dataset: Dataset) -> Pair:
    """Retrieves what is relevant, and a tenth of the rest."""
    wanted = {id_ for ids in dataset.relevant.values() for id_ in ids}
    chance = np.random.default_rng(1).random(len(dataset.items)) < 0.1
    lucky = {item.id for item, drawn in zip(dataset.items, chance, strict=True) if drawn}
    return write_pair(store, dataset, lambda item: item.id in wanted | lucky)


@pytest.fixture(scope="module")
def alone(store: Store, dataset: Dataset) -> Statistical:
    return Statistical(dataset, store)


@pytest.fixture(scope="module")
def with_evidence(store: Store, dataset: Dataset, knowing: Pair) -> Statistical:
    return Statistical(dataset, store, StatisticalOptions(evidence=(knowing,)))


def cut_f1(generator: Statistical, dataset: Dataset, queries: Sequence[Query]) -> float:
    cut = exact_cut_run(generator.artefact, queries)
    return f1(dataset, {query: frozenset(ids) for query, ids in cut.items()})


def test_a_pair_that_knows_more_than_the_texts_is_used(
    dataset: Dataset, alone: Statistical, with_evidence: Statistical
) -> None:
    test = dataset.queries["test"]
    assert cut_f1(alone, dataset, test) < 0.6
    assert cut_f1(with_evidence, dataset, test) > 0.8
    found = retrieved(with_evidence.artefact, dataset.items, test)
    assert f1(dataset, found) > 0.75
    told = with_evidence.fingerprint["stacking"]
    assert isinstance(told, Mapping)
    assert told["gains"] is True
    assert told["pairs"][0] > 2
    assert told["queries"] == len(dataset.queries["dev"])
    assert told["exact_cut_f1"] > told["without"]


def test_what_no_pair_knows_and_what_is_trained_on_is_answered_by_the_ranker_alone(
    dataset: Dataset, alone: Statistical, with_evidence: Statistical
) -> None:
    known = dataset.queries["test"][0]
    others = [Query("search", known.text), Query(known.id, "lamp"), Query("", "lamp acolour3")]
    assert with_evidence.artefact.answers(others) == alone.artefact.answers(others)
    assert with_evidence.artefact.answers([known]) != alone.artefact.answers([known])
    # Targets of training hear no pair that knows their labels.
    train = dataset.queries["train"]
    assert with_evidence.artefact.targets(train) == alone.artefact.targets(train)
    assert with_evidence.artefact.proposals(train, 4) == alone.artefact.proposals(train, 4)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_pair_that_knows_nothing_takes_nothing_away(
    store: Store, dataset: Dataset, alone: Statistical, share: float
) -> None:
    chance = np.random.default_rng(2).random(len(dataset.items)) < share
    drawn = {item.id for item, by in zip(dataset.items, chance, strict=True) if by}
    pair = write_pair(store, dataset, lambda item: item.id in drawn)
    deaf = Statistical(dataset, store, StatisticalOptions(evidence=(pair,)))
    for split in ("dev", "test"):
        asked = dataset.queries[split]
        assert cut_f1(deaf, dataset, asked) >= cut_f1(alone, dataset, asked) - 0.02


def test_each_query_that_coefficients_learn_from_is_answered_out_of_fold(
    dataset: Dataset, with_evidence: Statistical
) -> None:
    artefact = with_evidence.artefact
    dev = dataset.queries["dev"]
    stack = artefact.stack
    assert set(stack.parts) == {query.id for query in dev}
    assert len({tuple(line) for line in stack.lines}) > len(stack.lines) / 2
    same = Query("another id", dev[0].text)
    assert (
        artefact.probabilities([same])[0][1].max() != artefact.probabilities([dev[0]])[0][1].max()
    )


def test_without_dev_queries_a_share_of_the_training_queries_is_learned_from(
    store: Store, dataset: Dataset, knowing: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = [*dataset.queries["train"], *dataset.queries["dev"]]
    whole = replace(
        dataset,
        queries={"train": train, "dev": [], "test": dataset.queries["test"]},
        dataset_hash="6" * 64,
    )
    monkeypatch.setattr("indexers.generators.statistical.generator.DEV_SHARE", 0.4)
    options = StatisticalOptions(evidence=(knowing,))
    found = Statistical(whole, store, options)
    held_out = by_hash((query.id for query in train), 0.4)
    assert set(found.artefact.stack.parts) == held_out
    assert cut_f1(found, whole, whole.queries["test"]) > 0.8
    monkeypatch.setattr("indexers.generators.statistical.generator.DEV_SHARE", 0.1)
    few = Statistical(whole, store, options)
    assert few.fingerprint["stacking"] == {"gains": False}


def test_a_manifest_names_the_pairs_and_the_fit_behind_them_answers_live(
    store: Store, dataset: Dataset, knowing: Pair, alone: Statistical, with_evidence: Statistical
) -> None:
    assert with_evidence.fingerprint["evidence"] == [list(knowing)]
    assert fit_of(with_evidence.fingerprint) == alone.fingerprint
    settings = {"kind": "statistical", "evidence": [knowing]}
    item = make_generator(settings, "item", dataset, store)
    assert item.fingerprint == alone.fingerprint
    query = make_generator(settings, "query", dataset, store)
    assert query.fingerprint == with_evidence.fingerprint


@pytest.mark.parametrize("swapped", [False, True])
def test_a_pair_that_is_not_there_is_refused(
    store: Store, dataset: Dataset, knowing: Pair, *, swapped: bool
) -> None:
    pair = knowing[::-1] if swapped else ("item-r009-aaaaaaaaaaaa", knowing[1])
    with pytest.raises(SnapshotError, match=pair[0]):
        _ = Statistical(dataset, store, StatisticalOptions(evidence=(pair,))).artefact
