"""Counts of a data set, duplicates, and what to do with it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from cogr.datasets.builder import BLANK_ITEMS, HTML, REPEATED_ITEMS, UNKNOWN_ITEMS, UNKNOWN_QUERIES
from cogr.keywords import self_keyword
from cogr.records import SPLITS, Dataset, Query

Verdict = Literal["train", "label more", "keep BM25"]

ENOUGH_TRAINING_QUERIES = 100
"""Below this, training has too little to learn from."""
_NAMED = 10


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `inspect_dataset`.

    Attributes:
        relevant_per_query: by split, the median of relevant items a query; splits without queries
            are left out.
        duplicates: records that repeat an earlier one's text: titles and queries normalised as
            keywords, texts without case.
        pointing_nowhere: judgements of unknown items or queries, which were left out.
        notes: what the loader left out or repaired, such as HTML or repeated rows, and how often.
        unread: fields of the items that nothing reads, and how many items have each.
    """

    name: str
    dataset_hash: str
    items: int
    queries: Mapping[str, int]
    relevant_per_query: Mapping[str, float]
    duplicates: Mapping[str, int]
    untitled_items: int
    textless_items: int
    never_relevant: int
    judgements: int
    pointing_nowhere: int
    notes: Mapping[str, int]
    unread: Mapping[str, int]
    verdict: Verdict
    advice: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """The report in types that JSON knows."""
        return asdict(self)


def inspect_dataset(dataset: Dataset) -> Report:
    """Count and measure a data set. Linear in its size; keeps a hash of each text."""
    queries = {split: dataset.queries.get(split, ()) for split in SPLITS}
    every = dataset.all_queries()
    relevant: dict[str, float] = {
        split: statistics.median(_relevant_counts(dataset, some))
        for split, some in queries.items()
        if some
    }
    verdict, advice = _advise(dataset)
    found = frozenset[str]().union(*dataset.relevant.values())
    return Report(
        name=dataset.name,
        dataset_hash=dataset.dataset_hash,
        items=len(dataset.items),
        queries={split: len(some) for split, some in queries.items()},
        relevant_per_query=relevant,
        duplicates={
            "titles": _repeats(self_keyword(item.title) for item in dataset.items),
            "texts": _repeats(" ".join(item.text.casefold().split()) for item in dataset.items),
            "queries": _repeats(self_keyword(query.text) for query in every),
        },
        untitled_items=sum(not item.title.strip() for item in dataset.items),
        textless_items=sum(not item.text.strip() for item in dataset.items),
        never_relevant=len(dataset.items) - len(found),
        judgements=sum(map(len, dataset.judged.values())),
        pointing_nowhere=dataset.notes.get(UNKNOWN_ITEMS, 0)
        + dataset.notes.get(UNKNOWN_QUERIES, 0),
        notes=dict(dataset.notes),
        unread=dict(dataset.unread),
        verdict=verdict,
        advice=advice,
    )


def remarks(dataset: Dataset) -> list[str]:
    """Remarks on the data to read before it is indexed, a sentence each."""
    found = []
    if dataset.unread:
        names = [f"{name} ({count:,})" for name, count in [*dataset.unread.items()][:_NAMED]]
        more = f" and {len(dataset.unread) - _NAMED} more" if len(dataset.unread) > _NAMED else ""
        found.append(
            f"Fields of items that are not read: {', '.join(names)}{more}. Name in "
            "dataset.columns.text what describes an item, and in publish.fields what goes into the "
            "index."
        )
    for note in (HTML, REPEATED_ITEMS, BLANK_ITEMS):
        if count := dataset.notes.get(note):
            found.append(f"{count:,} {note}.")
    return found


def _relevant_counts(dataset: Dataset, queries: Sequence[Query]) -> list[int]:
    return [len(dataset.relevant[query.id]) for query in queries]


def _repeats(texts: Iterable[str]) -> int:
    hashes = [hash(text) for text in texts if text]
    return len(hashes) - len({*hashes})


def _advise(dataset: Dataset) -> tuple[Verdict, list[str]]:
    # Paper, section 3.1: many relevant items a query.
    train = dataset.queries.get("train", ())
    counts = _relevant_counts(dataset, train)
    if not dataset.all_queries():
        return "label more", [
            "This is a catalogue without labelled queries, so there is nothing to train or "
            "evaluate on: index it with the generator extractive or with an untrained LLM, and "
            "collect labels, e.g. from clicks."
        ]
    if not train:
        return "label more", [
            "No query is in the train split, so there is nothing to train on: "
            "evaluate generators that need no labels, or put labelled queries into train."
        ]
    median = statistics.median(counts)
    if median <= 1:
        return "keep BM25", [
            f"The median training query has {median:g} relevant item, but CoGR learns from sets "
            "of many: keep a ranker (BM25 or dense retrieval) for such known-item search, or label "
            "more of what is relevant."
        ]
    if len(train) < ENOUGH_TRAINING_QUERIES:
        return "label more", [
            f"With {len(train)} training queries there is too little to train on (about "
            f"{ENOUGH_TRAINING_QUERIES} are needed): use the generator statistical, which gets by "
            "with fewer, or extractive, and label more queries."
        ]
    return "train", [
        f"The data suits CoGR: {len(train):,} training queries have "
        f"{statistics.mean(counts):.1f} relevant items each on average (median {median:g})."
    ]
