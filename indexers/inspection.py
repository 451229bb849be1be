"""What is in a data set, whether its labels can be trusted, and what to do next: train, label more,
or keep BM25.

`examine` counts, and measures leaks between splits and unjudged results of the retrievers, by
which pairs to judge are pooled too:

bm25: the items' own text. keywords: the serving pair, where one serves.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cogr.datasets.builder import BLANK_ITEMS, HTML, REPEATED_ITEMS, cluster_key
from cogr.errors import ServiceError, SnapshotError
from cogr.keywords import query_key, self_keyword
from cogr.records import SPLITS, Dataset, Query
from indexers.exports import run_of
from indexers.generators.statistical.generator import f1_in, latest_facts, new_ids, told_f1
from indexers.release.beside_text import sample_of
from indexers.search import Searcher
from indexers.text import Lexical
from indexers.workspace import Workspace

DataVerdict = Literal["train", "label more", "keep BM25"]

ENOUGH_TRAINING_QUERIES = 100
"""Below this, training has too little to learn from."""
_MAX_ITEMS = 300_000
"""Most items for searches: with more they would take gigabytes."""
_DEPTH = 10
_FEW_JUDGED, _MAX_LEAKED = 0.5, 0.02
_NAMED = 10
_SHOWN = 5


def _counted(dataset: Dataset) -> dict[str, Any]:
    """The counts of `Findings`. Linear in the size of the data; keeps a hash of each text."""
    queries = {split: dataset.queries.get(split, ()) for split in SPLITS}
    relevant: dict[str, float] = {
        split: statistics.median(len(dataset.relevant[query.id]) for query in some)
        for split, some in queries.items()
        if some
    }
    return {
        "name": dataset.name,
        "dataset_hash": dataset.dataset_hash,
        "items": len(dataset.items),
        "queries": {split: len(some) for split, some in queries.items()},
        "relevant_per_query": relevant,
        "duplicates": {
            "titles": _repeats(self_keyword(item.title) for item in dataset.items),
            "texts": _repeats(" ".join(item.text.casefold().split()) for item in dataset.items),
            "queries": _repeats(query_key(query.text) for query in dataset.all_queries()),
        },
        "judgements": sum(map(len, dataset.judged.values())),
        "notes": dict(dataset.notes),
        "unread": dict(dataset.unread),
        "lineage": dataset.lineage,
    }


def remarks(dataset: Dataset) -> list[str]:
    """Remarks on the data to read before it is indexed, a sentence each."""
    lines = []
    if dataset.unread:
        names = [f"{name} ({count:,})" for name, count in [*dataset.unread.items()][:_NAMED]]
        more = f" and {len(dataset.unread) - _NAMED} more" if len(dataset.unread) > _NAMED else ""
        lines.append(
            f"Fields and files that are not read: {', '.join(names)}{more}. Name in "
            "dataset.columns.text what describes an item, and in publish.fields what goes into the "
            "index."
        )
    for note in (HTML, REPEATED_ITEMS, BLANK_ITEMS):
        if count := dataset.notes.get(note):
            lines.append(f"{count:,} {note}.")
    return lines


def _repeats(texts: Iterable[str]) -> int:
    hashes = [hash(text) for text in texts if text]
    return len(hashes) - len({*hashes})


def _advise(dataset: Dataset) -> tuple[DataVerdict, list[str]]:
    # Paper, section 3.1: many relevant items a query.
    train = dataset.queries.get("train", ())
    counts = [len(dataset.relevant[query.id]) for query in train]
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
        f"There is enough to train on: {len(train):,} training queries have "
        f"{statistics.mean(counts):.1f} relevant items each on average (median {median:g})."
    ]


def _leakage(dataset: Dataset) -> dict[str, Any]:
    train = {cluster_key(query.text): query.text for query in dataset.queries.get("train", ())}
    held = [*dataset.queries.get("dev", ()), *dataset.queries.get("test", ())]
    known = [(q.text, train[key]) for q in held if (key := cluster_key(q.text)) in train]
    share = _share(len(known), len(held))
    return {"queries": len(held), "known": len(known), "share": share, "examples": known[:_SHOWN]}


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


Retriever = Literal["bm25", "keywords"]


@dataclass(frozen=True)
class Holes:
    """The share of a retriever's first ten results that was judged, and of these relevant."""

    queries: int
    judged_share: float
    relevant_share: float


Runs = Mapping[Retriever, Mapping[str, Sequence[str]]]
"""Retriever -> query id -> ids of items, best first."""


def runs_of(
    workspace: Workspace, queries: Sequence[Query], size: int
) -> tuple[Runs, Mapping[str, str]]:
    """What the retrievers find, `size` items of a query at most; and which could not be asked, with
    the reason: without a pair that serves there are no keywords.
    """
    lexical = Lexical(workspace.dataset.items)
    bm25 = {query.id: [id_ for id_, _ in lexical.rank(query.text, size)] for query in queries}
    try:
        hits = run_of(Searcher(workspace), queries, size)
    except (SnapshotError, ServiceError) as error:
        return {"bm25": bm25}, {"keywords": str(error)}
    keywords = {id_: [hit.id for hit in some] for id_, some in hits.items()}
    return {"bm25": bm25, "keywords": keywords}, {}


