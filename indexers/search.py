"""One search, as `cogr-index search` shows it: the source of the keywords, their confidence, the
set that keywords and literal matches find, what more the text finds, and the keywords that matched.
And `cogr-index diff`: what changed from one snapshot to another, in keywords and entities.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from cogr.differences import Difference, differences
from cogr.errors import MissingExtraError, SnapshotError, UserError
from cogr.keywords import parse, self_keyword
from cogr.records import Query
from cogr.snapshots import Manifest, Row, Snapshot, read_manifest, why_no_pair
from indexers.backends import Hit, Words, text_boost
from indexers.generators import Completion, Request, query_row
from indexers.release.rules import rules_of
from indexers.tables import Table
from indexers.workspace import Workspace

_APART = "Precomputed keywords are not used, because {}; publish a pair of one round."
Source = Literal["given", "index", "generator", "none"]
_SPOKEN: Mapping[Source, str] = {
    "given": "given",
    "index": "precomputed",
    "generator": "generated now",
    "none": "the query text alone",
}

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
        rules: the merchant's rules for this query (`publish.rules`).
        note: why precomputed keywords are not used, or texts could not be searched; "" otherwise.
        total: size of the set: what the keywords find, and literal matches.
        more: how many other items the text finds; they come after the set.
    """

    query: str
    keywords: Mapping[str, float]
    source: Source
    confidence: float | None
    rules: Sequence[str]
    note: str
    snapshot: str
    backend: str
    total: int
    more: int
    hits: Sequence[Hit]

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        shown = "query source confidence rules note snapshot backend total more"
        hits = [
            {
                "id": hit.id,
                "tier": hit.tier,
                "score": float(hit.score),
                "title": hit.text,
                "matched": dict(hit.matched),
                "words": hit.words,
                **({"fields": dict(hit.fields)} if hit.fields else {}),
            }
            for hit in self.hits
        ]
        return {
            **{name: getattr(self, name) for name in shown.split()},
            "keywords": list(self.keywords),
            "weights": list(self.keywords.values()),
            "hits": hits,
        }

    def table(self, *, explain: bool = False) -> Table:
        """The query's keywords, the best items with their extra fields, and which keyword matched
        each; with `explain` also where the keywords come from, weights, parts of each score, tiers.
        """
        rows = [_row_of(hit, explain=explain) for hit in self.hits]
        source = f" ({_SPOKEN[self.source]})" if explain else ""
        words = [
            f"{word} ({weight:g})" if explain and weight != 1 else word
            for word, weight in self.keywords.items()
        ]
        sure = "" if self.confidence is None else f"; confidence {self.confidence:.2f}"
        notes = [f"Keywords{source}: {', '.join(words)}{sure}."]
        notes += [f"Rules: {'; '.join(self.rules)}."] if self.rules else []
        more = f", {self.more:,} more by text" if self.more else ""
        return Table(f"{self.query}: {self.total:,} items{more}", rows, notes)


def _row_of(hit: Hit, *, explain: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"score": float(hit.score), "id": hit.id, "title": hit.text}
    if explain:
        parts = sorted(hit.matched.items(), key=lambda pair: -pair[1])
        parts += [("words of title and text", hit.words)] if hit.words else []
        row |= {
            "tier": hit.tier,
            "matched": ", ".join(f"{word} {part:.3f}" for word, part in parts),
        }
    else:
        row["matched"] = ", ".join(hit.matched) + (" and its words" if hit.words else "")
    return {**row, **hit.fields}


def search(
    workspace: Workspace,
    text: str,
    *,
    size: int = 10,
    keywords: str | None = None,
    keywords_only: bool = False,
) -> Answered:
    """Search the serving pair; a switch meanwhile does not mix two pairs.

    Raises SnapshotError when nothing serves, ServiceError when the backend is away, and UserError
    for neither text nor keywords.
    """
    if not text.strip() and not keywords:
        raise UserError('The query is empty: give a text, such as "green sofa".')
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
    boost = text_boost(row.weights, workspace.settings.serving.blend)
    words = None if keywords_only or source == "given" else Words(text, boost)
    result = workspace.backend.search(
        row.weighted, size=size, snapshot=serving["item"], explain=True, words=words
    )
    return Answered(
        query=text,
        keywords=row.weighted,
        source=source,
        confidence=row.confidence,
        rules=[str(rule) for rule in rules_of(queries, text)] if queries else [],
        note=" ".join(filter(None, [apart and _APART.format(apart), result.textless])),
        snapshot=serving["item"],
        backend=workspace.backend.name,
        total=result.total,
        more=result.more,
        hits=result.hits,
    )


def _manifest(workspace: Workspace, snapshot: str | None) -> Manifest | None:
    known = snapshot in workspace.store.list("snapshots")
    return read_manifest(workspace.store, snapshot) if snapshot and known else None


def _row(
    workspace: Workspace,
    text: str,
    own: str,
    given: str | None,
    queries: str | None,
    *,
    stored: bool,
) -> tuple[Row, Source]:
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
                return query_row(answer, query, workspace.settings.keywords.k_max), "generator"
    return row, "none"


def _live_generator(workspace: Workspace, queries: str | None) -> str | None:
    kind = read_manifest(workspace.store, queries).generator.get("kind") if queries else None
    try:
        name = str(kind or workspace.choice("query").name)
    except MissingExtraError:
        # A mere search must not require the packages of the query side's generator.
        return None
    return name if name in _LIVE else None


NAMED = 10
"""Most keywords and entities of a kind that `diff` names."""


def diff(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """What changed from one snapshot of a side to another, for --json: how many entities are `new`,
    `gone` and `changed` (text or keywords), or differ in `other_fields` alone; keywords `gained`
    and `lost` with the number of entities, most first; the most changed `entities`. Raises
    SnapshotError.
    """
    counts, keywords = Counter(new=0, gone=0, changed=0, other_fields=0), Counter[str]()
    found = _counted(differences(before, after), counts, keywords)
    most = heapq.nlargest(NAMED, found, key=lambda one: len(one.gained) + len(one.lost))
    entities = [
        {"id": one.id, "text": row.text, "gained": one.gained, "lost": one.lost}
        for one in most
        if (row := one.after or one.before)
    ]
    lost = Counter({word: -count for word, count in keywords.items()})
    words = {"gained": _most(keywords), "lost": _most(lost)}
    return {"before": before.id, "after": after.id, **counts, **words, "entities": entities}


def _most(keywords: Counter[str]) -> list[tuple[str, int]]:
    return sorted((+keywords).items(), key=lambda pair: (-pair[1], pair[0]))[:NAMED]


def _counted(
    found: Iterable[Difference], counts: Counter[str], keywords: Counter[str]
) -> Iterator[Difference]:
    for one in found:
        if one.before is None or one.after is None:
            counts["new" if one.before is None else "gone"] += 1
        elif (one.before.text, one.before.keywords) == (one.after.text, one.after.keywords):
            counts["other_fields"] += 1
            continue
        else:
            counts["changed"] += 1
        keywords.update(one.gained)
        keywords.subtract(one.lost)
        yield one
