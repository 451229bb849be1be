"""The data behind the page: the store's snapshots as mirrors with texts, the pairs of item and
query
snapshots, and the data set with BM25 over its text as the baseline.

Both are opened when first asked for. Also here: the models that write keywords for queries that a
pair's snapshot does not hold. The expander keeps the model of what serves; these are of the other
pair that the page shows.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from pyroaring import BitMap

from cogr.datasets.items import in_id_order
from cogr.errors import MissingExtraError
from cogr.keywords import NORMALISER, self_keyword
from cogr.mapped import Strings
from cogr.matching.mirror import Mirror
from cogr.matching.postings import to_bitmap
from cogr.records import Dataset, FieldValue, Item, Query, fields_of
from cogr.settings.serving import ServingSettings
from cogr.snapshots import Manifest, Row, Snapshot, list_snapshots, open_snapshot, why_no_pair
from indexers.backends import MOST_TEXT
from indexers.backends.memory import TextIndex, mirror_of
from indexers.text import Lexical
from indexers.workspace import Workspace
from ops.expander.circuit_breaker import UnavailableError
from ops.expander.follower import Pair, served_side
from ops.expander.live_models import MODEL_SECONDS, Models
from ops.expander.prometheus import Metrics

_OPEN = 8
"""Most open snapshots: both sides of the pairs A and B, and of the two pairs before."""
_LISTED = 50
"""Most pairs to choose from, newest first."""


@dataclass(frozen=True)
class Opened:
    """One snapshot. Texts and extra fields are in id order, as the mirror's dense ids."""

    snapshot: Snapshot
    mirror: Mirror
    texts: Strings
    extra: Strings | None = None

    @property
    def manifest(self) -> Manifest:
        """The snapshot's manifest."""
        return self.snapshot.manifest

    def text(self, dense: int) -> str:
        """An entity's own text as it was given."""
        return self.texts[dense]

    def fields(self, dense: int) -> Mapping[str, FieldValue]:
        """An item's extra fields."""
        return fields_of(self.extra[dense]) if self.extra else {}

    def find(self, id_: str) -> int | None:
        """The dense id of an id; None when the snapshot does not hold it."""
        dense = self.mirror.ids.find(id_)
        return dense if dense >= 0 else None

    def numbers_of(self, ids: Collection[str]) -> BitMap:
        """Dense ids. An id that the snapshot lacks gets a number after all others, since it can't
        be retrieved.
        """
        known = [dense for id_ in ids if (dense := self.find(id_)) is not None]
        return BitMap([*known, *range(len(self.mirror), len(self.mirror) + len(ids) - len(known))])

    @cached_property
    def searched(self) -> TextIndex:
        """Titles and fields to search by text. Raises MissingExtraError."""
        return TextIndex.of(self.mirror, self.texts, self.extra)

    def literal(self, text: str) -> BitMap:
        """Dense ids of the literal matches of a text; none without the extra `statistical`."""
        try:
            return to_bitmap(self.searched.literal(text[:MOST_TEXT]).astype(np.uint32))
        except MissingExtraError:
            return BitMap()

    def keywords_of(self, text: str) -> tuple[str, ...] | None:
        """The keyword set of the first entity by id with this text, without the text itself; None
        when there is none.
        """
        dense, own = self._first_of(text)
        if dense is None:
            return None
        return tuple(word for word in self.mirror.keywords_of(dense) if word != own)

    def row_of(self, text: str) -> Row | None:
        """The row of that entity, with its weights."""
        dense, _ = self._first_of(text)
        return None if dense is None else next(self.snapshot.rows([dense]))

    def _first_of(self, text: str) -> tuple[int | None, str]:
        own, mirror = self_keyword(text), self.mirror
        same = (dense for dense in mirror.bitmap(own) if mirror.own_keyword(dense) == own)
        return (next(same, None) if own else None), own


@dataclass(frozen=True)
class ListedPair:
    """An item snapshot with the query snapshot that belongs to it."""

    item: Manifest
    query: Manifest | None
    serving: bool

    def as_dict(self) -> dict[str, Any]:
        """For the page."""
        return {
            "item": self.item.id,
            "query": self.query and self.query.id,
            "round": self.item.round,
            "generator": str(self.item.generator.get("kind", "")),
            "model": str(self.item.generator.get("model") or "").rstrip("/").rpartition("/")[2],
            "created": self.item.created,
            "serving": self.serving,
        }


class PageData:
    """The snapshots and the data set of a workspace. Threads may share it."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._opened = lru_cache(_OPEN)(self._open)
        self._opening = threading.RLock()

    def opened(self, snapshot: str) -> Opened:
        """A snapshot of the store. Raises SnapshotError when it is unknown or broken."""
        with self._opening:
            return self._opened(snapshot)

    def _open(self, id_: str) -> Opened:
        snapshot = open_snapshot(self.workspace.store, id_)
        return Opened(
            snapshot,
            mirror_of(self.workspace.store, snapshot),
            snapshot.texts(),
            snapshot.fields(),
        )

    @property
    def catalogue(self) -> Catalogue:
        """The data set. Raises DataError or SettingsError when it can't be loaded."""
        with self._opening:
            return self._catalogue

    @cached_property
    def _catalogue(self) -> Catalogue:
        return Catalogue(self.workspace.dataset)

    def choices(self, serving: Pair) -> list[ListedPair]:
        """The pairs to choose from: the serving pair, then the newest first."""
        usable = [
            one for one in list_snapshots(self.workspace.store) if one.normaliser == NORMALISER
        ]
        newest = usable[::-1]
        items, queries = ([one for one in newest if one.side == side] for side in ("item", "query"))
        pairs = [
            *_serving(serving, items, queries),
            *((item, _companion(item, queries)) for item in items),
        ]
        taken = {query.id for _, query in pairs if query}
        alone = ((_companion(query, items), query) for query in queries if query.id not in taken)
        pairs += [(item, query) for item, query in alone if item]
        distinct = {(item.id, query and query.id): (item, query) for item, query in pairs}
        live = snapshots_of(serving)
        return [ListedPair(*pair, serving=ids == live) for ids, pair in distinct.items()][:_LISTED]


