"""`statistical` on real data: test F1 beside the exact cut and BM25, time to fit, time for a new
query.

Reads nfcorpus, msrd, chorus, med and cacm from COGR_DATA_DIR; what is absent is left out. `shop` is
the bundled sample shop. Run: python benchmarks/bench_statistical.py [--json] [--readability |
--new-items [--share 0.2] | --served | --unseen | --halves | --encoder FOLDER | --judge MODEL |
--clicks | --curve] [--seed N] [NAME ...]. CPU seconds stand beside wall seconds, because other work
on the machine stretches only the latter.

With --served: what serves beside BM25 over title and text, on test queries: F1 of the set (BM25's
is cut), nDCG@10, R@100 and R@1000 of the whole answer, and by how much each differs, with its
standard error; and what the fit expects of training queries, out of fold and as if their topics
had no labels. The names stackfaq, dnb_subjects and melo_de are for this and --unseen alone.

With --unseen: topics without any label. All queries in five groups of topics, each tested after a
fit to the others: F1 of the keywords beside BM25's, what the fit expected of such topics, and how
far confidence is from F1 (the mean, and the mean error of ten bins).

With --halves: F1 and nDCG@10 over ten random halves of all queries, learned from one half and
tested on the other: what few labels bring, and whether what serves orders at least as BM25 does.

With --readability: F1 against the share of query keywords that people say, and of those that
retrieve and find a single item, by price (`READABILITY`), on dev queries, or out of fold on at most
1,000 training queries, and on test queries.

With --encoder: F1 and nDCG@10 with an encoder of sentence-transformers and without, means of three
seeds, and p of the paired randomisation test over queries. Where queries are fewer than 200 in all,
every fifth of them is tested too, learned from the others.

With --judge: F1 of the exact cut and of the keywords with a language model of transformers as a
judge and without, where a fifth of the items comes after the labels (three draws), or with
--known-items where none does. --kept names a folder that keeps its answers.

With --clicks: F1 and nDCG@10 with simulated clicks (`clicked`) as a signal of pairs and without, on
test queries that have clicks, and on the same without their clicks; means of three seeds.

With --curve: F1 by the number of training queries, drawn at random. Where queries are fewer than
200 in all, each draw is tested on another fifth of them, so that all are tested once; elsewhere on
the first 500 test queries. --picture draws what was measured, as SVG.

With --scale ITEMS ...: made-up shops of so many items with 2,000 training queries, each in a
process of its own: seconds and memory to fit, to save, to open, to answer every item and a new
query. Memory is the process' peak, as in bench_scale.py: anonymous, and all that is resident.
With --encoder the items' points are random, in place of an encoder's, and a new query is encoded by
the encoder of that folder (384 dimensions), or with `drawn` not at all.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _new_items import (
    MEASURES_OF_NEW,
    exact_cut,
    figures_of_new,
    of_statistical,
    retrieved_by,
)
from _timing import Row, T, option_parser, report, timed
from _worlds import write_shop
from bench_scale import Peak
from numpy.typing import NDArray

from benchmarks.compare.measuring import paired_p
from cogr.datasets import load_dataset
from cogr.datasets.changes import Changes
from cogr.keywords import folded, self_keyword
from cogr.metrics import f1_of, ranked, set_figures, sets_of
from cogr.records import Dataset, Query, Split
from cogr.settings import load_settings
from cogr.snapshots import open_snapshot
from cogr.store import Store
from indexers.generators.statistical import FOLDS
from indexers.generators.statistical.artefact import Artefact, Spelled
from indexers.generators.statistical.fitting import fit
from indexers.generators.statistical.generator import Statistical, StatisticalOptions
from indexers.generators.statistical.keyword_selection import exact_cut as best_prefix
from indexers.generators.statistical.ranking.encoder import Encoder
from indexers.generators.statistical.ranking.hidden_topics import topic_groups
from indexers.generators.statistical.ranking.matrices import unit
from indexers.generators.statistical.storage import open_artefact, save
from indexers.release.beside_text import MAX_RANKING
from indexers.workspace import Workspace
from trainers.demo import CATALOGUE
from trainers.evaluation import (
    bm25,
    ensure_pushed,
    served,
)
from trainers.training.contest import generated_pair

TARGETS: Mapping[str, tuple[float, float | None]] = {
    "nfcorpus": (0.30, 30),
    "msrd": (0.74, 60),
    "chorus": (0.57, 40),
    "shop": (0.69, None),
    "med": (0.69, None),
    "cacm": (0.32, None),
}
"""Test F1 of the keywords at least, seconds to fit at most."""

UNTUNED = ("stackfaq", "dnb_subjects", "melo_de")
"""Data sets on which nothing was tuned: topics without labels, bare titles in German."""

BINS = 10
"""Of equally many queries, by their confidence."""

SERVED = ("F1", "nDCG@10", "R@100", "R@1000")

LOST = 0.005
"""R@100 that what serves may lack beside BM25."""

PRICES = (0, 0.0025, 0.005, 0.01, 0.02, 0.04)
MAX_QUERIES = 1000
"""Of a curve of prices."""

SIZES = (20, 40, 80, 160, 320)
"""Training queries of a learning curve; the last point has all."""

DRAWS, SMALL = 5, 200
"""With fewer queries in all, draws are folds."""

CURVE_QUERIES = 500
PARTS = 5

SCALE_QUERIES = 2200
"""Of which every eleventh is a test query."""

MAX_SECONDS, MAX_MB = 900, 4000
"""To fit a million items."""

QUERY_MS, ENCODED_QUERY_MS = 15, 25
"""For a new query; with an encoder."""

TIMED_QUERIES = 200

DISCOUNTS = 1 / np.log2(np.arange(2, 12))
"""Of the first ten places, for nDCG@10."""


def load(name: str) -> Dataset:
    if name == "shop":
        return load_dataset("jsonl", CATALOGUE)
    folder = Path(os.environ.get("COGR_DATA_DIR", "")) / name
    beir = name in ("med", "cacm", *UNTUNED)
    return load_dataset("beir", folder) if beir else load_dataset(name)


def split_into(dataset: Dataset, train: Sequence[Query], test: Sequence[Query]) -> Dataset:
    """The data set with these training and test queries alone."""
    return replace(dataset, queries={"train": train, "dev": [], "test": test})


def rows(name: str) -> Iterator[Row]:
    dataset = load(name)
    least, seconds = TARGETS[name]
    artefact, wall, cpu = timed(fit, dataset)
    keywords = artefact.facts["keywords"]
    yield Row(
        f"{name}: fit", wall, "s", seconds, notes={"cpu": round(cpu, 1), "vocabulary": keywords}
    )
    with tempfile.TemporaryDirectory() as folder:
        save(artefact, Store(folder))
        artefact, wall, _ = timed(open_artefact, Store(folder))
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
        yield Row(f"{name}: open", wall, "s", notes={"MB": round(size, 1)})
    yield new_query(name, dataset, artefact)
    yield quality(name, dataset, artefact, least)


def new_query(name: str, dataset: Dataset, artefact: Artefact) -> Row:
    """Keywords of one unseen query at a time."""
    queries = dataset.queries["test"][:TIMED_QUERIES]
    most = ENCODED_QUERY_MS if artefact.index.encoder else QUERY_MS
    artefact.query_keywords(queries[:1])  # Loads the encoder.
    _, *seconds = timed(lambda: [artefact.query_keywords([query]) for query in queries])
    wall, cpu = (1e3 * of / len(queries) for of in seconds)
    return Row(f"{name}: a new query", wall, "ms", most, notes={"cpu": round(cpu, 1)})


def quality(name: str, dataset: Dataset, artefact: Artefact, least: float) -> Row:
    """Macro F1 of the whole retrieved set on the test queries, by exact matching; as a shortfall,
    so that less is better.
    """
    means, found = retrieval(dataset, artefact, "test")
    others = {"exact cut": exact_cut(artefact, dataset, "test"), "bm25": bm25(dataset, "test")}
    notes = {
        **{measure: round(value, 4) for measure, value in means.items()},
        **{name: round(other.row(dataset, "test")["f1"], 4) for name, other in others.items()},
        "keywords a query": round(sum(map(len, found)) / len(found), 1),
        "said": said(artefact, found),
        "single": single(dataset, artefact, "test"),
    }
    return Row(f"{name}: 1 - test F1", 1 - means["f1"], "", 1 - least, notes=notes)


def retrieval(
    dataset: Dataset, artefact: Artefact, split: Split
) -> tuple[Mapping[str, float], list[list[str]]]:
    """Mean measures of the retrieved sets of a split's queries, and their keywords.

    A training query's own text finds nothing that has it as an anchor.
    """
    owners = owned(dataset, artefact)
    queries = dataset.queries[split][:MAX_QUERIES] if split == "train" else dataset.queries[split]
    found = artefact.query_keywords(queries)
    runs = {}
    for query, keywords in zip(queries, found, strict=True):
        literal = self_keyword(query.text)
        own = artefact.keywords.owners(literal, anchors=split != "train")
        runs[query.id] = frozenset(artefact.item_ids[item] for item in own).union(
            *(owners.get(word, ()) for word in keywords)
        )
    return set_figures(dataset, queries, runs).means, found


def owned(dataset: Dataset, artefact: Artefact) -> dict[str, set[str]]:
    """Ids of the items that own each keyword."""
    owners: dict[str, set[str]] = {}
    for item in dataset.items:
        for keyword in {*artefact.item_keywords(item), self_keyword(item.title)} - {""}:
            owners.setdefault(keyword, set()).add(item.id)
    return owners


def said(artefact: Artefact, found: Iterable[Iterable[str]]) -> float:
    """Share of query keywords that are anchors, titles, or phrases of titles or queries."""
    asked, known = [query.text for query in artefact.queries], artefact.keywords
    costs = known.costs(artefact.index.analyser, asked, 1.0)
    chosen = [costs[known.ids.find(word)] < 1 for keywords in found for word in keywords]
    return round(sum(map(float, chosen)) / max(len(chosen), 1), 3)


def single(dataset: Dataset, artefact: Artefact, split: Split) -> float:
    """Share of the keywords that retrieve which find a single item."""
    queries = dataset.queries[split][:MAX_QUERIES]
    scored = zip(queries, artefact.probabilities(queries), strict=True)
    found = [artefact.selected(query, *one).keywords for query, one in scored]
    owners = np.diff(artefact.keywords.all.keyword_starts)
    chosen = [owners[number] == 1 for keywords in found for number in keywords]
    return round(sum(map(float, chosen)) / max(len(chosen), 1), 3)


def sampled(dataset: Dataset, most: int | None) -> Dataset:
    """The data set with a sample of its training queries, where asked."""
    if most is None:
        return dataset
    train = dataset.queries["train"]
    drawn = np.random.default_rng(0).permutation(len(train))[:most]
    return replace(dataset, queries={**dataset.queries, "train": [train[at] for at in drawn]})


def prices(name: str, seed: int) -> Iterator[Row]:
    """A row for each price."""
    dataset = load(name)
    artefact = fit(dataset, seed=seed)
    chosen_on: Split = "dev" if len(dataset.queries["dev"]) >= 100 else "train"
    for price in PRICES:
        priced = replace(artefact, facts={**artefact.facts, "readability": price})
        notes: dict[str, object] = {}
        for split in (chosen_on, "test"):
            means, found = retrieval(dataset, priced, split)
            notes[f"{split} said"] = said(priced, found)
            notes[f"{split} single"] = single(dataset, priced, split)
            notes[f"{split} keywords a query"] = round(sum(map(len, found)) / len(found), 1)
            notes[f"{split} f1"] = round(means["f1"], 4)
            if split == chosen_on:
                shortfall = 1 - means["f1"]
        yield Row(f"{name}: 1 - {chosen_on} F1 at {price:g}", shortfall, "", notes=notes)


NEW_SHARE, NEW_DRAWS = 0.2, 3


def new_items(
    dataset: Dataset, split: Split, share: float = NEW_SHARE, draws: int = NEW_DRAWS
) -> Iterator[Row]:
    """A row for each way to treat items that came after the labels; the last one has their labels
    too. Means of the draws, and their standard deviation.
    """
    queries, ids = dataset.require(split), sorted(item.id for item in dataset.items)
    labelled = retrieved_by(fit(dataset), dataset, queries)
    found: dict[str, list[dict[str, Any]]] = {}
    for draw in range(draws):
        order = np.random.default_rng(draw).permutation(len(ids))
        new = frozenset(ids[at] for at in order[: int(share * len(ids))])
        whole = figures_of_new("with their labels", queries, dataset.relevant, new, labelled)
        for one in (*of_statistical(dataset, new, split, fit), whole):
            found.setdefault(one["name"], []).append(one)
    for name, rows_ in found.items():
        notes = {}
        for measure in MEASURES_OF_NEW:
            values = np.array([one[measure] for one in rows_ if one[measure] is not None])
            notes[measure] = f"{values.mean():.4f} ± {values.std(ddof=1):.4f}"
        f1 = float(notes["f1"].split()[0])
        yield Row(f"{dataset.name}: 1 - F1 with new items, {name}", 1 - f1, "", notes=notes)


class Drawn(Encoder):
    """Random points, (texts, 384); those of a single text by the encoder of `folder`, if any."""

    def __init__(self, folder: str) -> None:
        self.digest = "drawn"
        drawn = folder == self.digest
        self.alone = None if drawn else Encoder(folder, Store("memory://encoded"))

    def points(self, texts: Sequence[str], *, keep: bool = True) -> NDArray[np.float32]:  # noqa: ARG002
        if self.alone and len(texts) == 1:
            return self.alone.points(texts, keep=False)
        rows = np.random.default_rng(len(texts)).standard_normal((len(texts), 384), np.float32)
        return unit(rows)


def grown(items: int, encoder: Encoder | None) -> Iterator[Row]:
    """A row for each stage of a made-up shop of so many items, in this process."""

    def stage(name: str, work: Callable[[], T], most: float | None = None) -> tuple[Row, T]:
        with Peak() as peak:
            done, wall, cpu = timed(work)
        notes = {"cpu": round(cpu, 1), "MB": peak.anonymous, "resident MB": peak.resident}
        return Row(f"{items} items: {name}", wall, "s", most, notes=notes), done

    with tempfile.TemporaryDirectory() as temporary:
        data, fitted = Path(temporary) / "data", Path(temporary) / "fitted"
        write_shop(data, items, SCALE_QUERIES)
        row, dataset = stage("load", lambda: load_dataset("jsonl", data))
        yield row
        row, _ = stage(
            "fit and save", lambda: save(fit(dataset, encoder=encoder), Store(fitted)), MAX_SECONDS
        )
        yield row
        memory = row.notes["MB"]
        yield Row(f"{items} items: memory to fit and save", memory, "MB", MAX_MB)
        gc.collect()
        row, artefact = stage("open", lambda: open_artefact(Store(fitted), encoder))
        row.notes["MB on disk"] = round(sum(p.stat().st_size for p in fitted.iterdir()) / 1e6)
        yield row
        yield stage("keywords of all", lambda: [*map(artefact.item_keywords, dataset.items)])[0]
        yield new_query(f"{items} items", dataset, artefact)


def in_process(items: int, encoder: str | None) -> Iterator[Row]:
    """The rows of `grown` from a fresh process, whose peaks are this size's alone."""
    command = [sys.executable, __file__, "--json", "--alone", "--scale", str(items)]
    command += ["--encoder", encoder] if encoder else []
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for row in json.loads(found)["rows"]:
        yield Row(row["name"], row["value"], row["unit"], row["target"], notes=row["notes"])


