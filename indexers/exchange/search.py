"""One search, as `cogr-index search` shows it: the source of the keywords, their confidence, the
mode (keywords, words or both), the retrieved items, and the keywords that matched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from cogr.errors import MissingExtraError, SnapshotError
from cogr.keywords import cut_to_budget, parse, self_keyword
from cogr.records import Query
from cogr.snapshots import Manifest, Row, read_manifest, rounded, why_no_pair
from cogr.snapshots.manifest import Mode
from indexers.backends import Hit, Words
from indexers.generators import Completion, Request
from indexers.release.rules import rules_of
from indexers.workspace import Workspace

_APART = "Precomputed keywords are not used, because {}; publish a pair of one round."
Source = Literal["given", "index", "generator", "none"]

# Kinds that answer one query in milliseconds; a language model in process takes half a minute to
# load.
_LIVE = frozenset({"statistical", "extractive", "scripted", "openai"})


@dataclass(frozen=True)
class Answered:
    """A search's answer.

    Attributes:
        keywords: S_q ∪ {q}, the normalised query text first -> weight.
        source: source of S_q: given on the command line, precomputed in the query index, generated
            now, or none.
        confidence: expected F1 of what the keywords retrieve; None where it is unknown.
        mode: searched by the keywords, by the words in the items' titles, or by both.
        rules: the merchant's rules for this query (`publish.rules`).
        note: why precomputed keywords are not used, or titles could not be searched; "" otherwise.
        total: size of the whole retrieved set.
    """

    query: str
    keywords: Mapping[str, float]
    source: Source
    confidence: float | None
    mode: Mode
    rules: Sequence[str]
    note: str
    snapshot: str
    backend: str
    total: int
    hits: Sequence[Hit]

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        names = (
            "query",
            "source",
            "confidence",
            "mode",
            "rules",
            "note",
            "snapshot",
            "backend",
            "total",
        )
        hits = [
            {
                "id": hit.id,
                "score": float(hit.score),
                "title": hit.text,
                "matched": dict(hit.matched),
                "words": hit.words,
                **({"fields": dict(hit.fields)} if hit.fields else {}),
            }
            for hit in self.hits
        ]
        return {
            **{name: getattr(self, name) for name in names},
            "keywords": list(self.keywords),
            "weights": list(self.keywords.values()),
            "hits": hits,
        }


def search(
    workspace: Workspace,
    text: str,
    *,
    size: int = 10,
    keywords: str | None = None,
    keywords_only: bool = False,
) -> Answered:
    """Search the serving pair; a switch meanwhile does not mix two pairs.

    Args:
        keywords: comma-separated keywords, which are used alone.
        keywords_only: search by keywords only, without the query's words, however low the
            confidence is.

    Raises SnapshotError when nothing serves, ServiceError when the backend is away.
    """
    serving = workspace.backend.serving()
    if serving["item"] is None:
        raise SnapshotError("No item snapshot serves yet: run cogr-index rebuild --side item.")
    item = _manifest(workspace, serving["item"])
    own = self_keyword(text)
    queries = _manifest(workspace, serving["query"])
    apart = why_no_pair(item, queries) if item and queries else ""
    row, source = _row(workspace, text, own, keywords, serving["query"], stored=not apart)
    if not workspace.settings.keywords.weights:
        row = replace(row, weights=())
    words = None if keywords_only or source == "given" else _words(queries, text, row, source)
    result = workspace.backend.search(
        row.weighted, size=size, snapshot=serving["item"], explain=True, words=words
    )
    mode: Mode = "keywords"
    if words and not result.textless:
        mode = "text" if words.alone else "both"
    return Answered(
        query=text,
        keywords=row.weighted,
        source=source,
        confidence=row.confidence,
        mode=mode,
        rules=[str(rule) for rule in rules_of(queries, text)] if queries else [],
        note=" ".join(filter(None, [apart and _APART.format(apart), result.textless])),
        snapshot=serving["item"],
        backend=workspace.backend.name,
        total=result.total,
        hits=result.hits,
    )


def _manifest(workspace: Workspace, snapshot: str | None) -> Manifest | None:
    """None where nothing serves, or another store published it."""
    known = snapshot in workspace.store.list("snapshots")
    return read_manifest(workspace.store, snapshot) if snapshot and known else None


def _words(queries: Manifest | None, text: str, row: Row, source: Source) -> Words | None:
    """The text search in the items' titles, by the blend of the query side; without a blend, only
    where there are no keywords.
    """
    blend = queries.blend if queries else None
    boost = blend.text_boost if blend else 1.0
    if source == "none":
        return Words(text, boost)
    mode = blend.mode(row.confidence) if blend else "keywords"
    return None if mode == "keywords" else Words(text, boost, alone=mode == "text")


def _row(
    workspace: Workspace,
    text: str,
    own: str,
    given: str | None,
    queries: str | None,
    *,
    stored: bool,
) -> tuple[Row, Source]:
    """The query's row and its source: the keywords that the caller gave, else the row of the query
    snapshot (with `stored`), else a row that the snapshot's generator writes now, else the text
    alone.
    """
    row = Row("search", text, (), own=own)
    if given is not None:
        return replace(row, keywords=tuple(parse(given))), "given"
    if queries and stored and (known := workspace.backend.lookup(text, snapshot=queries)):
        return replace(known, own=own), "index"
    name = _live_generator(workspace, queries)
    if name is None:
        return row, "none"
    query = Query(row.id, text)
    request = Request(query.id, query, workspace.prompter("query", name)(query))
    with workspace.generator("query", name) as generator:
        for answer in generator.generate([request]):
            if isinstance(answer, Completion):
                words = cut_to_budget(parse(answer.text), workspace.settings.keywords.k_max)
                weights = tuple(rounded(answer.weights.get(word, 1.0)) for word in (*words, own))
                return replace(
                    row, keywords=words, weights=weights, confidence=answer.confidence
                ), "generator"
    return row, "none"


def _live_generator(workspace: Workspace, queries: str | None) -> str | None:
    """The kind that wrote the serving query side, so that a new query gets keywords of the same
    vocabulary; None if it is slow.
    """
    kind = read_manifest(workspace.store, queries).generator.get("kind") if queries else None
    try:
        name = str(kind or workspace.choice("query").name)
    except MissingExtraError:
        # A mere search must not require the packages of the query side's generator.
        return None
    return name if name in _LIVE else None
