"""Every way to retrieve, side by side: `cogr-train compare`.

A method is a class in the file of its family; it is imported when it is asked for, so that no
method needs another one's libraries.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import cast

from trainers.rivals.protocol import Method

_PLACES: dict[str, str] = {
    "bm25": "sparse:BM25",
    "bm25+rm3": "sparse:RM3",
    "opensearch": "sparse:OpenSearchText",
    "synonyms": "sparse:Synonyms",
    "doc2query": "sparse:Doc2Query",
    "splade": "trained.splade:Splade",
    "neural-sparse": "trained.splade:NeuralSparse",
    "embeddings": "trained.dense:ZeroShot",
    "dpr": "trained.dense:DPR",
    "ance": "trained.dense:ANCE",
    "dsi": "trained.generative:DSI",
    "dsi-qg": "trained.generative:DSIQG",
    "ripor": "trained.generative:Ripor",
    "deepretrieval": "trained.policies:DeepRetrieval",
    "quester": "trained.policies:Quester",
    "cogr-frozen": "keyword:CogrFrozen",
    "cogr": "keyword:Cogr",
    "statistical": "keyword:StatisticalKeywords",
    "edited": "keyword:EditedKeywords",
    "extractive": "keyword:ExtractiveKeywords",
    "nearest": "bounds:NearestQueries",
    "nearest+bm25": "bounds:Fused",
    "oracle-keywords": "bounds:OracleKeywords",
    "perfect-cutoff": "bounds:PerfectCutoff",
}
"""Name -> file of this package and class in it."""


def _make(place: str) -> Method:
    module, _, name = place.partition(":")
    return cast(Method, getattr(importlib.import_module(f"trainers.rivals.{module}"), name)())


METHODS: dict[str, Callable[[], Method]] = {
    name: partial(_make, place) for name, place in _PLACES.items()
}
"""Every method by its name on the command line, in the order of the tables."""