def snapshots_of(pair: Pair) -> tuple[str | None, str | None]:
    """The ids of an item and a query snapshot, as the page names a pair."""
    item, query = (side.snapshot if side else None for side in (pair.item, pair.query))
    return item, query


def _serving(
    serving: Pair, items: Sequence[Manifest], queries: Sequence[Manifest]
) -> list[tuple[Manifest, Manifest | None]]:
    ids = snapshots_of(serving)
    item, query = (next((one for one in side if one.id in ids), None) for side in (items, queries))
    return [(item, query)] if item else []


def _companion(of: Manifest, others: Sequence[Manifest]) -> Manifest | None:
    kind = of.generator.get("kind")
    pairs = (one for one in others if not why_no_pair(of, one))
    return next((one for one in pairs if one.generator.get("kind") == kind), None)


class Catalogue:
    """One data set. Threads may share it."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._indexing = threading.Lock()
        labelled = [*dataset.queries.get("test", ()), *dataset.all_queries()]
        # Of several queries that are normalised to one text, the first answers.
        self._queries: dict[str, Query] = {}
        for query in labelled:
            self._queries.setdefault(self_keyword(query.text), query)

    @property
    def counts(self) -> dict[str, int]:
        """How many items and queries there are."""
        return {"items": len(self.dataset.items), "queries": len(self.dataset.all_queries())}

    def item(self, id_: str) -> Item | None:
        """The item of an id; None when there is none."""
        at = bisect_left(self._sorted, id_, key=lambda item: item.id)
        found = self._sorted[at] if at < len(self._sorted) else None
        return found if found is not None and found.id == id_ else None

    @cached_property
    def _sorted(self) -> Sequence[Item]:
        return in_id_order(self.dataset.items)

    def labelled(self, text: str) -> Query | None:
        """The labelled query of this text; None when there is none."""
        return self._queries.get(self_keyword(text))

    def relevant(self, text: str) -> frozenset[str] | None:
        """Ids of the items that are relevant for a query text; None for an unlabelled query."""
        query = self.labelled(text)
        return self.dataset.relevant[query.id] if query else None

    def grades(self, text: str) -> Mapping[str, float]:
        """Item id -> grade of a labelled text's judgements."""
        query = self.labelled(text)
        return self.dataset.judged.get(query.id, {}) if query else {}

    def all_labelled(self) -> list[Query]:
        """The labelled queries, the test queries first, those of one normalised text once."""
        return list(self._queries.values())

    @cached_property
    def splits(self) -> Mapping[str, str]:
        """Id of a labelled query -> its split."""
        return {
            query.id: split for split, queries in self.dataset.queries.items() for query in queries
        }

    def examples(self, count: int) -> list[str]:
        """Texts of labelled queries, spread evenly over the test queries where there are any."""
        queries = self.dataset.queries.get("test") or self.dataset.all_queries()
        step = max(1, len(queries) // count)
        return [query.text for query in queries[::step]][:count]

    @property
    def lexical(self) -> Lexical:
        """BM25 over titles and texts. Raises MissingExtraError without the extra `statistical`."""
        with self._indexing:
            return self._lexical

    @cached_property
    def _lexical(self) -> Lexical:
        return Lexical(self.dataset.items)


_KEPT = 2


class Writers:
    """The models of the pairs used last."""

    def __init__(self, workspace: Workspace, settings: ServingSettings) -> None:
        self._workspace, self._settings = workspace, settings
        self._models: OrderedDict[Pair, Models] = OrderedDict()

    async def ask(self, items: Opened, queries: Opened | None, text: str) -> tuple[Row | None, str]:
        """Keywords of a normalised text, or None and the expander's reason."""
        query = served_side(queries.manifest) if queries else None
        pair = Pair(served_side(items.manifest), query)
        models = await self._of(pair)
        try:
            async with asyncio.timeout(MODEL_SECONDS):
                await models.loaded()
                found = await models.ask(pair, text)
        except TimeoutError:
            return None, "deadline"
        except UnavailableError:
            return None, "away"
        return found, "" if found is not None else "unknown"

    async def _of(self, pair: Pair) -> Models:
        models = self._models.pop(pair, None)
        if models is None:
            settings = self._workspace.settings
            models = Models(
                lambda: Workspace(settings), self._settings, Metrics(), settings.keywords.k_max
            )
            await models.follow(pair)
        self._models[pair] = models
        while len(self._models) > _KEPT:
            _, oldest = self._models.popitem(last=False)
            await oldest.close()
        return models

    async def close(self) -> None:
        """Close the models."""
        for models in self._models.values():
            await models.close()
