"""`statistical` on real data: test F1 beside the exact cut and BM25, time to fit, time for a new
query.

Reads nfcorpus, msrd and chorus from COGR_DATA_DIR; what is absent is left out. Run: python
benchmarks/bench_statistical.py [--json] [--readability | --new-items] [--seed N] [NAME ...]. CPU
seconds stand beside wall seconds, because other work on the machine stretches only the latter.

With --readability: F1 against the share of query keywords that people say, by price
(`generator.statistical.readability`), on dev queries, or out of fold on at most 1,000 training
queries, and on test queries. `shop` is the bundled sample shop.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from _timing import Row, report

from cogr.datasets import load_dataset
from cogr.keywords import self_keyword
from cogr.metrics import full_set
from cogr.records import Dataset, Split
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.fitting import fit
from indexers.generators.statistical.storage import open_artefact, save
from trainers.demo import CATALOGUE
from trainers.evaluation import bm25, exact_cut

TARGETS = {"nfcorpus": (0.30, 30), "msrd": (0.74, 60), "chorus": (0.57, 40)}
"""Test F1 of the keywords at least, seconds to fit at most."""

PRICES = (0, 0.0025, 0.005, 0.01, 0.02, 0.04)
MOST_QUERIES = 1000
"""Of a curve."""

QUERY_MS = 15
TIMED_QUERIES = 200


def rows(name: str) -> Iterator[Row]:
    dataset = load_dataset(name)
    least, seconds = TARGETS[name]
    wall, cpu = time.perf_counter(), time.process_time()
    artefact = fit(dataset)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    keywords = artefact.facts["keywords"]
    yield Row(
        f"{name}: fit", wall, "s", seconds, notes={"cpu": round(cpu, 1), "vocabulary": keywords}
    )
    with tempfile.TemporaryDirectory() as folder:
        save(artefact, folder)
        wall = time.perf_counter()
        artefact = open_artefact(folder)
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
        yield Row(f"{name}: open", time.perf_counter() - wall, "s", notes={"MB": round(size, 1)})
    yield new_query(name, dataset, artefact)
    yield quality(name, dataset, artefact, least)


def new_query(name: str, dataset: Dataset, artefact: Artefact) -> Row:
    """Keywords of one unseen query at a time."""
    queries = dataset.queries["test"][:TIMED_QUERIES]
    wall, cpu = time.perf_counter(), time.process_time()
    for query in queries:
        artefact.query_keywords([query])
    wall, cpu = (
        (time.perf_counter() - wall) / len(queries),
        (time.process_time() - cpu) / len(queries),
    )
    return Row(
        f"{name}: a new query", wall * 1e3, "ms", QUERY_MS, notes={"cpu": round(cpu * 1e3, 1)}
    )


def quality(name: str, dataset: Dataset, artefact: Artefact, least: float) -> Row:
    """Macro F1 of the whole retrieved set on the test queries, by exact matching; as a shortfall,
    so that less is better.
    """
    means, found = retrieval(dataset, artefact, "test")

    def f1(retrieved: Mapping[str, Iterable[str]]) -> float:
        runs = {query: frozenset(ids) for query, ids in retrieved.items()}
        return round(full_set(runs, dataset.relevant).means["f1"], 4)

    notes = {
        **{measure: round(value, 4) for measure, value in means.items()},
        "exact cut": f1(exact_cut(artefact, dataset, "test").runs),
        "bm25": f1(bm25(dataset, "test").runs),
        "keywords a query": round(sum(map(len, found)) / len(found), 1),
        "said": said(artefact, found),
    }
    return Row(f"{name}: 1 - test F1", 1 - means["f1"], "", 1 - least, notes=notes)


def retrieval(
    dataset: Dataset, artefact: Artefact, split: Split
) -> tuple[Mapping[str, float], list[list[str]]]:
    """Mean measures of the retrieved sets of a split's queries, and their keywords.

    A training query's own text finds nothing that has it as an anchor.
    """
    owners = owned(dataset, artefact)
    queries = dataset.queries[split][:MOST_QUERIES] if split == "train" else dataset.queries[split]
    found = artefact.query_keywords(queries)
    runs = {}
    for query, keywords in zip(queries, found, strict=True):
        literal = self_keyword(query.text)
        own = artefact.keywords.owners(literal, anchors=split != "train")
        runs[query.id] = frozenset(artefact.item_ids[item] for item in own).union(
            *(owners.get(word, ()) for word in keywords)
        )
    return full_set(runs, {id_: dataset.relevant[id_] for id_ in runs}).means, found


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
    chosen = [costs[known.ids[word]] < 1 for keywords in found for word in keywords]
    return round(sum(map(float, chosen)) / max(len(chosen), 1), 3)


def loaded(name: str, sample: int | None = None) -> Dataset:
    """A data set, with a sample of its training queries where asked."""
    dataset = load_dataset("jsonl", CATALOGUE) if name == "shop" else load_dataset(name)
    train = dataset.queries["train"]
    if sample is None or sample >= len(train):
        return dataset
    drawn = np.random.default_rng(0).permutation(len(train))[:sample]
    return replace(dataset, queries={**dataset.queries, "train": [train[at] for at in drawn]})


def curve(name: str, seed: int) -> Iterator[Row]:
    """A row for each price."""
    dataset = loaded(name)
    artefact = fit(dataset, seed=seed)
    chosen_on: Split = "dev" if len(dataset.queries["dev"]) >= 100 else "train"
    for price in PRICES:
        priced = replace(artefact, facts={**artefact.facts, "readability": price})
        notes: dict[str, object] = {}
        for split in (chosen_on, "test"):
            means, found = retrieval(dataset, priced, split)
            notes[f"{split} said"] = said(priced, found)
            notes[f"{split} keywords a query"] = round(sum(map(len, found)) / len(found), 1)
            notes[f"{split} f1"] = round(means["f1"], 4)
            if split == chosen_on:
                shortfall = 1 - means["f1"]
        yield Row(f"{name}: 1 - {chosen_on} F1 at {price:g}", shortfall, "", notes=notes)


NEW_SHARE = 0.2


def new_items(dataset: Dataset, split: Split, seed: int) -> Iterator[Row]:
    """A row for each way to treat items that came after the labels."""
    shuffled = np.random.default_rng(seed).permutation(len(dataset.items))
    new = {dataset.items[at].id for at in shuffled[: int(NEW_SHARE * len(shuffled))]}
    queries = dataset.queries[split]
    labels = {query.id: dataset.relevant[query.id] - new for query in dataset.queries["train"]}
    train = [query for query in dataset.queries["train"] if labels[query.id]]
    before = replace(dataset, queries={"train": train}, relevant=labels)
    old = fit(replace(before, items=[item for item in dataset.items if item.id not in new]))
    refitted, labelled = fit(before), fit(dataset)
    for name, asked, items in (
        ("nothing refitted", old, old),
        ("items refitted", old, refitted),
        ("queries rebuilt too", refitted, refitted),
        ("with their labels", labelled, labelled),
    ):
        owners = owned(dataset, items)
        kept: dict[str, list[float]] = {"new": [], "old": [], "f1": []}
        for query, words in zip(queries, asked.query_keywords(queries), strict=True):
            own = self_keyword(query.text)
            found = set[str]().union(*(owners.get(word, ()) for word in {*words, own}))
            relevant = dataset.relevant[query.id]
            hits = found & relevant
            kept["f1"].append(2 * len(hits) / (len(found) + len(relevant)))
            for group, of in (("new", relevant & new), ("old", relevant - new)):
                if of:
                    kept[group].append(len(hits & of) / len(of))
        notes = {f"{key}": _mean(values) for key, values in kept.items()}
        yield Row(
            f"{dataset.name}: 1 - recall of new items, {name}",
            1 - np.mean(kept["new"]),
            "",
            notes=notes,
        )


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4f} ± {np.std(values) / len(values) ** 0.5:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=", ".join(TARGETS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--readability", action="store_true")
    parser.add_argument("--new-items", action="store_true")
    parser.add_argument("--split", choices=("dev", "test"), default="test")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.new_items:
        sets = (loaded(name, arguments.sample) for name in arguments.names or ["shop", *TARGETS])
        every = (row for one in sets for row in new_items(one, arguments.split, arguments.seed))
        report(every, as_json=arguments.json)
        return
    if arguments.readability:
        names = arguments.names or ["shop", *TARGETS]
        every = (row for name in names for row in curve(name, arguments.seed))
        report(every, as_json=arguments.json)
        return
    root = Path(os.environ.get("COGR_DATA_DIR", ""))
    names = [
        name
        for name in arguments.names or TARGETS
        if os.environ.get("COGR_DATA_DIR") and (root / name).is_dir()
    ]
    if not names:
        print("COGR_DATA_DIR has none of the data sets; see docs/datasets.md.")
        return
    report((row for name in names for row in rows(name)), as_json=arguments.json)


if __name__ == "__main__":
    main()