def learning(name: str, seed: int) -> Iterator[Row]:
    """A row for each number of training queries."""
    dataset = load(name)
    folded = len(dataset.all_queries()) < SMALL
    every = len(dataset.all_queries()) * 4 // PARTS if folded else len(dataset.queries["train"])
    for size in (*(size for size in SIZES if size < every), every):
        draws = 1 if size == every and not folded else DRAWS
        found = [_drawn(dataset, size, draw, folded, seed) for draw in range(draws)]
        f1, cut, text, queries = (np.array(column) for column in zip(*found, strict=True))
        mean = float(np.average(f1, weights=queries))
        notes = {
            "queries": size,
            "f1": round(mean, 4),
            "exact cut": round(float(np.average(cut, weights=queries)), 4),
            "bm25": round(float(np.average(text, weights=queries)), 4),
            "draws": draws,
            "deviation of draws": round(float(f1.std(ddof=1)), 4) if draws > 1 else None,
        }
        yield Row(f"{name}: 1 - F1 with {size} training queries", 1 - mean, "", notes=notes)


def _drawn(
    dataset: Dataset, size: int, draw: int, folded: bool, seed: int
) -> tuple[float, float, float, int]:
    """F1 of the keywords, of the exact cut and of BM25, and on how many queries."""
    rng = np.random.default_rng([seed, draw])
    whole = list(_fifths(dataset, seed))[draw] if folded else dataset
    train, test = whole.queries["train"], whole.queries["test"][:CURVE_QUERIES]
    chosen = [train[i] for i in np.sort(rng.permutation(len(train))[:size])]
    drawn = split_into(dataset, chosen, test)
    artefact = fit(drawn, seed=seed + draw)
    means, _ = retrieval(drawn, artefact, "test")
    cut, text = (
        other.row(drawn, "test")["f1"]
        for other in (exact_cut(artefact, drawn, "test"), bm25(drawn, "test"))
    )
    return means["f1"], cut, text, len(test)


