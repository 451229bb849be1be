"""Topics without labels: groups of training queries, candidates as if a group had no labels, and
what a query gets whose topic the labels do not know.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from cogr.records import Dataset, Item
from indexers.generators.statistical import FOLDS
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.fitting import fit
from indexers.generators.statistical.ranking.features import candidates
from indexers.generators.statistical.ranking.hidden_topics import (
    hidden_candidates,
    topic_groups,
)
from indexers.generators.statistical.ranking.text_index import TextIndex
from indexers.generators.statistical.ranking.training_queries import TrainingQueries
from indexers.text import Analyser
from tests.shops import EACH, LABELLED, forum_records, in_memory, training_shop
from trainers.evaluation import bm25

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def asked() -> Dataset:
    """Test queries are of topics without labels."""
    return in_memory(*forum_records())


@pytest.fixture(scope="module")
def fitted(asked: Dataset) -> Artefact:
    return fit(asked)


def measured(fitted: Artefact, asked: Dataset) -> tuple[float, float, float]:
    """Mean F1 of keywords, mean confidence, and BM25's F1, of the test queries."""
    queries = asked.queries["test"]
    relevant = [np.array([fitted.numbers[i] for i in asked.relevant[q.id]]) for q in queries]
    scored = fitted.probabilities(queries)
    chosen = [fitted.selected(query, *one) for query, one in zip(queries, scored, strict=True)]
    _, f1 = fitted.f1_of(queries, chosen, relevant)
    confidence = [answer.confidence for answer in fitted.answers(queries)]
    text = bm25(asked, "test").row(asked, "test")["f1"]
    return float(f1.mean()), float(np.mean(confidence)), text


def test_a_topic_without_labels_is_answered_as_well_as_by_text(
    fitted: Artefact, asked: Dataset
) -> None:
    f1, confidence, text = measured(fitted, asked)
    without = replace(fitted, ranker=replace(fitted.ranker, hidden=None))
    before, _, _ = measured(without, asked)
    assert before < text / 2
    assert f1 > text - 0.05
    assert confidence == pytest.approx(f1, abs=0.1)
    # The fit knows it beforehand.
    assert fitted.facts["f1_hidden_topics"] == pytest.approx(f1, abs=0.1)
    assert fitted.facts["f1_of_text"] == pytest.approx(text, abs=0.1)
    assert fitted.facts["f1_out_of_fold"] > fitted.facts["f1_hidden_topics"] + 0.2


def test_questions_of_one_topic_are_in_one_group(fitted: Artefact) -> None:
    groups = topic_groups(fitted.sources, 0)
    by_topic = groups.reshape(LABELLED, EACH)
    assert (by_topic == by_topic[:, :1]).all()
    assert np.bincount(groups).tolist() == [LABELLED * EACH // FOLDS] * FOLDS
    assert (topic_groups(fitted.sources, 0) == groups).all()


@pytest.mark.parametrize("chained", [True, False])
def test_one_large_topic_is_cut(chained: bool) -> None:
    """Queries that all share items, one after the other or all the same ones."""
    items = [Item(f"i{n}", f"thing{n} part{n % 7}") for n in range(41)]
    wanted = [[f"i{n}", f"i{n + 1}"] if chained else ["i0", "i1"] for n in range(40)]
    texts = {f"q{n}": (f"thing{n}", ids) for n, ids in enumerate(wanted)}
    made = training_shop(items, texts)
    index = TextIndex.fit(Analyser(), made.items, [query.text for query in made.queries["train"]])
    labels = sp.lil_matrix((40, 41), dtype=np.float32)
    for row, ids in enumerate(wanted):
        labels[row, [int(id_[1:]) for id_ in ids]] = 1
    sources = TrainingQueries(index, [text for text, _ in texts.values()], labels.tocsr())
    assert np.bincount(topic_groups(sources, 0)).max() <= 16


def test_hidden_candidates_are_those_of_a_fit_without_the_group(fitted: Artefact) -> None:
    sources, rows = fitted.sources, np.arange(0, LABELLED * EACH, 3)
    groups = topic_groups(sources, 0)
    hidden = hidden_candidates(sources, rows, groups)
    assert (np.diff(hidden.query) >= 0).all()
    for place in (0, 7, rows.size - 1):
        kept = groups != groups[rows[place]]
        texts = [query.text for query, there in zip(fitted.queries, kept, strict=True) if there]
        others = TrainingQueries(fitted.index, texts, fitted.relevance[kept], few=sources.few)
        alone = candidates(others, fitted.index.batch([fitted.queries[rows[place]].text]))
        own = hidden.where(hidden.query == place)
        assert (own.item == alone.item).all()
        assert own.x == pytest.approx(alone.x, abs=1e-5)
