"""One search, as `cogr-index search` shows it: where the keywords come from, what they retrieve,
which keyword matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cogr.errors import MissingExtraError, SnapshotError
from cogr.keywords import NORMALISER, cut_to_budget, parse, query_keywords
from cogr.records import Query
from cogr.snapshots import read_manifest
from indexers.backends.protocol import Hit
from indexers.generators.protocol import Completion, Request
from indexers.workspace import Workspace

Source = Literal["given", "index", "generator", "none"]

# Kinds that answer one query in milliseconds; a language model in process takes half a minute to
# load.
_LIVE = frozenset({"statistical", "extractive", "scripted", "openai"})


@dataclass(frozen=True)
class Answered:
    """A search's answer.

    Attributes:
        keywords: S_q ∪ {q}, the normalised query text first.
        source: where S_q comes from: given on the command line, precomputed in the query index,
            generated now, or none.
        total: size of the whole retrieved set.
    """

    query: str
    keywords: Sequence[str]
    source: Source
    snapshot: str
    backend: str
    total: int
    hits: Sequence[Hit]

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "query": self.query,
            "keywords": list(self.keywords),
            "source": self.source,
            "snapshot": self.snapshot,
            "backend": self.backend,
            "total": self.total,
            "hits": [
                {
                    "id": hit.id,
                    "score": float(hit.score),
                    "title": hit.text,
                    "matched": dict(hit.matched),
                }
                | ({"fields": dict(hit.fields)} if hit.fields else {})
                for hit in self.hits
            ],
        }


def search(
    workspace: Workspace, text: str, *, size: int = 10, keywords: str | None = None
) -> Answered:
    """Search what serves: the pair of one moment, also when it is switched meanwhile.

    Raises SnapshotError when nothing serves, ServiceError when the backend is away.
    """
    serving = workspace.backend.serving()
    if serving["item"] is None:
        raise SnapshotError("No item snapshot serves yet: run cogr-index rebuild --side item.")
    words, source = _keywords(workspace, text, keywords, serving["query"])
    asked = query_keywords(text, words, _normaliser(workspace, serving["item"]))
    result = workspace.backend.search(asked, size=size, snapshot=serving["item"], explain=True)
    return Answered(
        text, asked, source, serving["item"], workspace.backend.name, result.total, result.hits
    )


def _normaliser(workspace: Workspace, item: str) -> str:
    """Of what serves; this version's own where another store published it."""
    known = item in workspace.store.list("snapshots")
    return read_manifest(workspace.store, item).normaliser if known else NORMALISER


def _keywords(
    workspace: Workspace, text: str, given: str | None, queries: str | None
) -> tuple[Sequence[str], Source]:
    if given is not None:
        return parse(given), "given"
    if queries and (stored := workspace.backend.lookup(text, snapshot=queries)) is not None:
        return stored.keywords, "index"
    name = _live_generator(workspace, queries)
    if name is None:
        return (), "none"
    query = Query("search", text)
    request = Request(query.id, query, workspace.prompter("query", name)(query))
    with workspace.generator("query", name) as generator:
        for answer in generator.generate([request]):
            if isinstance(answer, Completion):
                return cut_to_budget(
                    parse(answer.text), workspace.settings.keywords.k_max
                ), "generator"
    return (), "none"


def _live_generator(workspace: Workspace, queries: str | None) -> str | None:
    """The kind that wrote the serving query side, so that a new query gets keywords of the same
    vocabulary; None if it is slow.
    """
    kind = read_manifest(workspace.store, queries).generator.get("kind") if queries else None
    try:
        name = str(kind or workspace.choice("query").name)
    except MissingExtraError:
        # Who only searches need not install what would write the query side.
        return None
    return name if name in _LIVE else None
