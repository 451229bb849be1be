"""One rule from a text to an answer, for everything that answers: `cogr-index search`, exports,
`evaluate`, the playground and the query expander. And `cogr-index diff`: what changed from one
snapshot to another, in keywords and entities.

A merchant's rules say what else a text reads as. Each reading has the keywords that are precomputed
for it, or those that the model of the pair writes (`indexers.live`), or none. Then one search finds
the set by keywords and literal matches, and more by the texts.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

from cogr.differences import Difference, differences
from cogr.errors import CogrError, SnapshotError, UserError
from cogr.keywords import parse, self_keyword
from cogr.settings import Settings
from cogr.snapshots import Row, Snapshot
from indexers.backends import MAX_CLAUSES, Hit, Pair, SearchResult, Words, text_boost
from indexers.live import LiveModel, live_model
from indexers.release.rules import Rules, rules_of
from indexers.serving import what_serves
from indexers.tables import Table
from indexers.workspace import Workspace

SearchSource = Literal["given", "cache", "index", "model", "none"]
_SPOKEN: Mapping[SearchSource, str] = {
    "given": "given",
    "cache": "cached",
    "index": "precomputed",
    "model": "generated now",
    "none": "the query text alone",
}
RowPlace = Literal["index", "model"]
PLACES: Sequence[RowPlace] = ("index", "model")
"""Where keywords of a text are looked for, in this order; without any it is searched alone."""


@dataclass(frozen=True)
class Found:
    """What a query is searched by.

    Attributes:
        keywords: S_q ∪ {q}, the normalised query text first -> weight.
        source: source of S_q: given by the caller, cached by the expander, precomputed in the
            query index, written now by the model of the pair, or none.
        confidence: expected F1 of what the keywords retrieve; None where it is unknown.
        words: the text, and what rules say it also reads as.
    """

    keywords: Mapping[str, float]
    source: SearchSource
    confidence: float | None
    words: Words

    @classmethod
    def of(
        cls, text: str, row: Row | None, source: SearchSource, rules: Rules, of: Settings
    ) -> Self:
        """By the row of a query, which `together` makes, and the settings."""
        own = self_keyword(text)
        kept = replace(row or Row("search", text, ()), own=own)
        kept = kept if of.keywords.weights else kept.unweighted
        keywords = dict([*kept.weighted.items()][:MAX_CLAUSES])
        words = Words(text, text_boost(kept.weights, of.serving.blend), rules.also(text))
        return cls(keywords, source if row else "none", kept.confidence, words)


def together(own: str, rows: Sequence[Row]) -> Row | None:
    """The rows of what a query reads as, its own first, as one: each keyword once, with its weight
    in the first row that has it. None without rows.
    """
    if len(rows) < 2:
        return rows[0] if rows else None
    merged: dict[str, float] = {}
    for word, weight in (pair for row in rows for pair in row.weighted.items()):
        merged.setdefault(word, weight)
    last = merged.pop(own, 1.0)
    plain = last == 1 and all(weight == 1 for weight in merged.values())
    sure = next((row.confidence for row in rows if row.confidence is not None), None)
    weights = () if plain else (*merged.values(), last)
    return Row(rows[0].id, rows[0].text, (*merged,), "", weights, sure, own)


class Searcher:
    """A pair of snapshots, opened to answer queries; by default what serves, whatever is switched
    meanwhile.

    Args:
        lookup: gives the row of a text in the query snapshot; the backend by default.

    Raises SnapshotError where no item snapshot serves, ServiceError where the backend is away.
    """

    def __init__(
        self,
        workspace: Workspace,
        pair: Pair | None = None,
        lookup: Callable[[str], Row | None] | None = None,
    ) -> None:
        self.workspace, self.pair = workspace, pair or what_serves(workspace)
        self._lookup = lookup or self._in_backend
        if self.pair.item is None:
            raise SnapshotError(f"No item snapshot serves: run {self.pair.advice}.")
        self.item = self.pair.item.snapshot
        self.query = self.pair.ids["query"]
        self.notes = [*self.pair.problems]

    @cached_property
    def rules(self) -> Rules:
        """The merchant's rules that the query snapshot was made with."""
        return rules_of(self.workspace.store, self.query)

    @cached_property
    def _model(self) -> LiveModel | None:
        try:
            return live_model(self.workspace, self.pair)
        except CogrError as error:
            self.notes.append(f"No model answers unknown queries: {error}")
            return None

    def _look(self, place: RowPlace, text: str) -> Row | None:
        if place == "model":
            return self._model.answer(text) if text and self._model else None
        return self._lookup(text) if text and self.pair.matches else None

    def _in_backend(self, text: str) -> Row | None:
        return self.workspace.backend.lookup(text, snapshot=self.query) if self.query else None

    def row_for(self, text: str) -> Found:
        """What a text is searched by. Raises ServiceError."""
        own, rows = self_keyword(text), list[tuple[RowPlace, Row]]()
        for reading in self.rules.readings(text):
            looked = ((place, self._look(place, reading)) for place in PLACES)
            rows += [(place, row) for place, row in looked if row is not None][:1]
        row = together(own, [row for _, row in rows])
        source: SearchSource = rows[0][0] if rows else "none"
        return Found.of(text, row, source, self.rules, self.workspace.settings)

    def find(
        self, query: Found, size: int, *, words: bool = True, explain: bool = False
    ) -> SearchResult:
        """The best hits of what a query is searched by; without `words` by its keywords alone."""
        return self.workspace.backend.search(
            query.keywords,
            snapshot=self.item,
            size=size,
            explain=explain,
            words=query.words if words else None,
        )

    def whole_set(self, query: Found) -> Sequence[Hit]:
        """Every hit of the set, however many there are."""
        boosts, words = query.keywords, query.words
        return self.workspace.backend.retrieved(boosts, snapshot=self.item, words=words).hits