HALVES = 10


def random_halves(name: str) -> Row:
    """Means over random halves of all queries: learned from one half, tested on the other."""
    dataset, found, over_text = load(name), [], []
    pool = dataset.all_queries()
    for seed in range(1, HALVES + 1):
        order = np.random.default_rng(seed).permutation(len(pool))
        train, test = ([pool[i] for i in half] for half in np.array_split(order, [len(pool) // 2]))
        half = split_into(dataset, train, test)
        with tempfile.TemporaryDirectory() as folder:
            figures, serving, text = pair_of(half, folder)
        found.append([*figures, serving.mean(), text.mean()])
        over_text.append((serving - text).mean() / (serving - text).std(ddof=1) * text.size**0.5)
    measures = ("f1", "exact cut", "ndcg@10", "ndcg@10 of what serves", "ndcg@10 of BM25")
    means = dict(zip(measures, np.mean(found, axis=0).round(4), strict=True))
    notes = {
        **means,
        "deviation of draws": round(float(np.std(found, axis=0, ddof=1)[0]), 4),
        "what serves less BM25, least of all halves, in standard errors": round(min(over_text), 2),
    }
    return Row(f"{name}: 1 - F1 of random halves", 1 - means["f1"], "", notes=notes)


def pair_of(
    dataset: Dataset, store: str
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Means of `_of_artefact` for a pair of `statistical`; nDCG@10 of each test query by what
    serves, and by BM25.
    """
    workspace, serving, text = beside_text(dataset, store)
    with workspace.generator("query") as generator:
        assert isinstance(generator, Statistical)
        figures = _of_artefact(generator.artefact, dataset, "test").mean(axis=0)
    return figures, serving["nDCG@10"], text["nDCG@10"]


def serves(name: str) -> Row:
    """What serves and BM25 on the test queries: each measure of both, and their difference."""
    with tempfile.TemporaryDirectory() as folder:
        workspace, serving, text = beside_text(load(name), folder)
        with workspace.generator("query") as generator:
            assert isinstance(generator, Statistical)
            fitted = generator.artefact.facts
            alone = _of_artefact(generator.artefact, workspace.dataset, "test")[:, 0]
    notes: dict[str, Any] = {
        f"F1 on training queries, {of}": f"{fitted['f1_of_text']:.3f} -> {fitted[key]:.3f}"
        for of, key in (("out of fold", "f1_out_of_fold"), ("unseen topics", "f1_hidden_topics"))
    }
    notes["F1 of the keywords alone"] = f"{alone.mean():.3f}"
    for measure in SERVED:
        of = serving[measure]
        more = of - text[measure]
        error = more.std(ddof=1) / more.size**0.5
        notes[measure] = f"{text[measure].mean():.3f} -> {of.mean():.3f}"
        notes[f"{measure} more"] = f"{more.mean():+.3f} ± {error:.3f}"
    lost = float((text["R@100"] - serving["R@100"]).mean())
    return Row(f"{name}: R@100, BM25 less what serves", lost, "", LOST, notes=notes)


_Figures = Mapping[str, NDArray[np.float64]]


def unseen(name: str) -> Row:
    """Groups of topics, each tested after a fit to all the others."""
    dataset = load(name)
    pool = dataset.all_queries()
    every = fit(split_into(dataset, pool, []))
    groups = topic_groups(every.sources, 0)
    f1, sure, text, expected = ([] for _ in range(4))
    for group in range(FOLDS):
        train, test = (
            [pool[i] for i in np.flatnonzero(there)] for there in (groups != group, groups == group)
        )
        part = split_into(dataset, train, test)
        artefact = fit(part)
        f1.append(_of_artefact(artefact, part, "test")[:, 0])
        sure += [answer.confidence for answer in artefact.answers(test)]
        text.append(set_figures(part, test, sets_of(bm25(part, "test").runs)).values["f1"])
        expected.append(artefact.facts["f1_hidden_topics"])
    found, by_text, told = np.concatenate(f1), np.concatenate(text), np.array(sure)
    bins = np.array_split(np.argsort(told), BINS)
    notes = {
        "F1": f"{found.mean():.3f} ± {found.std(ddof=1) / found.size**0.5:.3f}",
        "expected by the fit": round(float(np.mean(expected)), 3),
        "BM25": round(float(by_text.mean()), 3),
        "confidence": round(float(told.mean()), 3),
        "error of bins": round(float(np.mean([abs((told - found)[b].mean()) for b in bins])), 3),
        "queries": found.size,
    }
    return Row(f"{name}: 1 - F1 on unseen topics", 1 - float(found.mean()), "", notes=notes)


def beside_text(dataset: Dataset, store: str) -> tuple[Workspace, _Figures, _Figures]:
    """A pair of `statistical` in a new store; measure -> figure of each test query, by what serves
    and by BM25: P, R and F1 of the sets, and measures of the whole answers.
    """
    own = {"name": "statistical", "statistical": {"encoder": "none"}}
    table = {"loader": "jsonl", "path": store}
    workspace = Workspace(
        load_settings(None, [], otherwise={"dataset": table, "store": store, "generator": own})
    )
    vars(workspace)["dataset"] = dataset
    pair = generated_pair(workspace, splits=())
    item, query = (open_snapshot(workspace.store, id_) for id_ in (pair.items, pair.queries))
    ensure_pushed(workspace.backend, item)
    queries, found = dataset.require("test"), []
    tested = {one.id: dataset.relevant[one.id] for one in queries}
    for one in (served(workspace, "test", item, query), bm25(dataset, "test")):
        sets = set_figures(dataset, queries, sets_of(one.runs)).values
        ranks = ranked(one.rankings, tested, cutoffs=(10, 100, MAX_RANKING)).values
        found.append({**ranks, "P": sets["p"], "R": sets["r"], "F1": sets["f1"]})
    return workspace, found[0], found[1]


SEEDS = 3


def encoder_gains(name: str, folder: str, seed: int, split: Split) -> Iterator[Row]:
    """A row for each measure, of the split and, where queries are few, of all in five parts."""
    dataset, encoder = load(name), Encoder(folder, Store("memory://encoded"))
    tested = {str(split): [dataset]}
    if len(dataset.all_queries()) < SMALL:
        tested["5 folds"] = list(_fifths(dataset, seed))
    for what, sets in tested.items():
        asked: Split = split if what == split else "test"
        without, with_it = (
            np.stack([_of_queries(sets, asked, one, seed + more) for more in range(SEEDS)])
            for one in (None, encoder)
        )
        yield from compared(f"{name}, {what}", without, with_it)


def compared(
    what: str, without: NDArray[np.float64], with_it: NDArray[np.float64]
) -> Iterator[Row]:
    """A row for each measure of `_of_artefact`, from (seeds, queries, measures) of two ways."""
    for column, measure in enumerate(("F1", "F1 of the exact cut", "nDCG@10")):
        before, after = (found[:, :, column] for found in (without, with_it))
        change = (after - before).mean(axis=0)
        notes = {
            "without": round(float(before.mean()), 4),
            "with": round(float(after.mean()), 4),
            "gain": round(float(change.mean()), 4),
            "standard error": round(float(change.std(ddof=1)) / change.size**0.5, 4),
            "p": round(paired_p(after.mean(axis=0), before.mean(axis=0)), 4),
            "deviation of seeds": round(float(after.mean(axis=1).std(ddof=1)), 4),
            "queries": change.size,
        }
        yield Row(f"{what}: 1 - {measure}", 1 - float(after.mean()), "", notes=notes)


def judge_gains(dataset: Dataset, model: str, kept: str, *, known: bool) -> Iterator[Row]:
    """A row for each way to find what test queries want: means over queries and draws."""
    queries, ids = dataset.require("test"), sorted(item.id for item in dataset.items)
    options = StatisticalOptions(judge={"kind": "transformers", "model": model})
    judge = Statistical(dataset, Store(kept), options).with_judge
    new = [
        frozenset(ids[at] for at in np.random.default_rng(draw).permutation(len(ids))[:size])
        for size in [0 if known else int(NEW_SHARE * len(ids))]
        for draw in range(1 if known else NEW_DRAWS)
    ]
    found: dict[str, list[NDArray[np.float64]]] = {}

    def took(name: str, scores: NDArray[np.float64]) -> None:
        found.setdefault(name, []).append(scores)
        print(f"{name}: {scores.mean():.4f}", file=sys.stderr, flush=True)

    def judged(
        artefact: Artefact, queries: Sequence[Query], only: NDArray[np.int64] | None = None
    ) -> Artefact:
        found = judge(artefact, queries, only)
        print(found.judged, file=sys.stderr, flush=True)
        return found

    for one in new:
        alone = fit(later(dataset, one))
        for name, artefact in (("", alone), (", judged", judged(alone, queries))):
            f1, cut, _ = _of_artefact(artefact, dataset, "test").T
            took(f"exact cut{name}", cut)
            took(f"rebuilt{name}", f1)
    for one in [] if known else new:
        for name, asks in (("", None), (", judged", judged)):
            row = next(of_statistical(dataset, one, "test", fit, asks))
            took(f"update{name}", np.array([row["f1"]] * len(queries)))
    for name, draws in found.items():
        f1, plain = np.stack(draws), np.stack(found[name.removesuffix(", judged")])
        change = (f1 - plain).mean(axis=0)
        notes = {
            "f1": [round(float(one), 4) for one in f1.mean(axis=1)],
            "gain": round(float(change.mean()), 4),
            "standard error": round(float(change.std(ddof=1)) / change.size**0.5, 4),
        }
        yield Row(f"{dataset.name}: 1 - F1, {name}", 1 - float(f1.mean()), "", notes=notes)


def later(dataset: Dataset, new: frozenset[str]) -> Dataset:
    """The data set to which these items came without labels."""
    before = Changes("item", {}, new).applied_to(dataset)
    added = {item.id: item for item in dataset.items if item.id in new}
    return Changes("item", added, frozenset()).applied_to(before)


def click_gains(name: str, seed: int, split: Split) -> Iterator[Row]:
    """Rows for queries with clicks, and for the same queries without."""
    dataset = load(name)
    texts = {folded(query.text) for query in dataset.queries[split]}
    found: dict[str, list[NDArray[np.float64]]] = {"": [], "with clicks": [], "without clicks": []}
    for more in range(seed, seed + SEEDS):
        blind = fit(dataset, seed=more)
        found[""].append(_of_artefact(blind, dataset, split))
        shown = replace(dataset, pair_signals={"clicks": clicked(dataset, blind, more)})
        seeing = fit(shown, seed=more, pair_signals=["clicks"])
        found["with clicks"].append(_of_artefact(seeing, dataset, split))
        hidden = seeing.index.pair_signals.without(texts)
        unseen = replace(seeing, index=seeing.index.seeing(hidden))
        found["without clicks"].append(_of_artefact(unseen, dataset, split))
    for what in ("with clicks", "without clicks"):
        yield from compared(f"{name}, {what}", np.stack(found[""]), np.stack(found[what]))


def clicked(dataset: Dataset, artefact: Artefact, seed: int) -> dict[str, dict[str, float]]:
    """Clicks of simulated shoppers for every query: query id -> item id -> clicks.

    A query has 20 to 500 visits (log-uniform). Each is shown the first 20 items of BM25, and then,
    since shoppers also browse, a random half of the relevant items among 20 random ones. An item is
    looked at with probability 1 / sqrt(place), and clicked then with 0.3 where it is relevant, else
    0.03.
    """
    rng, index, found = np.random.default_rng(seed), artefact.index, {}
    queries = dataset.all_queries()
    for query in queries:
        scores = (index.batch([folded(query.text)]).terms @ index.bm25).tocsr()
        first = scores.indices[np.argsort(-scores.data, kind="stable")[:20]]
        relevant = np.array(sorted(artefact.numbers[id_] for id_ in dataset.relevant[query.id]))
        some = rng.permutation(relevant)[: (relevant.size + 1) // 2]
        more = np.setdiff1d(np.union1d(some, rng.integers(0, index.n_items, 20)), first)
        shown = np.concatenate([first, rng.permutation(more)])
        seen = 1 / np.sqrt(np.arange(1, shown.size + 1))
        visits = int(np.exp(rng.uniform(np.log(20), np.log(500))))
        clicks = rng.binomial(visits, seen * np.where(np.isin(shown, relevant), 0.3, 0.03))
        pairs = zip(shown, clicks, strict=True)
        found[query.id] = {artefact.item_ids[item]: float(n) for item, n in pairs if n}
    return found


def _fifths(dataset: Dataset, seed: int) -> Iterator[Dataset]:
    """Each fifth of all queries as test queries, the others as training queries."""
    pool = dataset.all_queries()
    order = np.random.default_rng(seed).permutation(len(pool))
    for part in range(PARTS):
        held = np.arange(len(pool)) % PARTS == part
        train, test = ([pool[i] for i in order[rows]] for rows in (~held, held))
        yield split_into(dataset, train, test)


def _of_queries(
    sets: Iterable[Dataset], split: Split, encoder: Encoder | None, seed: int
) -> NDArray[np.float64]:
    """F1 of the keywords, F1 of the exact cut and nDCG@10 of the keywords, (queries, 3)."""
    return np.concatenate(
        [_of_artefact(fit(one, encoder=encoder, seed=seed), one, split) for one in sets]
    )


def _scores(artefact: Artefact, query: Query, spelled: Spelled) -> NDArray[np.float64]:
    """What a search by keywords scores the retrieved items, in their order."""
    owners = [*map(artefact.keywords.all.owners, spelled.words)]
    if spelled.own:
        unknown = artefact.row_of(query) < 0
        owners[0] = artefact.keywords.owners(self_keyword(query.text), anchors=unknown)
    words = np.array(spelled.words, dtype=np.int64)
    parts = artefact.scored.parts(spelled.retrieved, words, owners)
    return np.asarray(parts @ np.array(spelled.weights or [1.0] * words.size))


def _of_artefact(artefact: Artefact, dataset: Dataset, split: Split) -> NDArray[np.float64]:
    queries, found = dataset.queries[split], []
    for query, (items, p) in zip(queries, artefact.probabilities(queries), strict=True):
        wanted = dataset.relevant[query.id]
        relevant = np.array([artefact.numbers[i] for i in wanted if i in artefact.numbers])
        cut, _ = best_prefix(p, artefact.expected_relevant(query, p))
        spelled = artefact.spell(query, items, p)
        f1 = [
            f1_of(float(np.isin(one, relevant).sum()), one.size, relevant.size)
            for one in (spelled.retrieved, items[cut])
        ]
        order = np.lexsort((spelled.retrieved, -_scores(artefact, query, spelled)))[:10]
        gains = np.isin(spelled.retrieved[order], relevant) @ DISCOUNTS[: order.size]
        found.append([*f1, gains / DISCOUNTS[: min(10, max(relevant.size, 1))].sum()])
    return np.array(found)


def picture(found: Iterable[Row], path: str) -> None:
    """Draw learning curves: F1 by training queries, a line a data set."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in found:
        lines.setdefault(row.name.partition(":")[0], []).append(row.notes)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "learning"}):
        figure = Figure(figsize=(6.6, 4), layout="constrained")
        axes = figure.subplots()
        for mark, (name, points) in zip("os^Dvx", lines.items(), strict=False):
            sizes, f1, spread = (
                [point[key] or 0 for point in points]
                for key in ("queries", "f1", "deviation of draws")
            )
            axes.errorbar(sizes, f1, spread, label=name, marker=mark, capsize=2, linewidth=1.5)
        ticks = (*SIZES, 1000, 3000, 14000)
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set(xlabel="training queries", ylabel="F1 of the keywords")
        axes.grid(axis="y", color="#ddd")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _kept(rows: Iterable[Row], shown: list[Row]) -> Iterator[Row]:
    for row in rows:
        shown.append(row)
        yield row


def _chosen(asked: argparse.Namespace) -> Callable[[str], Iterable[Row]]:
    """What gives the rows of a data set: the way that an option names."""
    seed, split = asked.seed, asked.split

    def of_sample(name: str) -> Dataset:
        return sampled(load(name), asked.sample)

    ways: dict[str, Callable[[str], Iterable[Row]]] = {
        "readability": lambda name: prices(name, seed),
        "new_items": lambda name: new_items(of_sample(name), split, asked.share, asked.draws),
        "served": lambda name: [serves(name)],
        "unseen": lambda name: [unseen(name)],
        "halves": lambda name: [random_halves(name)],
        "encoder": lambda name: encoder_gains(name, asked.encoder, seed, split),
        "judge": lambda name: judge_gains(
            of_sample(name), asked.judge, asked.kept, known=asked.known_items
        ),
        "clicks": lambda name: click_gains(name, seed, split),
        "curve": lambda name: learning(name, seed),
    }
    return next((way for option, way in ways.items() if getattr(asked, option)), rows)


def _of_sizes(asked: argparse.Namespace) -> Iterator[Row]:
    """The rows of made-up shops."""
    drawn = Drawn(asked.encoder) if asked.encoder else None
    for items in asked.scale:
        yield from grown(items, drawn) if asked.alone else in_process(items, asked.encoder)


def _names(asked: argparse.Namespace) -> list[str]:
    """The data sets that are asked for and there."""
    known = (*TARGETS, *UNTUNED) if asked.served or asked.unseen else TARGETS
    folder = os.environ.get("COGR_DATA_DIR", "")
    return [
        name
        for name in asked.names or known
        if name == "shop" or (folder and (Path(folder) / name).is_dir())
    ]


def _options() -> argparse.Namespace:
    parser = option_parser(__doc__, json=True)
    parser.add_argument("names", nargs="*", help=", ".join(TARGETS))
    parser.add_argument("--readability", action="store_true")
    parser.add_argument("--new-items", action="store_true")
    parser.add_argument("--share", type=float, default=NEW_SHARE)
    parser.add_argument("--draws", type=int, default=NEW_DRAWS)
    parser.add_argument("--served", action="store_true")
    parser.add_argument("--unseen", action="store_true")
    parser.add_argument("--halves", action="store_true")
    parser.add_argument("--encoder", metavar="FOLDER")
    parser.add_argument("--judge", metavar="MODEL")
    parser.add_argument("--known-items", action="store_true")
    parser.add_argument("--kept", metavar="FOLDER", default=".bench-judge")
    parser.add_argument("--clicks", action="store_true")
    parser.add_argument("--split", choices=("train", "dev", "test"), default="test")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--curve", action="store_true")
    parser.add_argument("--picture", metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", nargs="+", type=int, default=(), metavar="ITEMS")
    parser.add_argument("--alone", action="store_true", help="--scale in this process")
    return parser.parse_args()


def main() -> None:
    asked = _options()
    if asked.scale:
        report(_of_sizes(asked), as_json=asked.json)
        return
    if not (names := _names(asked)):
        print("COGR_DATA_DIR has none of the data sets; see docs/datasets.md.")
        return
    way, shown = _chosen(asked), list[Row]()
    every = (row for name in names for row in way(name))
    report(_kept(every, shown), as_json=asked.json)
    if asked.picture:
        picture(shown, asked.picture)


if __name__ == "__main__":
    main()
