"""F1 of retrieved sets."""

from __future__ import annotations

from collections.abc import Mapping

from _new_items import exact_cut

from cogr.metrics import full_set
from cogr.records import Dataset, Split
from indexers.generators.statistical.artefact import Artefact


def cut_f1(dataset: Dataset, artefact: Artefact, split: Split = "test") -> float:
    """Macro F1 of what the ranker retrieves by its own cut."""
    return float(exact_cut(artefact, dataset, split).row(dataset, split)["f1"])


def f1(dataset: Dataset, runs: Mapping[str, frozenset[str]]) -> float:
    """Macro F1 of retrieved sets over the queries of `runs`."""
    return full_set(runs, {query: dataset.relevant[query] for query in runs}).means["f1"]
