"""What would serve beside text search, that is BM25 over the items' titles and texts, before it
serves: whoever replaces his text search by it must lose nothing.

Both are measured on dev queries. Where there are none, or the pair has learned from them, the
figures are those of the fit of `statistical` that wrote it: on its training queries out of fold, as
if their topics had no labels too. These topics are compared in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cogr.datasets.builder import place
from cogr.metrics import Figures, measure, measures_of, rows_of_queries, sweep_cutoff
from cogr.records import SIDES, Dataset, Query, Side
from cogr.snapshots import open_snapshot, read_manifest
from indexers.backends import Words, text_boost
from indexers.backends.memory import Opened
from indexers.generators.statistical.generator import facts_of
from indexers.workspace import Workspace

MAX_RANKING = 1000
"""Length of rankings, from which cutoffs are chosen and rank metrics computed."""
_MAX_QUERIES = 500
"""Most queries of a split that are searched, chosen by a hash."""
TOPICS_WITH, TOPICS_WITHOUT = "training queries, out of fold", "topics without labels"


@dataclass(frozen=True)
class Comparison:
    """A figure of what would serve, and that of text search on the same queries.

    Attributes:
        on: the queries, in words.
        error: of a rank measure, the standard error of the difference: by less, chance decides.
    """

    measure: str
    on: str
    serves: float
    text: float
    error: float = 0.0

    def is_lost(self, tolerance: float) -> bool:
        """Whether text search is better by more than the tolerance."""
        return not self.serves >= self.text - tolerance - self.error

    def __str__(self) -> str:
        return f"{self.measure} {self.serves:.4f}, text search {self.text:.4f} ({self.on})"


def beside_text(
    workspace: Workspace, pair: Mapping[Side, str], *, learned_dev: bool
) -> tuple[list[Comparison], str]:
    """What a pair, or one side of it, would serve beside text search; and why it can't be compared.

    Args:
        learned_dev: whether the pair has learned from the dev queries.
    """
    store, dev = workspace.store, workspace.dataset.queries.get("dev", ())
    if learned_dev or len(pair) < len(SIDES):
        dev = ()
    facts: Mapping[str, float] = {}
    for id_ in pair.values():
        facts = facts or facts_of(store, read_manifest(store, id_).generator)
    kinds = [(TOPICS_WITHOUT, "f1_hidden_topics")]
    kinds += [] if dev else [(TOPICS_WITH, "f1_out_of_fold")]
    comparisons = [
        Comparison("F1", on, facts[name], facts["f1_of_text"]) for on, name in kinds if facts
    ]
    if dev:
        return [*_measured(workspace, pair, sample_of(dev)), *comparisons], ""
    why = "" if comparisons else "there are no dev queries, and no fit of statistical wrote it"
    return comparisons, why


def sample_of(queries: Iterable[Query]) -> list[Query]:
    """At most `_MAX_QUERIES`, the same ones for ever: by a hash of the text."""
    return sorted(queries, key=lambda query: (place(query.text), query.id))[:_MAX_QUERIES]


def _measured(
    workspace: Workspace, pair: Mapping[Side, str], queries: Sequence[Query]
) -> list[Comparison]:
    settings, dataset = workspace.settings, workspace.dataset
    item, query = (open_snapshot(workspace.store, pair[side]) for side in ("item", "query"))
    opened = Opened(item)
    sets, serving, text = {}, {}, {}
    rows = rows_of_queries(queries, query, unknown=True, weights=settings.keywords.weights)
    for id_, row in rows.items():
        words = Words(row.text, text_boost(row.weights, settings.serving.blend))
        ranked = opened.rank(row.weighted, words, MAX_RANKING)
        ids = [opened.mirror.ids[dense] for dense in ranked.dense.tolist()]
        sets[id_], serving[id_] = ids[: ranked.total], ids[:MAX_RANKING]
        text[id_] = _by_text(opened, row.text)
    cutoff = _cutoff(opened, dataset) or _swept(text, dataset, queries)
    cut = {id_: ids[:cutoff] for id_, ids in text.items()}
    own, other = measure(dataset, queries, sets, serving), measure(dataset, queries, cut, text)
    on = "dev queries" + ", by titles alone" * (item.manifest.texts is None)
    return [*_compared(own, other, on)]


def _compared(own: Figures, other: Figures, on: str) -> Iterator[Comparison]:
    for key, name in measures_of("gate").items():
        more = own.values[key] - other.values[key]
        error = float(more.std(ddof=1)) / more.size**0.5 if more.size > 1 else 0.0
        yield Comparison(name, on, own.means[key], other.means[key], 0.0 if key == "f1" else error)


def _by_text(opened: Opened, text: str) -> list[str]:
    best = opened.searched.whole.best(Words(text).texts[0], MAX_RANKING)
    return [opened.mirror.ids[dense] for dense, _ in best]


def _cutoff(opened: Opened, dataset: Dataset) -> int | None:
    # Items a query that have the best F1 on training queries.
    queries = sample_of(dataset.queries.get("train", ()))
    runs = {query.id: _by_text(opened, query.text) for query in queries}
    return _swept(runs, dataset, queries)


def _swept(runs: Mapping[str, list[str]], dataset: Dataset, queries: Sequence[Query]) -> int | None:
    return sweep_cutoff(runs, dataset, queries)[0] if any(runs.values()) else None
