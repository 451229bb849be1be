"""`statistical` on real data: test F1 beside the exact cut and BM25, time to fit, time for a new
query.

Reads nfcorpus, msrd and chorus from COGR_DATA_DIR; what is absent is left out. Run: python
benchmarks/bench_statistical.py [--json] [NAME ...]. CPU seconds stand beside wall seconds, because
other work on the machine stretches only the latter.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from _timing import Row, report

from cogr.datasets import load_dataset
from cogr.keywords import self_keyword
from cogr.metrics import full_set
from cogr.records import Dataset
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.fitting import fit
from indexers.generators.statistical.storage import open_artefact, save
from trainers.evaluation import bm25, exact_cut

TARGETS = {"nfcorpus": (0.30, 30), "msrd": (0.74, 60), "chorus": (0.57, 40)}
"""Test F1 of the keywords at least, seconds to fit at most."""

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
    owners: dict[str, set[str]] = {}
    for item in dataset.items:
        for keyword in {*artefact.item_keywords(item), self_keyword(item.title)} - {""}:
            owners.setdefault(keyword, set()).add(item.id)
    queries = dataset.queries["test"]
    found = artefact.query_keywords(queries)
    runs = {
        query.id: frozenset().union(
            *(owners.get(word, ()) for word in {*keywords, self_keyword(query.text)})
        )
        for query, keywords in zip(queries, found, strict=True)
    }
    relevant = {query.id: dataset.relevant[query.id] for query in queries}

    def figures(retrieved: Mapping[str, object]) -> dict[str, float]:
        return full_set({query: frozenset(ids) for query, ids in retrieved.items()}, relevant).means  # type: ignore[call-overload]

    means = figures(runs)
    notes = {
        **{measure: round(value, 4) for measure, value in means.items()},
        "exact cut": round(figures(exact_cut(artefact, dataset, "test").runs)["f1"], 4),
        "bm25": round(figures(bm25(dataset, "test").runs)["f1"], 4),
        "keywords a query": round(sum(map(len, found)) / len(found), 1),
    }
    return Row(f"{name}: 1 - test F1", 1 - means["f1"], "", 1 - least, notes=notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=", ".join(TARGETS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
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
