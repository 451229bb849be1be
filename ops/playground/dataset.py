"""The data set as the page needs it: texts of items, labels of queries, and BM25 over the text as
the baseline.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property

from cogr.datasets.items import in_id_order
from cogr.keywords import self_keyword
from cogr.records import Dataset, Item, Query
from indexers.text import Lexical


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
        """Ids of the items that are relevant for a query text; None when nobody labelled it."""
        query = self.labelled(text)
        return self.dataset.relevant[query.id] if query else None

    def grades(self, text: str) -> Mapping[str, float]:
        """Item id -> grade of a labelled text's judgements."""
        query = self.labelled(text)
        return self.dataset.judged.get(query.id, {}) if query else {}

    def all_labelled(self) -> list[Query]:
        """The labelled queries, the test queries first, those of one normalised text once."""
        return list(self._queries.values())

    def split_of(self, query: Query) -> str:
        """The split of a labelled query."""
        return self._splits[query.id]

    @cached_property
    def _splits(self) -> Mapping[str, str]:
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
