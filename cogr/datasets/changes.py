"""Changes of one side: entities that are new or other than before, and ids that are gone. Read from a file, or told by a data set.

What a change means for keywords and indexes is `indexers.updating`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from cogr.datasets.building import content_hash
from cogr.datasets.fields import check_id, id_field, number_field, text_field
from cogr.datasets.reading import Place, json_records, lines
from cogr.errors import DataError
from cogr.items import Items, ItemsSpool, in_id_order
from cogr.keywords import self_keyword
from cogr.records import SPLITS, Dataset, Entity, Item, Query, Side
from cogr.strings import SortedStrings


@dataclass(frozen=True)
class Changes:
    """What changed on one side.

    Attributes:
        side: which side.
        upserts: new and changed entities, by id.
        deletes: ids of entities that are gone.
    """

    side: Side
    upserts: Mapping[str, Entity]
    deletes: frozenset[str]

    def __len__(self) -> int:
        return len(self.upserts) + len(self.deletes)

    def applied_to(self, dataset: Dataset) -> Dataset:
        """The data set after the changes. Labels stay; those of a gone item are gone with it, and a new query has none."""
        changed = self._with_items(dataset) if self.side == "item" else self._with_queries(dataset)
        return replace(changed, dataset_hash=content_hash(changed))

    def _with_items(self, dataset: Dataset) -> Dataset:
        relevant = {query: kept for query, ids in dataset.relevant.items() if (kept := ids - self.deletes)}
        judged = {
            query: {item: grade for item, grade in grades.items() if item not in self.deletes}
            for query, grades in dataset.judged.items()
            if query in relevant
        }
        queries = {split: [q for q in dataset.queries.get(split, ()) if q.id in relevant] for split in SPLITS}
        bare = [query for query in dataset.all_queries() if query.id not in relevant]
        return replace(
            dataset,
            items=self._changed_items(dataset),
            queries=queries,
            relevant=relevant,
            judged=judged,
            unlabelled=(*dataset.unlabelled, *bare),
        )

    def _changed_items(self, dataset: Dataset) -> Items:
        """A changed item keeps its place, a new one comes last."""
        spool, new = ItemsSpool(), dict[str, Any](self.upserts)
        for item in dataset.items:
            changed = new.pop(item.id, item)
            if item.id not in self.deletes:
                spool.add(changed)
        for item in new.values():
            spool.add(item)
        return spool.items()

    def _with_queries(self, dataset: Dataset) -> Dataset:
        upserts: Mapping[str, Any] = self.upserts
        queries = {
            split: [upserts.get(q.id, q) for q in dataset.queries.get(split, ()) if q.id not in self.deletes]
            for split in SPLITS
        }
        labelled = {query.id for some in queries.values() for query in some}
        unlabelled = {query.id: query for query in dataset.unlabelled if query.id not in self.deletes} | {
            id_: query for id_, query in upserts.items() if id_ not in labelled
        }
        return replace(
            dataset,
            queries=queries,
            relevant={id_: ids for id_, ids in dataset.relevant.items() if id_ in labelled},
            judged={id_: grades for id_, grades in dataset.judged.items() if id_ in labelled},
            unlabelled=tuple(unlabelled.values()),
        )


def read_changes(path: Path, side: Side) -> Changes:
    """Changes from a jsonl file (or .gz), one a line: a record as in the format `jsonl`, or {"id": ..., "deleted": true}.

    The file is a log: of several lines of one id the last one counts.

    Raises:
        DataError: it is not there, or a bad record; names file and line.
    """
    if not path.is_file():
        raise DataError(
            f"The file of changes {path} is not there; write one JSON object a line, with id, title and text."
        )
    upserts: dict[str, Entity] = {}
    deletes: dict[str, None] = {}
    for place, record in json_records(path):
        id_ = id_field(record, "id", place)
        upserts.pop(id_, None)
        deletes.pop(id_, None)
        if _deleted(record, place):
            deletes[id_] = None
        else:
            upserts[id_] = _entity(record, id_, side, place)
    return Changes(side, upserts, frozenset(deletes))


def _deleted(record: Mapping[str, Any], place: Place) -> bool:
    deleted = record.get("deleted", False)
    if not isinstance(deleted, bool):
        raise DataError(f"{place}: 'deleted' is {deleted!r}; write true or false.")
    return deleted


def _entity(record: Mapping[str, Any], id_: str, side: Side, place: Place) -> Entity:
    title, text = text_field(record, "title", place), text_field(record, "text", place)
    title, text = title.replace("\0", ""), text.replace("\0", "")
    if side == "item":
        if record.get("title") is None and record.get("text") is None:
            raise DataError(
                f"{place}: the item has neither 'title' nor 'text'; give it one of them, or \"deleted\": true."
            )
        return Item(id_, title, text)
    if not text.strip():
        raise DataError(f'{place}: the query {id_!r} has no text; write one, or "deleted": true.')
    return Query(id_, text, number_field(record, "weight", place, default=1.0))


def read_ids(path: Path) -> list[str]:
    """Ids from a file, one a line; blank lines are left out. Raises DataError."""
    if not path.is_file():
        raise DataError(f"The file of ids {path} is not there; write one id a line.")
    ids = ((number, line.strip()) for number, line in lines(path))
    return list(dict.fromkeys(check_id(id_, "id", Place(path, number)) for number, id_ in ids if id_))


def changes_of_ids(dataset: Dataset, side: Side, ids: Collection[str], known: Collection[str]) -> Changes:
    """What the data set says of these ids: its own entities are upserts, ids that only `known` has are deletes.

    Raises:
        DataError: an id that neither has.
    """
    asked = frozenset(ids)
    entities = {entity.id: entity for entity in dataset.entities(side) if entity.id in asked}
    for id_ in ids:
        if id_ not in entities and id_ not in known:
            raise DataError(
                f"The id {id_!r} is neither in the data set {dataset.name} nor in the snapshot; correct it."
            )
    upserts = {id_: entities[id_] for id_ in ids if id_ in entities}
    return Changes(side, upserts, frozenset(id_ for id_ in ids if id_ not in entities))


def changes_since(dataset: Dataset, side: Side, since: datetime, known: SortedStrings) -> Changes:
    """Entities of the data set whose `updated` is not before this time; ids that only `known` has are deletes.

    Raises:
        DataError: no entity of the side says when it was updated.
    """
    updated = dataset.updated.get(side, {})
    if not updated:
        raise DataError(
            f"No {side} of the data set {dataset.name} has a field 'updated', which --since goes by; add it, or name the "
            "changes with --changed or --ids."
        )
    entities = dataset.entities(side)
    upserts = {entity.id: entity for entity in entities if entity.id in updated and updated[entity.id] >= since}
    return Changes(side, upserts, frozenset(_absent(known, in_id_order(entities))))


def _absent(known: Iterable[str], entities: Iterable[Entity]) -> Iterator[str]:
    """Of the known ids those that no entity has; both ascending."""
    there = (entity.id for entity in entities)
    next_there = next(there, None)
    for id_ in known:
        while next_there is not None and next_there < id_:
            next_there = next(there, None)
        if id_ != next_there:
            yield id_


def changes_of_log(path: Path, min_count: int, known: Collection[str]) -> Changes:
    """Queries of a search log that became frequent: a text a line, or a text, a tab and how often it was asked.

    Spellings that are normalised to one text count together; the most frequent one is the query's text. The id comes from
    the normalised text, so that a log that is read twice changes nothing. Memory: the distinct texts of the log.

    Args:
        min_count: how often a query must have been asked.
        known: normalised texts that have keywords already.

    Raises:
        DataError: the file is not there, or a count is none; names file and line.
    """
    if not path.is_file():
        raise DataError(f"The log {path} is not there; write one query a line, or a query, a tab and a count.")
    spellings: dict[str, Counter[str]] = {}
    for number, line in lines(path):
        text, tab, count = line.strip().partition("\t")
        if own := self_keyword(text):
            spellings.setdefault(own, Counter())[text.strip()] += _count(count, Place(path, number)) if tab else 1
    frequent = {own: some for own, some in spellings.items() if own not in known and some.total() >= min_count}
    upserts = {
        id_: Query(id_, min(some, key=lambda text: (-some[text], text)))
        for id_, some in ((f"log-{sha256(own.encode()).hexdigest()[:12]}", some) for own, some in frequent.items())
    }
    return Changes("query", upserts, frozenset())


def _count(text: str, place: Place) -> int:
    if not text.strip().isdecimal():
        raise DataError(f"{place}: {text!r} is no count; write a query, a tab and how often it was asked.")
    return int(text)
