"""A node with the k-NN plugin, and embeddings for it: LSA, which needs no model and stands in for a
team's own.

The plugin is Maven Central's for OpenSearch 3.5.0; its engine is Lucene's HNSW, no native library
is needed.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _servers import started
from numpy.typing import NDArray

from cogr.records import Item
from cogr.settings.serving import OpenSearchSettings
from indexers.text import Analyser
from ops.servers import (
    OpenSearchSpec,
    find_opensearch,
    made_once,
    maven,
    servers_folder,
)

VERSION = "3.5.0"
DIMENSIONS = 128
MAPPING = {
    "type": "knn_vector",
    "dimension": DIMENSIONS,
    "method": {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"},
}


def say(message: str) -> None:
    """Standard output is the table's."""
    print(message, file=sys.stderr)


@contextmanager
def node() -> Iterator[OpenSearchSettings]:
    """A node of this process with the plugin, gone at the end."""
    base = find_opensearch(VERSION, say)

    def with_plugin(scratch: Path) -> Path:
        home = Path(shutil.copytree(base, scratch / "home"))
        artifact = f"org.opensearch.plugin:opensearch-knn:{VERSION}.0:zip"
        maven("unpack", artifact, home / "plugins" / "opensearch-knn")
        return home

    home = made_once(servers_folder() / "distributions" / f"opensearch-{VERSION}-knn", with_plugin)
    wanted = OpenSearchSpec(name=f"bench-knn-{os.getpid()}", home=home, port=0, options="-Xmx1g")
    with started(wanted) as state:
        yield OpenSearchSettings(url=state.url)


class Lsa:
    """Latent semantic analysis of items' stems (Deerwester et al. 1990): TF-IDF by stems, then a
    truncated SVD.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        from scipy.sparse import diags
        from scipy.sparse.linalg import svds

        self._analyser = Analyser()
        stems = [self._analyser.stems(f"{item.title} {item.text}") for item in items]
        self._columns = {
            stem: at for at, stem in enumerate(sorted({stem for some in stems for stem in some}))
        }
        counts = self._counts(stems)
        frequency = np.bincount(counts.indices, minlength=len(self._columns))
        self._weights = np.log(1 + len(items) / frequency)
        counts.data = 1 + np.log(counts.data)
        matrix = counts @ diags(self._weights)
        _, _, axes = svds(matrix, k=DIMENSIONS, random_state=0)
        self._axes = axes.T
        self.items = _unit(matrix @ self._axes)

    def query(self, text: str) -> list[float]:
        """A query's embedding; of a query of unknown words, that of the first stem."""
        counts = self._counts([self._analyser.stems(text)])
        vector = (counts.toarray()[0] * self._weights) @ self._axes
        embedding = _unit(vector[None] if vector.any() else self._axes[:1])[0]
        return [*map(float, embedding)]

    def _counts(self, texts: Sequence[Sequence[str]]) -> Any:
        from scipy.sparse import csr_matrix

        known = [
            [self._columns[stem] for stem in stems if stem in self._columns] for stems in texts
        ]
        indptr = np.cumsum([0, *map(len, known)])
        indices = np.array([column for some in known for column in some], np.int32)
        found = csr_matrix(
            (np.ones(len(indices)), indices, indptr), shape=(len(texts), len(self._columns))
        )
        found.sum_duplicates()
        return found


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.full_like(vectors, DIMENSIONS**-0.5)
    np.divide(vectors, lengths, out=unit, where=lengths > 0)
    return unit
