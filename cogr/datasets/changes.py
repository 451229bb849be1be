"""Changes of one side: new and changed entities, and ids of removed ones.

They come from a file, from a data set or from a search log. `indexers.rebuild.update` applies them
to keywords and indexes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cogr.datasets.builder import DatasetOptions, content_hash, make_item, make_query
from cogr.datasets.fields import id_field, number_field, text_field
from cogr.datasets.items import Items, ItemsSpool
from cogr.datasets.query_logs import QueryLog, Searched
from cogr.datasets.reading import Place, json_records
from cogr.errors import DataError
from cogr.keywords import query_key, self_keyword
from cogr.mapped import SortedStrings, arrow_strings
from cogr.records import SPLITS, Dataset, Entity, Query, Side


@dataclass(frozen=True)
class Changes:
    """New, changed and removed entities of one side; `upserts` by id."""

    side: Side
    upserts: Mapping[str, Entity]
    deletes: frozenset[str]

    def applied_to(self, dataset: Dataset) -> Dataset:
        """The data set after the changes. Labels of removed items go; a new query has none."""
        gone, of_items = self.deletes, self.side == "item"
        lost = gone if of_items else frozenset[str]()
        relevant = {
            query: kept
            for query, ids in dataset.relevant.items()
            if (kept := ids - lost) and (of_items or query not in gone)
        }
        judged = {
            query: {item: grade for item, grade in grades.items() if item not in lost}
            for query, grades in dataset.judged.items()
            if query in relevant
        }
        every: dict[str, Any] = {query.id: query for query in dataset.entities("query")}
        if not of_items:
            after = {**every, **self.upserts}
            every = {id_: query for id_, query in after.items() if id_ not in gone}
        queries = {
            split: [every[q.id] for q in dataset.queries.get(split, ()) if q.id in relevant]
            for split in SPLITS
        }
        changed = replace(
            dataset,
            items=self._items(dataset) if of_items else dataset.items,
            queries=queries,
            relevant=relevant,
            judged=judged,
            unlabelled=tuple(query for id_, query in every.items() if id_ not in relevant),
        )
        new = (dataset.new | self.upserts.keys()) - gone if of_items else dataset.new
        # A known item whose text changed is one that the labels know.
        return replace(changed, new=changed.never_judged(new), dataset_hash=content_hash(changed))

    def _items(self, dataset: Dataset) -> Items:
        # Changed items keep their position, new ones come last.
        spool, new = ItemsSpool(), dict[str, Any](self.upserts)
        for item in dataset.items:
            changed = new.pop(item.id, item)
            if item.id not in self.deletes:
                spool.add(changed)
        for item in new.values():
            spool.add(item)
        return spool.items()


def read_changes(path: Path, side: Side, options: DatasetOptions | None = None) -> Changes:
    """Changes from a jsonl file (or .gz), one a line: a record as in the data set, or {"id": ...,
    "deleted": true}. Of several lines with one id the last one counts. Raises DataError.
    """
    latest: dict[str, Entity | None] = {}
    options = options or DatasetOptions()
    key = options.columns.id if side == "item" else "id"
    for place, record in json_records(path):
        id_, deleted = id_field(record, key, place), record.get("deleted", False)
        if not isinstance(deleted, bool):
            raise DataError(f"{place}: 'deleted' is {deleted!r}; write true or false.")
        latest.pop(id_, None)
        latest[id_] = None if deleted else _entity(record, id_, side, place, options)
    upserts = {id_: one for id_, one in latest.items() if one is not None}
    return Changes(side, upserts, frozenset(latest.keys() - upserts.keys()))


def _entity(
    record: Mapping[str, Any], id_: str, side: Side, place: Place, options: DatasetOptions
) -> Entity:
    notes = Counter[str]()
    if side == "item":
        title, text = options.columns.title_and_text(record, place)
        return make_item(place, id_, title, text, record, options, notes)
    weight = number_field(record, "weight", place, default=1.0)
    return make_query(place, id_, text_field(record, "text", place), weight, notes)


def changes_since(dataset: Dataset, side: Side, since: datetime, known: SortedStrings) -> Changes:
    """Changes of the data set since a time: entities whose `updated` is not before it, those that
    `known` (ids that have keywords) lacks, dated or not, and the ids that only `known` has, which
    are gone. Raises DataError where no entity of the side has a time of update.
    """
    updated = dataset.updated.get(side, {})
    if not updated:
        raise DataError(
            f"No {side} of the data set {dataset.name} has a field 'updated', which --since needs; "
            "add it, or name the changes with --changed."
        )
    entities = dataset.entities(side)
    there = arrow_strings(entity.id for entity in entities)
    changed = {id_ for id_, time in updated.items() if time >= since}
    changed.update(_only_in_first(there, known.arrow))
    upserts = {one.id: one for one in entities if one.id in changed}
    return Changes(side, upserts, frozenset(_only_in_first(known.arrow, there)))


def _only_in_first(first: pa.Array, second: pa.Array) -> list[str]:
    return list(first.filter(pc.invert(pc.is_in(first, value_set=second))).to_pylist())


@dataclass(frozen=True)
class LogChanges:
    """The changes from a search log.

    Attributes:
        unsaved: frequent queries that the data set lacks, with keywords or without; the most
            frequent first.
        counts: `lines` of the log, of which `without` hold no query; distinct `queries`, by their
            normalised texts, of which `known` have keywords, `rare` were asked too rarely, and
            `taken` are in `changes`; queries `left_out` as `cogr.privacy` says.
    """

    changes: Changes
    unsaved: Sequence[Query]
    counts: Mapping[str, int]


def changes_of_log(
    log: QueryLog, min_count: int, known: Collection[str], saved: Collection[str]
) -> LogChanges:
    """Queries of a search log that became frequent.

    Spellings with the same key (`query_key`) count together; the most frequent one is the query's
    text. The id depends on the key alone, so reading a log twice changes nothing.

    Args:
        min_count: how many clients must have asked a query; a search whose client the log does not
            say counts as a client of its own.
        known: keys of the texts that have keywords already.
        saved: keys of the data set's queries.
    """
    spellings: dict[str, list[Searched]] = {}
    for searched in log.queries:
        # A text such as ??? has no keyword, so nothing can be written for it.
        key = query_key(searched.text) if self_keyword(searched.text) else ""
        spellings.setdefault(key, []).append(searched)
    blank = spellings.pop("", [])
    asked = {key: _clients(some) for key, some in spellings.items()}
    often = [key for key in asked if asked[key] >= min_count]
    often.sort(key=lambda key: (-asked[key], key))
    frequent = {key: _logged(key, spellings[key]) for key in often}
    new = {query.id: query for key, query in frequent.items() if key not in known}
    had = sum(key in known for key in spellings)
    counts = {
        "lines": log.lines,
        "without": log.without + len(blank),
        "queries": len(spellings),
        "known": had,
        "rare": len(spellings) - had - len(new),
        "taken": len(new),
        "left_out": sum(log.left_out.values()),
    }
    unsaved = [query for key, query in frequent.items() if key not in saved]
    return LogChanges(Changes("query", new, frozenset()), unsaved, counts)


def _clients(spellings: Sequence[Searched]) -> int:
    clients = frozenset[str]().union(*(one.clients for one in spellings))
    return len(clients) + sum(one.count - one.known for one in spellings)


def _logged(key: str, spellings: Sequence[Searched]) -> Query:
    text = min(spellings, key=lambda one: (-one.count, one.text)).text
    return Query(f"log-{sha256(key.encode()).hexdigest()[:12]}", text)
