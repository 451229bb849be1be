"""What the prompt variants `search` and `edit` show beside an entity: what one of our own
retrievers proposes (paper, section 5.5).

Three sources: titles of the best items by BM25, keywords by the ranker of `statistical`, and the
set that `statistical` writes with what may be edited of it. How they are put into a prompt is
`cogr.prompts`; which source is the settings' choice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from cogr.keywords import self_keyword
from cogr.metrics import f1_of
from cogr.prompts import Prompt
from cogr.records import Dataset, Entity, Item, Query, Side, self_text
from cogr.settings import Settings
from cogr.store import Store
from indexers.generators import Completion, Generator, batched
from indexers.generators.statistical.generator import Statistical

if TYPE_CHECKING:
    from indexers.generators.statistical.edits import EditState

Proposal = tuple[str, float]
"""A title or keyword, and its source's confidence in it, 0 to 1."""

SEPARATORS = {"bm25": "; ", "statistical": ", ", "edits": "\nCandidates: "}
"""Separators in a prompt. Semicolons separate titles, which are long; keywords look as they do in
an answer; a prompt to edit has two lists, the set and the candidates.
"""

_VERSION = 1
_BATCH = 64
_SEGMENT = 2048


@dataclass(frozen=True, slots=True)
class Move:
    """A keyword that may be dropped or added.

    Attributes:
        word: the keyword.
        finds: items that have it.
        alone: items that no other keyword of the set finds.
        points: change of expected F1, times 100, when it is dropped (a keyword of the set) or
            added.
    """

    word: str
    finds: int
    alone: int
    points: int

    def __str__(self) -> str:
        return f"{self.word} ({self.finds}/{self.alone} {self.points:+d})"


@dataclass(frozen=True, slots=True)
class Choices:
    """A query's keywords by `statistical`, without ordering keywords, and candidate additions, the
    most promising first.
    """

    keywords: Sequence[Move]
    candidates: Sequence[Move]

    @property
    def words(self) -> list[str]:
        """All keywords, as a prompt shows them."""
        return [move.word for move in (*self.keywords, *self.candidates)]


class Sources(Protocol):
    """The settings, data and store that proposals are made from."""

    settings: Settings

    @property
    def dataset(self) -> Dataset: ...

    @property
    def store(self) -> Store: ...

    def generator(self, side: Side, name: str | None = None) -> Generator: ...


def search_results(
    sources: Sources, side: Side, entities: Sequence[Entity]
) -> Callable[[Entity], Sequence[str]]:
    """A function from an entity to the texts that its prompt shows. It knows these entities only;
    their texts are computed before it returns.

    Raises MissingExtraError without the extra `statistical`, GeneratorError where nothing can be
    learned from the labels.
    """
    source = sources.settings.prompts.source(side)
    if source == "edits":
        shown = {id_: _two_lists(found) for id_, found in choices(sources, entities).items()}
        return lambda entity: shown[entity.id]
    # BM25's scores compare a title with the best one; they are no probabilities.
    scored = source == "statistical"
    spelled = {
        id_: [_spell(*proposal, scored=scored) for proposal in own]
        for id_, own in proposals(sources, side, entities).items()
    }
    return lambda entity: spelled[entity.id]


def proposals(
    sources: Sources, side: Side, entities: Sequence[Entity]
) -> Mapping[str, list[Proposal]]:
    """Entity id -> what the side's prompt variant proposes for it, best first.

    Raises as `search_results` does.
    """
    settings = sources.settings.prompts
    if settings.source(side) == "bm25":
        return by_bm25(sources.dataset.items, entities, settings.search_results)
    with sources.generator("query", "statistical") as generator:
        return by_statistical(
            cast("Statistical", generator), entities, settings.search_results, sources.store
        )


def choices(sources: Sources, queries: Sequence[Entity]) -> Mapping[str, Choices]:
    """Query id -> the contents of a prompt to edit its keywords: the whole set, and candidates, up
    to `prompts.search_results` keywords in all. Raises as `search_results` does.
    """
    with sources.generator("query", "statistical") as generator:
        return by_edits(
            cast("Statistical", generator),
            queries,
            sources.settings.prompts.search_results,
            sources.store,
        )


def _two_lists(found: Choices) -> list[str]:
    return [", ".join(map(str, moves)) or "none" for moves in (found.keywords, found.candidates)]


def _spell(text: str, sure: float, *, scored: bool) -> str:
    return f"{text} ({min(9, int(10 * sure))})" if scored else text


