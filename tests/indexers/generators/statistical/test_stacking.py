"""Earlier snapshot pairs as evidence: what they add, and that they take nothing away."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from _new_items import retrieved_by

from cogr.datasets.builder import by_hash
from cogr.errors import SnapshotError
from cogr.records import SPLITS, Dataset, Item, Query, Side
from cogr.snapshots import Provenance, Row
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.generators import make_generator
from indexers.generators.statistical.generator import (
    Statistical,
    StatisticalOptions,
    fit_of,
)
from tests.indexers.generators.statistical.retrieval import cut_f1, f1
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


def write_pair(store: Store, data: Dataset, found: Collection[str]) -> Pair:
    """A pair in which these items have the keyword that queries ask for."""
    items = [
        Row(item.id, item.title, (f"good {item.id.split()[0]}",) if item.id in found else ())
        for item in sorted(data.items, key=lambda item: item.id)
    ]
    queries = [
        Row(query.id, query.text, (f"good {query.text}",))
        for query in sorted(data.all_queries(), key=lambda query: query.id)
    ]
    sides: tuple[tuple[Side, list[Row]], ...] = (("item", items), ("query", queries))
    first, second = (write_snapshot(store, *side, Provenance(round=1)).id for side in sides)
    return first, second


def drawn(data: Dataset, share: float, seed: int) -> set[str]:
    """Items at random."""
    chance = np.random.default_rng(seed).random(len(data.items)) < share
    return {item.id for item, by in zip(data.items, chance, strict=True) if by}


class World(NamedTuple):
    """A pair that retrieves what is relevant and a tenth of the rest, and the generator without it
    and with it.
    """

    data: Dataset
    store: Store
    pair: Pair
    alone: Statistical
    stacked: Statistical


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    data, store = lamps(), Store(str(tmp_path_factory.mktemp("store")))
    pair = write_pair(store, data, drawn(data, 0.1, 1).union(*data.relevant.values()))
    stacked = Statistical(data, store, StatisticalOptions(evidence=(pair,)))
    return World(data, store, pair, Statistical(data, store), stacked)


def test_a_pair_that_knows_more_than_the_texts_is_used(world: World) -> None:
    data = world.data
    assert cut_f1(data, world.alone.artefact) < 0.6
    assert cut_f1(data, world.stacked.artefact) > 0.8
    found = retrieved_by(world.stacked.artefact, data, data.queries["test"])
    assert f1(data, found) > 0.75
    told = world.stacked.fingerprint["stacking"]
    assert isinstance(told, Mapping)
    assert told["gains"] is True
    assert told["pairs"][0] > 2
    assert told["queries"] == len(data.queries["dev"])
    assert told["exact_cut_f1"] > told["without"]


def test_what_no_pair_knows_is_answered_by_the_ranker_alone(
    world: World,
) -> None:
    stacked, alone = world.stacked.artefact, world.alone.artefact
    known = world.data.queries["test"][0]
    others = [Query("search", known.text), Query(known.id, "lamp"), Query("", "lamp acolour3")]
    assert stacked.answers(others) == alone.answers(others)
    assert stacked.answers([known]) != alone.answers([known])


def test_a_pair_that_knows_nothing_takes_nothing_away(world: World) -> None:
    pair = write_pair(world.store, world.data, drawn(world.data, 0.3, 2))
    deaf = Statistical(world.data, world.store, StatisticalOptions(evidence=(pair,)))
    for split in SPLITS[1:]:
        deaf_f1, alone_f1 = (cut_f1(world.data, one.artefact, split) for one in (deaf, world.alone))
        assert deaf_f1 >= alone_f1 - 0.02


def test_each_query_that_coefficients_learn_from_is_answered_out_of_fold(world: World) -> None:
    artefact, dev = world.stacked.artefact, world.data.queries["dev"]
    stack = artefact.stack
    assert stack is not None
    assert set(stack.parts) == {query.id for query in dev}
    assert len({tuple(line) for line in stack.lines}) > len(stack.lines) / 2
    asked = [dev[0], Query("another id", dev[0].text)]
    (_, own), (_, same) = artefact.probabilities(asked)
    assert own.max() != same.max()


def test_without_dev_queries_a_share_of_the_training_queries_is_learned_from(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, dev, test = (world.data.queries[split] for split in SPLITS)
    queries = {"train": [*train, *dev], "dev": [], "test": test}
    whole = replace(world.data, queries=queries, dataset_hash="6" * 64)
    for share, gains in ((0.4, True), (0.1, False)):
        monkeypatch.setattr("indexers.generators.statistical.generator.DEV_SHARE", share)
        found = Statistical(whole, world.store, world.stacked.options)
        stack = found.artefact.stack
        assert (stack is not None) is gains
        if stack is not None:
            assert set(stack.parts) == by_hash((query.id for query in queries["train"]), share)
            assert cut_f1(whole, found.artefact) > 0.8
    assert found.fingerprint["stacking"] == {"gains": False}


def test_a_manifest_names_the_pairs_and_the_fit_behind_them_answers_live(world: World) -> None:
    told = world.stacked.fingerprint
    assert told["evidence"] == [list(world.pair)]
    assert fit_of(told) == world.alone.fingerprint
    settings = {"kind": "statistical", "evidence": [world.pair]}
    for side, wanted in (("item", world.alone.fingerprint), ("query", told)):
        assert make_generator(settings, side, world.data, world.store).fingerprint == wanted


@pytest.mark.parametrize("swapped", [False, True])
def test_a_pair_that_is_not_there_is_refused(world: World, *, swapped: bool) -> None:
    pair = world.pair[::-1] if swapped else ("item-r009-aaaaaaaaaaaa", world.pair[1])
    refused = Statistical(world.data, world.store, StatisticalOptions(evidence=(pair,)))
    with pytest.raises(SnapshotError, match=pair[0]):
        _ = refused.artefact
