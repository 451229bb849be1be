"""Runs that edit a pair: where they start, what they practise on, which edits are taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cogr.errors import SettingsError
from cogr.matching.mirror import Mirror
from cogr.rewards import query_reward
from cogr.snapshots import Snapshot, open_snapshot
from indexers.backends.memory import mirror_of
from indexers.rebuild.prompt_candidates import choices
from indexers.workspace import Workspace
from tests.shops import write_sample_part
from tests.trainers.shop import Shop, perfect_pair
from trainers.training.acceptance import MARGINS, choose_margin
from trainers.training.building import best_targets, build_index, perturbed_targets
from trainers.training.inputs import Inputs
from trainers.training.rounds import Round
from trainers.training.trainer_config import check_settings

pytest.importorskip("lightgbm")

EDITS = (
    "prompts.query_user={query}: {search_results}",
    "prompts.query_variant=edit",
    "prompts.search_results=6",
    "generator.sampling.max_tokens=40",
    "training.start=statistical",
    "training.gate.on=true",
    "training.sft.items_from=statistical",
    "training.sft.queries_from=edits",
    "training.query.by=expert",
    "training.query.epochs=1",
    "training.sft.item_epochs=0.2",
    "training.item.max_steps=1",
    "training.candidates=0",
)

gains = st.floats(-1, 1).map(lambda gain: round(gain, 3))


@given(st.lists(st.tuples(gains, gains), max_size=30))
def test_queries_that_a_margin_is_chosen_by_never_lose(
    pairs: list[tuple[float, float]],
) -> None:
    predicted, true = [one for one, _ in pairs], [other for _, other in pairs]
    margin = choose_margin(predicted, true)
    taken = [gain for said, gain in pairs if said > margin.least]
    assert math.fsum(taken) >= 0
    assert margin.least in (*MARGINS, math.inf)
    assert margin.gain == pytest.approx(math.fsum(taken) / max(1, len(pairs)))


def test_a_margin_is_one_that_pays_surely_or_none() -> None:
    assert choose_margin([], []).least == math.inf
    assert choose_margin([-0.01] * 4, [0.1, 0.1, 0.2, 0.1]).least == MARGINS[0]
    # What the ranker thinks dear is dear: the cheap edits alone are taken.
    cheap = choose_margin([-0.3, -0.3, *[0.005] * 4], [-0.4, -0.5, 0.2, 0.1, 0.2, 0.1])
    assert cheap.least == -0.1
    assert cheap.gain == pytest.approx(0.1)
    # One lucky query of many is no proof.
    assert choose_margin([0.1] * 9, [0.5, *[-0.05] * 8]).least == math.inf


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shop, tuple[Round, ...]]:
    """A run from the pair of `statistical`, with one round of expert iteration."""
    shop = Shop(write_sample_part(tmp_path_factory.mktemp("edited"), items=80))
    driver = shop.driver("main", *EDITS)
    driver.sft()
    driver.round()
    return shop, driver.run.state().rounds


def f1_of(items: Mirror, queries: Snapshot, workspace: Workspace, split: str) -> float:
    figures = [
        2 * len(found & relevant) / max(1, len(found) + len(relevant))
        for query in workspace.dataset.queries[split]  # type: ignore[index]
        for row in [queries.by_id[query.id]]
        for found in [items.retrieved((*row.keywords, row.self_keyword))]
        for relevant in [items.bitmap_of_ids(workspace.dataset.relevant[query.id])]
    ]
    return sum(figures) / len(figures)


@pytest.mark.model
def test_round_0_is_the_pair_of_statistical(edited: tuple[Shop, tuple[Round, ...]]) -> None:
    shop, (first, _) = edited
    store = shop.workspace().store
    for id_ in (first.items, first.queries):
        assert open_snapshot(store, id_).manifest.generator["kind"] == "statistical"
    practice = open_snapshot(store, first.practice).by_id
    train = {query.id for query in shop.workspace(*EDITS).dataset.queries["train"]}
    assert {id_ for id_, row in practice.items() if not row.text} == train
    assert any(row.text for id_, row in practice.items() if id_.startswith("invented"))


@pytest.mark.model
def test_a_run_may_start_from_any_pair(edited: tuple[Shop, tuple[Round, ...]]) -> None:
    shop, _ = edited
    items, queries = perfect_pair(shop.workspace())
    overrides = (*EDITS, f"training.start={items.id[:12]}, {queries.id[:12]}")
    workspace = shop.workspace(*overrides)
    check_settings(workspace)
    inputs = Inputs(workspace, shop.driver("other", *overrides).run, Round(number=0), None, print)
    assert build_index(inputs, "item").output == items.id
    wrote = build_index(inputs, "query")
    assert wrote.output == queries.id
    practice = open_snapshot(workspace.store, wrote.notes["practice"]).by_id
    for query in workspace.dataset.queries["train"]:
        assert practice[query.id].keywords == queries.by_id[query.id].keywords
        assert practice[query.id].self_keyword == ""


@pytest.mark.model
def test_a_round_publishes_no_less_than_it_began_with(
    edited: tuple[Shop, tuple[Round, ...]],
) -> None:
    shop, (first, second) = edited
    workspace = shop.workspace(*EDITS)
    old, new = (open_snapshot(workspace.store, id_) for id_ in (first.queries, second.queries))
    notes = second.stage("index-query").notes  # type: ignore[union-attr]
    items = mirror_of(workspace.store, open_snapshot(workspace.store, first.items))
    before, after = (f1_of(items, queries, workspace, "dev") for queries in (old, new))
    assert after == pytest.approx(before + notes["dev_gain"], abs=1e-4)
    assert after >= before
    moved = mirror_of(workspace.store, open_snapshot(workspace.store, second.items))
    taken = second.stage("accept-items").notes  # type: ignore[union-attr]
    assert f1_of(moved, new, workspace, "dev") >= after
    assert (second.items == first.items) == (taken["dev_gain"] < 0 or not taken["accepted"])
    changed = [id_ for id_, row in new.by_id.items() if row != old.by_id[id_]]
    assert len(changed) == notes["accepted"] <= notes["edited"]
    assert (notes["margin"] is None) == (not changed)
    generated = open_snapshot(workspace.store, notes["generated"]).by_id
    for id_ in changed:
        found = items.retrieved(new.by_id[id_].keywords)
        assert found == items.retrieved(generated[id_].keywords)


@pytest.mark.model
def test_targets_copy_mostly_and_the_best_edit_pays(
    edited: tuple[Shop, tuple[Round, ...]],
) -> None:
    shop, (first, second) = edited
    workspace = shop.workspace(*EDITS)
    run = shop.driver("main", *EDITS).run
    inputs = Inputs(workspace, run, second, first, lambda _: None)
    shown = choices(workspace, inputs.practice)
    perturbed = perturbed_targets(workspace, inputs.practice)
    held = {id_: [move.word for move in found.keywords] for id_, found in shown.items()}
    in_set = [word in perturbed[id_] for id_ in perturbed for word in held[id_]]
    candidates = [
        move.word in perturbed[id_] for id_ in perturbed for move in shown[id_].candidates
    ]
    assert 0.7 < share(in_set) < 0.97
    assert 0.05 < share(candidates) < 0.35
    best = best_targets(inputs)
    world = inputs.world(inputs.mirror(first.items), None, practice=True)
    gain = [
        query_reward(world, id_, best[id_]) - query_reward(world, id_, held[id_]) for id_ in best
    ]
    assert min(gain) >= -1e-9
    assert max(gain) > 0.01
    assert all(
        [word for word in shown[id_].words if word in words] == list(words)
        for id_, words in best.items()
    )


def share(of: Sequence[bool]) -> float:
    return sum(of) / len(of)


def test_what_an_edited_run_needs_is_asked_for_first(tmp_path: Path) -> None:
    shop = Shop(write_sample_part(tmp_path / "shop", items=60))
    for wrong in ("training.sft.queries_from=edits", "training.query.by=expert"):
        with pytest.raises(SettingsError, match=r"a model that edits, but query prompts show no"):
            check_settings(shop.workspace(wrong))
    with pytest.raises(SettingsError, match=r"make it model, source, statistical, or the ids"):
        check_settings(shop.workspace("training.start=nonsense"))