def holes(runs: Runs, dataset: Dataset) -> Mapping[str, Holes]:
    """Retriever -> the shares of its best results that are judged, and relevant."""
    result: dict[str, Holes] = {}
    for name, run in runs.items():
        pairs = [(query, id_) for query, ids in run.items() for id_ in ids]
        judged = [pair for pair in pairs if pair[1] in dataset.judged.get(pair[0], {})]
        relevant = sum(id_ in dataset.relevant[query] for query, id_ in judged)
        shares = _share(len(judged), len(pairs)), _share(relevant, len(judged))
        result[name] = Holes(len(run), *shares)
    return result


@dataclass(frozen=True)
class Findings:
    """The results of `examine`. An unmeasured one is empty, with the reason in `not_measured`.

    Attributes:
        relevant_per_query: by split, the median of relevant items a query; splits without queries
            are left out.
        duplicates: records that repeat an earlier one's text: titles and queries normalised as
            keywords, texts without case.
        notes: what the loader left out or repaired, such as HTML or unknown ids, and how often.
        unread: fields and files that nothing reads, and how many records have each.
        lineage: where the labels come from, from lineage.json.
        turnover: share of the items that the labels cannot know (`new_ids`).
        leakage: how many queries of dev and test there are, how many have the stems of a training
            query, in any order, and examples: (query, training query).
    """

    name: str
    dataset_hash: str
    items: int
    queries: Mapping[str, int]
    relevant_per_query: Mapping[str, float]
    duplicates: Mapping[str, int]
    judgements: int
    notes: Mapping[str, int]
    unread: Mapping[str, int]
    lineage: Mapping[str, Any]
    verdict: DataVerdict
    advice: Sequence[str]
    turnover: float
    leakage: Mapping[str, Any]
    holes: Mapping[str, Holes]
    not_measured: Mapping[str, str]


def examine(workspace: Workspace) -> Findings:
    """Measure what can be measured with what is installed, and advise."""
    dataset = workspace.dataset
    leaks, (verdict, first) = _leakage(dataset), _advise(dataset)
    measured, missing = _measured(workspace)
    negative = any(len(dataset.judged[id_]) > len(ids) for id_, ids in dataset.relevant.items())
    judged = measured["bm25"].judged_share if negative and "bm25" in measured else 1.0
    advice: list[str] = []
    if judged < _FEW_JUDGED:
        advice.append(
            f"Only {judged:.0%} of BM25's first {_DEPTH} items are judged: figures on these labels "
            "are too low for any search that finds other items; compare by judged items alone "
            "(judged_f1), or judge what is found (cogr-train labels judge)."
        )
    if measured and not negative:
        advice.append(
            "The labels name relevant items only, so that an item that nobody judged counts as "
            "irrelevant: judge what is found (cogr-train labels judge) to see how many are not."
        )
    if leaks["share"] > _MAX_LEAKED:
        remedy = (
            "put near-equal queries into one split (their field split)"
            if workspace.settings.dataset.split_by == "cluster"
            else 'set dataset.split_by = "cluster", or group the splits'
        )
        advice.append(
            f"{leaks['share']:.0%} of the test and dev queries have a near-equal training query, "
            f"so that figures are too high: {remedy}."
        )
    if verdict == "train" and judged < _FEW_JUDGED:
        verdict, first = "label more", ["Label more before training."]
    if beside_text := _beside_text(workspace, verdict):
        verdict, first = beside_text[0], [beside_text[1], *first]
    turnover = _share(len(new_ids(dataset, workspace.store)), len(dataset.items))
    return Findings(
        **_counted(dataset),
        verdict=verdict,
        advice=[*first, *advice],
        turnover=turnover,
        leakage=leaks,
        holes=measured,
        not_measured=missing,
    )


def _beside_text(workspace: Workspace, verdict: DataVerdict) -> tuple[DataVerdict, str] | None:
    """The verdict by the newest fit to the data, and what it says of CoGR beside text search; None
    without a fit.
    """
    facts = latest_facts(workspace.store, workspace.dataset.dataset_hash)
    if not facts:
        return None
    known, hidden, text = f1_in(facts).values()
    least = text - workspace.settings.publish.tolerance
    if known >= least and hidden >= least:
        suits = "The data suits CoGR: " if verdict == "train" else "By the last fit: "
        return verdict, f"{suits}{told_f1(facts)}."
    where = "" if known < least else " on topics without labels"
    advice: DataVerdict = "keep BM25" if known < least else "label more"
    return advice, f"Text search finds more than CoGR{where}: {told_f1(facts)}."


def _measured(workspace: Workspace) -> tuple[Mapping[str, Holes], Mapping[str, str]]:
    # What was found out of retrievers, and which could not be asked, and why.
    dataset = workspace.dataset
    if len(dataset.items) > _MAX_ITEMS:
        return {}, {"retrievers": f"more than {_MAX_ITEMS:,} items"}
    queries = sample_of(dataset.all_queries())
    runs, missing = runs_of(workspace, queries, _DEPTH) if queries else ({}, {})
    return holes(runs, dataset), missing
