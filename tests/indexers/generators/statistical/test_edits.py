"""Edits of selected sets: what an edit changes, and that they are made only where they pay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from cogr.records import Dataset
from cogr.store import Store
from indexers.generators.statistical import edits as module
from indexers.generators.statistical import fitting
from indexers.generators.statistical.artefact import K_MAX, Artefact
from indexers.generators.statistical.edits import EditState, edits, fit_editor
from indexers.generators.statistical.fitting import fit
from indexers.generators.statistical.storage import open_artefact, save

ITEMS = 9
FORCED, KEPT, FAMILY = (0,), (1, 2, 3), (4, 5, 6)
"""Items found by the text, by the chosen keyword, and by a keyword that might be added."""


def state(p_family: float) -> EditState:
    """Two keywords at hand, of which the first is chosen."""
    items = np.array([*KEPT, *FAMILY])
    p = np.array([0.9] * 3 + [p_family] * 3, dtype=np.float32)
    expected = 0.9 + float(p.sum())
    owns = np.zeros((2, 6), dtype=np.float32)
    owns[0, :3] = owns[1, 3:] = 1
    return EditState(
        keywords=np.array([10, 11]),
        chosen=np.array([True, False]),
        owns=owns,
        items=items,
        p=p,
        forced=np.array(FORCED),
        forced_hits=0.9,
        expected=expected,
        owners=np.array([[3, 3], [0.9, p_family]], dtype=np.float32),
        costs=np.zeros(2, dtype=np.float32),
        neighbours=(),
    )


def world(queries: int, share: float, seed: int = 0) -> tuple[list[EditState], sp.csr_matrix]:
    """Queries to which a family of items is relevant in this share of cases, with p = 0.3."""
    rng = np.random.default_rng(seed)
    relevance = np.zeros((queries, ITEMS), dtype=np.float32)
    relevance[:, [*FORCED, *KEPT]] = 1
    relevance[rng.random(queries) < share, FAMILY[0] : FAMILY[-1] + 1] = 1
    return [state(0.3) for _ in range(queries)], sp.csr_matrix(relevance)


def test_the_first_feature_is_what_an_edit_changes_in_expected_f1() -> None:
    start = state(0.3)
    found = edits(start, start.chosen, K_MAX)
    assert list(zip(found.out.tolist(), found.into.tolist(), strict=True)) == [
        (0, -1),
        (-1, 1),
        (0, 1),
    ]
    size, hits = start.expected, 0.9
    before = 2 * (hits + 2.7) / (4 + size)
    after = [2 * hits / (1 + size), 2 * (hits + 3.6) / (7 + size), 2 * (hits + 0.9) / (4 + size)]
    assert found.x[:, 0] == pytest.approx(np.array(after) - before, abs=1e-5)


def test_a_family_that_p_underrates_is_added() -> None:
    states, relevance = world(600, share=0.9)
    editor, figures = fit_editor(states, np.arange(600), relevance, K_MAX, seed=0)
    assert figures["gain"] > 2 * figures["standard_error"]
    assert editor.edited(states[0], -1, K_MAX) == (10, 11)
    assert editor.edited(states[0], -1, 1) == (10,), "a full set gets no addition"
    states[0].costs[1] = 0.5
    assert editor.edited(states[0], -1, K_MAX) == (10,), "it costs more than it gains"


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_edited_where_p_is_right(seed: int) -> None:
    states, relevance = world(400, share=0.3, seed=seed)
    editor, _ = fit_editor(states, np.arange(400), relevance, K_MAX, seed)
    assert editor is None


@pytest.mark.drill
def test_edited_sets_hold_the_budget_and_are_kept_with_what_was_fitted(
    dataset: Dataset, artefact: Artefact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With edits whether they pay or not; a training query hears the model that has not seen it."""
    assert artefact.editor is None, "few queries learn no edits"
    monkeypatch.setattr(fitting, "MIN_EDITED", 0)
    monkeypatch.setattr(module, "MIN_ERRORS", -9.0)
    edited = fit(dataset)
    queries, editor = dataset.all_queries(), edited.editor
    after = edited.query_keywords(queries)
    assert after != artefact.query_keywords(queries)
    assert all(len(set(keywords)) == len(keywords) <= K_MAX for keywords in after)
    save(edited, Store(tmp_path))
    assert open_artefact(Store(tmp_path)).query_keywords(queries) == after
    assert set(editor.folds.tolist()) == set(range(len(editor.models)))
    asked: list[int] = []

    class Ear:
        def __init__(self, fold: int) -> None:
            self.fold = fold

        def predict(self, x: np.ndarray, **_: object) -> np.ndarray:
            asked.append(self.fold)
            return np.zeros(len(x))

    listening = module.Editor([Ear(fold) for fold in range(5)], editor.folds)
    for row, heard in ((7, {int(editor.folds[7])}), (-1, set(range(5)))):
        asked.clear()
        listening.edited(state(0.3), row, K_MAX)
        assert set(asked) == heard