def by_bm25(
    items: Sequence[Item], entities: Sequence[Entity], size: int
) -> Mapping[str, list[Proposal]]:
    """Titles of the best items for a query's text or an item's title, never its own; the confidence
    is the score relative to the best one.

    Titles are normalised as keywords are, so that a title that a model copies retrieves its item.
    """
    from indexers.text import Lexical

    lexical = Lexical(items)
    found: dict[str, list[Proposal]] = {}
    for entity in entities:
        ranked = lexical.rank(self_text(entity), size + 1)
        own = entity.id if isinstance(entity, Item) else None
        others = [(self_keyword(item.title), score) for item, score in ranked if item.id != own][
            :size
        ]
        found[entity.id] = [(title, score / others[0][1]) for title, score in others]
    return found


def by_statistical(
    generator: Statistical, entities: Sequence[Entity], size: int, store: Store
) -> Mapping[str, list[Proposal]]:
    """Keywords by `statistical`, its own choice first; the confidence is the mean probability of
    their owners.

    For training queries they are out of fold; for items they are the items' keywords. They are
    cached in the store, as generated keywords are, because a query takes some milliseconds.
    """
    found = _kept(
        generator, entities, store, "proposals", size, lambda some: _propose(generator, some, size)
    )
    return {id_: [(text, sure) for text, sure in own] for id_, own in found.items()}


def by_edits(
    generator: Statistical, queries: Sequence[Entity], size: int, store: Store
) -> Mapping[str, Choices]:
    """The set of each query, and candidates up to `size` keywords in all. Those of training queries
    are out of fold. They are cached in the store.
    """
    found = _kept(
        generator, queries, store, "choices", size, lambda some: _choose(generator, some, size)
    )
    return {
        id_: Choices(*([Move(*move) for move in moves] for moves in own))
        for id_, own in found.items()
    }


def _kept(
    generator: Statistical,
    entities: Sequence[Entity],
    store: Store,
    what: str,
    size: int,
    make: Callable[[Sequence[Entity]], Sequence[Any]],
) -> dict[str, Any]:
    """id -> JSON value of each entity, read from the store where it is cached, else made now."""
    from indexers.rebuild.cache import GenerationCache, Keys, request_key

    cache = GenerationCache(
        store, {**generator.fingerprint, what: size, f"version of {what}": _VERSION}
    )
    # The id and the text decide; there is no prompt yet.
    keys = Keys.of(request_key(e.id, Prompt("", _text(e)), "entity") for e in entities)
    for missing in batched(cache.missing(keys), _SEGMENT):
        made = make([entities[i] for i in missing])
        cache.add(
            [
                (keys[i], Completion(entities[i].id, json.dumps(own)))
                for i, own in zip(missing, made, strict=True)
            ]
        )
    answers = cache.load(keys).answers([entity.id for entity in entities], 0)
    return {a.id: json.loads(a.text) for a in answers if isinstance(a, Completion)}


def _text(entity: Entity) -> str:
    return f"{entity.title}\0{entity.text}" if isinstance(entity, Item) else entity.text


def _propose(generator: Statistical, entities: Sequence[Entity], size: int) -> list[list[Proposal]]:
    found: list[list[Proposal]] = []
    for batch in batched(entities, _BATCH):
        queries = iter(
            generator.artefact.proposals([e for e in batch if isinstance(e, Query)], size)
        )
        for entity in batch:
            if isinstance(entity, Item):
                found.append(
                    [(word, 1.0) for word in generator.artefact.item_keywords(entity)[:size]]
                )
            else:
                found.append(next(queries))
    return found


def _choose(generator: Statistical, queries: Sequence[Entity], size: int) -> list[Any]:
    known = generator.artefact.keywords.keywords
    return [
        [[astuple(move) for move in moves] for moves in _moves(board, known, size)]
        for batch in batched(queries, _BATCH)
        for board in generator.artefact.choices([e for e in batch if isinstance(e, Query)])
    ]


def _moves(board: EditState, known: Sequence[str], size: int) -> tuple[list[Move], list[Move]]:
    """The keywords of a board that may be dropped, and those that may be added."""
    covered = board.chosen @ board.owns
    found, wanted = covered > 0, board.chosen[:, None]
    moved = board.owns * np.where(wanted, covered == 1, covered == 0)
    sign = np.where(board.chosen, -1, 1)
    hits = board.forced_hits + float(board.p[found].sum())
    retrieved = board.forced.size + int(found.sum())
    after = f1_of(
        hits + sign * (moved @ board.p), retrieved + sign * moved.sum(axis=1), board.expected
    )
    points = np.rint(100 * (after - f1_of(hits, retrieved, board.expected)))
    rows = [
        Move(known[word], int(board.owners[0, row]), int(moved[row].sum()), int(points[row]))
        for row, word in enumerate(board.keywords)
    ]
    chosen = int(board.chosen.sum())
    return rows[:chosen], rows[chosen : max(chosen, size)]
