"""What the prompt variants `search` and `proposals` show beside an entity: what one of our own
retrievers proposes (paper, section 5.5).

Two sources: titles of the best items by BM25, and keywords by the ranker of `statistical`. How they
are put into a prompt is `cogr.prompts`; which source is the settings' choice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

from cogr.keywords import self_keyword
from cogr.prompts import SEARCH_RESULTS, Prompt
from cogr.records import Dataset, Entity, Item, Query, Side, self_text
from cogr.settings import Settings
from cogr.store import Store
from indexers.generators import Completion, Generator, batched
from indexers.generators.statistical.generator import Statistical

Proposal = tuple[str, float]
"""A title or keyword, and its source's confidence in it, 0 to 1."""

SEPARATORS = {"bm25": "; ", "statistical": ", "}
"""Separators in a prompt. Semicolons separate titles, which are long; keywords look as they do in
an answer.
"""

_VERSION = 1
_BATCH = 64
_SEGMENT = 2048


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
    # BM25's scores compare a title with the best one; they are not probabilities.
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
        return by_bm25(sources.dataset.items, entities, SEARCH_RESULTS)
    with sources.generator("query", "statistical") as generator:
        return by_statistical(
            cast("Statistical", generator), entities, SEARCH_RESULTS, sources.store
        )


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
    from indexers.rebuild.cache import GenerationCache, Keys, request_key

    made_from = {"proposals": size, "version of proposals": _VERSION}
    cache = GenerationCache(store, {**generator.fingerprint, **made_from})
    # The id and the text decide; there is no prompt yet.
    keys = Keys.of(request_key(e.id, Prompt("", _text(e)), "entity") for e in entities)
    for missing in batched(cache.missing(keys), _SEGMENT):
        found = zip(missing, _propose(generator, [entities[i] for i in missing], size), strict=True)
        cache.add([(keys[i], Completion(entities[i].id, json.dumps(own))) for i, own in found])
    answers = cache.load(keys).answers([entity.id for entity in entities], 0)
    return {
        answer.id: [(text, sure) for text, sure in json.loads(answer.text)]
        for answer in answers
        if isinstance(answer, Completion)
    }


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