@dataclass(frozen=True)
class Answered(Found):
    """A search's answer, and what it was searched by.

    Attributes:
        rules: the merchant's rules for this query (`publish.rules`).
        note: why precomputed keywords are not used, or no model answers; "" otherwise.
        total: size of the set: what the keywords find, and literal matches.
        more: how many other items the text finds; they come after the set.
    """

    query: str
    rules: Sequence[str]
    note: str
    snapshot: str
    backend: str
    total: int
    more: int
    hits: Sequence[Hit]

    def as_dict(self) -> dict[str, Any]:
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
    """Search what serves.

    Raises SnapshotError when nothing serves, ServiceError when the backend is away, and UserError
    for neither text nor keywords.
    """
    if not text.strip() and not keywords:
        raise UserError('The query is empty: give a text, such as "green sofa".')
    searcher = Searcher(workspace)
    if keywords is None:
        query = searcher.row_for(text)
    else:
        given = Row("search", text, tuple(parse(keywords)))
        query = Found.of(text, given, "given", searcher.rules, workspace.settings)
    words = not keywords_only and keywords is None
    result = searcher.find(query, size, words=words, explain=True)
    return Answered(
        **vars(query),
        query=text,
        rules=[str(rule) for rule in searcher.rules.about(text)],
        note=" ".join(searcher.notes),
        snapshot=searcher.item,
        backend=workspace.backend.name,
        total=result.total,
        more=result.more,
        hits=result.hits,
    )


NAMED = 10
"""Most keywords and entities of a kind that `diff` names."""


def diff(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """What changed from one snapshot of a side to another, for --json: how many entities are `new`,
    `gone` and `changed` (text or keywords), or differ in `other_fields` alone; keywords `gained`
    and `lost` with the number of entities, most first; the most changed `entities`. Raises
    SnapshotError.
    """
    counts, keywords = Counter(new=0, gone=0, changed=0, other_fields=0), Counter[str]()
    counted = _counted(differences(before, after), counts, keywords)
    most = heapq.nlargest(NAMED, counted, key=lambda one: len(one.gained) + len(one.lost))
    entities = [
        {"id": one.id, "text": row.text, "gained": one.gained, "lost": one.lost}
        for one in most
        if (row := one.after or one.before)
    ]
    words = {"gained": _most(+keywords), "lost": _most(-keywords)}
    return {"before": before.id, "after": after.id, **counts, **words, "entities": entities}


def _most(keywords: Counter[str]) -> list[tuple[str, int]]:
    return sorted(keywords.items(), key=lambda pair: (-pair[1], pair[0]))[:NAMED]


def _counted(
    changes: Iterable[Difference], counts: Counter[str], keywords: Counter[str]
) -> Iterator[Difference]:
    for one in changes:
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
