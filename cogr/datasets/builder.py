"""From records to a data set: duplicates, unknown ids, binary labels, splits, notes and the hash.

A loader feeds a `Builder`: items first, then queries, then judgements. Nothing here knows formats.
Queries and judgements are kept in memory; items are on disk (`cogr.datasets.items`).

Splits are stable by a hash that near-equal queries share: a seeded shuffle changes when a query is
added, so that yesterday's test queries are trained on today; a hash does not. Queries that differ
only in word order or number ("red chairs", "chair red") are one cluster and stay in one split;
otherwise training would know a test query.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any, Literal

from cogr.datasets.fields import (
    Columns,
    check_id,
    check_text,
    fields_as_json,
    number_field,
    plain_text,
)
from cogr.datasets.items import ItemTable, in_id_order
from cogr.datasets.reading import Place, nearest
from cogr.errors import DataError, SettingsError
from cogr.keywords import folded
from cogr.records import SPLITS, Dataset, Item, Query, Side, Split

SplitBy = Literal["shuffle", "cluster"]
"""shuffle: by the seed. cluster: by a hash of the query's stems."""

_WORD = re.compile(r"\w+")


def cluster_key(text: str) -> str:
    """The key that near-equal queries share: the stems of their distinct words in alphabetical
    order (English Snowball stems; other scripts keep their words).
    """
    stem = _stemmer().stemWord
    words = _WORD.findall(folded(text))
    stems = {stem(word) or word if word.isascii() and word.isalpha() else word for word in words}
    return " ".join(sorted(stems))


@cache
def _stemmer() -> Any:
    import snowballstemmer

    return snowballstemmer.stemmer("english")


def place(key: str, seed: int = 0) -> float:
    """A number in [0, 1) that depends on text and seed alone."""
    digest = hashlib.blake2b(f"{seed}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") / 2**64


DEV_SHARE = 0.2
"""Share of the training queries that is set apart as dev where the data have none, by the hash of
their ids: enough to judge by, and most are left to learn from. Training sets them apart, and
`statistical` learns from earlier pairs on them, which must not have learned from them.
"""


def by_hash(ids: Iterable[str], share: float) -> frozenset[str]:
    """A share of ids, rounded down: those whose sha256 comes first."""
    ordered = sorted(
        ids, key=lambda id_: hashlib.sha256(id_.encode("utf-8", "surrogatepass")).digest()
    )
    return frozenset(ordered[: math.floor(len(ordered) * share + 1e-9)])


DEFAULT_TEST_SHARE = 0.1
_MAX_WEIGHT = 1e12
MAX_UNKNOWN_SHARE = 0.05
"""The largest accepted share of judgements that point to queries or items that are not there."""

# The notes of a data set: the words under which they are counted.
UNKNOWN_ITEMS = "judgements of unknown items"
UNKNOWN_QUERIES = "judgements of unknown queries"
UNKNOWN_PAIRS = "signals of unknown queries or items"
REPEATED = "repeated judgements, of which the highest grade counts"
UNLABELLED = "queries without a relevant item"
BLANK_ITEMS = "items without title and text"
NULS = "texts with NUL characters removed"
HTML = "titles and texts with HTML removed"
REPEATED_ITEMS = "rows that repeat an item"


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """A user's options of a data set.

    Attributes:
        threshold: the lowest grade that counts as relevant; None for the loader's own.
        dev_share: share of the training queries that are set apart as (or added to) the dev split,
            by a seeded shuffle.
        fields: names of extra fields that items carry (`cogr.records.Item.fields`), as `columns`
            spells them.
        pair_signals: names of numbers that pairs of query and item carry
            (`cogr.records.Dataset.pair_signals`); of jsonl, csv and parquet.
        strip_html: whether titles and texts lose HTML; the loader says.
    """

    threshold: float | None = None
    dev_share: float = 0.0
    fields: Sequence[str] = ()
    pair_signals: Sequence[str] = ()
    columns: Columns = field(default_factory=Columns)
    strip_html: bool = False
    split_by: SplitBy = "shuffle"

    def __post_init__(self) -> None:
        for name in {"query", "item", "grade"} & {*self.pair_signals}:
            raise SettingsError(
                f"generator.statistical.pair_signals names {name!r}, which is the label itself or "
                "an id; name columns of numbers such as clicks."
            )


def seeded_part(ids: Iterable[str], share: float) -> frozenset[str]:
    """A share of ids, rounded down: sorted as strings, shuffled with seed 0, the first ones."""
    shuffled = sorted(ids)
    random.Random(0).shuffle(shuffled)
    # 0.29 * 100 is 28.999999999999996 in floating point, but 29 is meant.
    return frozenset(shuffled[: math.floor(len(shuffled) * share + 1e-9)])


def make_item(
    place: Place,
    id: str,
    title: str,
    text: str,
    record: Mapping[str, Any],
    options: DatasetOptions,
    notes: Counter[str],
) -> Item:
    """The item of a record: checked, without NUL characters and, where asked, without HTML.

    What was removed is counted in `notes`. Raises DataError.
    """
    fields = fields_as_json(record, options.columns.sources(options.fields), place)
    title = _without_nul(title, "title", place, notes)
    text = _without_nul(text, "text", place, notes)
    if options.strip_html:
        before = title, text
        # Most texts have neither character; this search is all that they cost.
        text = plain_text(text) if "<" in text or "&" in text else text
        title = plain_text(title).replace("\n", " ") if "<" in title or "&" in title else title
        notes[HTML] += (before[0] != title) + (before[1] != text)
    return Item(check_id(id, "id", place), title, text, fields)


def make_query(place: Place, id: str, text: str, weight: float, notes: Counter[str]) -> Query:
    """The query of a record: checked, without NUL characters, which `notes` counts.

    Raises DataError for a bad id, a blank text or a bad weight.
    """
    query = Query(check_id(id, "id", place), _without_nul(text, "text", place, notes), weight)
    if not query.text.strip():
        raise DataError(f"{place}: the query {id!r} has no text; write one or remove the query.")
    if not 0 <= weight <= _MAX_WEIGHT:
        raise DataError(
            f"{place}: the weight {weight:g} of query {id!r} is not between 0 and "
            f"{_MAX_WEIGHT:g}; scale the weights."
        )
    return query


def _without_nul(text: str, key: str, place: Place, notes: Counter[str]) -> str:
    check_text(text, key, place)
    if "\0" in text:
        notes[NULS] += 1
        return text.replace("\0", "")
    return text


class Builder:
    """Collects the records of one data set and checks them against one another."""

    def __init__(self, name: str, options: DatasetOptions) -> None:
        self.name = name
        self.options = options
        self.test_share: float | None = None
        """The data's fixed test share, drawn with seed 0, where its definition names one."""
        self.notes: Counter[str] = Counter()
        self._items = ItemTable()
        self.queries: dict[str, Query] = {}
        self._query_places: dict[str, Place] = {}
        self._splits: dict[str, tuple[Split, Place]] = {}
        self._judged: dict[str, dict[str, float]] = {}
        self._signals: dict[str, dict[str, dict[str, float]]] = {
            name: {} for name in options.pair_signals
        }
        self._updated: dict[Side, dict[str, datetime]] = {"item": {}, "query": {}}
        self._seen: Counter[str] = Counter()
        self._ignored: Counter[str] = Counter()
        self._judgements = 0
        self._first_unknown = ""

    def item(
        self,
        place: Place,
        id: str,
        title: str,
        text: str,
        updated: datetime | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an item to the universe, and when it last changed, where that is known.

        Args:
            record: the whole record, from which extra fields are taken where some are asked for.

        Raises:
            DataError: a bad id or field; a repeated id, once all items are added.
        """
        item = make_item(place, id, title, text, record or {}, self.options, self.notes)
        if not (item.title.strip() or item.text.strip()):
            self.notes[BLANK_ITEMS] += 1
        self._items.add(place, item)
        if updated is not None:
            self._updated["item"][id] = updated

    def has_fields(self, names: Iterable[str], items: int | None = None) -> None:
        """Count the fields of one more item, or of `items` items.

        `build` counts the fields that nothing reads, and refuses a setting that names a field
        which no item has.
        """
        self._seen.update([*names] if items is None else dict.fromkeys(names, items))

    def unread(self, *names: str) -> None:
        """Note fields of a record, or a file, that nothing reads; items' by `has_fields`."""
        self._ignored.update(names)

    def query(
        self,
        place: Place,
        id: str,
        text: str,
        weight: float = 1.0,
        split: str | None = None,
        updated: datetime | None = None,
    ) -> None:
        """Add a query, and when it last changed, where that is known.

        Raises DataError for a bad or repeated id, a blank text, a bad weight or an unknown split.
        """
        if id in self.queries:
            raise DataError(
                f"{place}: the query id {id!r} is already taken by {self._query_places[id]}; "
                "give each query its own id."
            )
        self.queries[id] = make_query(place, id, text, weight, self.notes)
        self._query_places[id] = place
        if updated is not None:
            self._updated["query"][id] = updated
        if split is not None:
            self.assign(place, id, split)

    def assign(self, place: Place, query_id: str, split: str) -> None:
        """Put a query into a split. Raises DataError when it is already in another one."""
        if split not in SPLITS:
            raise DataError(
                f"{place}: the split {split!r} is unknown; write one of {', '.join(SPLITS)}."
            )
        if query_id not in self.queries:
            return
        earlier, where = self._splits.setdefault(query_id, (split, place))
        if earlier != split:
            raise DataError(
                f"{place}: the query {query_id!r} is in the split {split} here and in {earlier} "
                f"in {where}; keep it in one of them."
            )

    def judgement(self, place: Place, query_id: str, item_id: str, grade: float) -> None:
        """Add a judgement. One of an unknown query or item is counted; of several of one pair the
        highest grade stays.
        """
        self._judgements += 1
        query = self.queries.get(query_id)
        if query is None or item_id not in self._items:
            what, unknown = ("query", query_id) if query is None else ("item", item_id)
            self.notes[UNKNOWN_QUERIES if query is None else UNKNOWN_ITEMS] += 1
            self._first_unknown = self._first_unknown or f"{place}: the {what} {unknown!r}"
            return
        grades = self._judged.setdefault(query.id, {})
        if item_id in grades:
            self.notes[REPEATED] += 1
            grade = max(grade, grades[item_id])
        grades[item_id] = float(grade)

    def pair_signals(
        self, place: Place, query_id: str, item_id: str, record: Mapping[str, Any]
    ) -> None:
        """Add the numbers that are asked for from a record of a pair. Of several the highest stays,
        and 0 is the same as none. Numbers of unknown ids are counted.

        Raises DataError for a value that is not a number, or below 0.
        """
        numbers = {name: number_field(record, name, place, 0.0) for name in self._signals}
        known = query_id in self.queries and item_id in self._items
        self.notes[UNKNOWN_PAIRS] += not known and any(numbers.values())
        for name, value in numbers.items():
            if value < 0:
                raise DataError(f"{place}: {name!r} is {value:g}, below 0; write 0 or more.")
            if value and known:
                pairs = self._signals[name].setdefault(query_id, {})
                pairs[item_id] = max(value, pairs.get(item_id, 0.0))

    def build(self) -> Dataset:
        """The data set.

        Raises:
            DataError: no items, repeated ids of items, no relevant items, too many judgements of
                unknown ids, or splits for some queries only.
            SettingsError: dataset.split_by is set, but the data names its own splits; or fields are
                asked for that no item has.
        """
        items, repeats = self._items.distinct()
        self.notes[REPEATED_ITEMS] += repeats
        if not len(items):
            raise DataError(f"The data set {self.name} has no items; check dataset.path.")
        self._check_fields()
        self._check_blank(len(items) + repeats)
        self._check_unknown()
        relevant = self._relevant()
        if self.options.split_by != "shuffle" and (self._splits or self.test_share is not None):
            raise SettingsError(
                f"The data set {self.name} has its own splits; remove dataset.split_by."
            )
        splits = self._split(relevant)
        queries = {
            split: tuple(one for id_, one in self.queries.items() if splits.get(id_) == split)
            for split in SPLITS
        }
        unlabelled = tuple(query for id_, query in self.queries.items() if id_ not in relevant)
        self.notes[UNLABELLED] += len(unlabelled)
        judged = {id_: self._judged[id_] for id_ in splits}
        dataset = Dataset(self.name, items, queries, relevant, judged, "", +self.notes, unlabelled)
        return replace(
            dataset,
            dataset_hash=content_hash(dataset),
            updated={side: known for side, known in self._updated.items() if known},
            unread=self._unread(),
            pair_signals=self._signals,
        )

    @property
    def _extra(self) -> list[str]:
        return [source for _, source in self.options.columns.sources(self.options.fields)]

    def _check_fields(self) -> None:
        extra = [("publish.fields", name) for name in self._extra]
        for setting, name in (*self.options.columns.renamed(), *extra) if self._seen else ():
            if name not in self._seen and name.partition(".")[0] not in self._seen:
                shown = ", ".join(self._seen)
                raise SettingsError(
                    f"{setting} names {name!r}, which no item of the data set {self.name} has; "
                    f"name a field that is there{nearest(name, [*self._seen])} ({shown:.300})."
                )

    def _check_blank(self, items: int) -> None:
        if items and self.notes[BLANK_ITEMS] == items:
            columns = self.options.columns
            names = ", ".join(map(repr, (columns.title, *columns.text)))
            shown = ", ".join(self._seen)
            raise DataError(
                f"No item of the data set {self.name} has a title or a text ({names}); give the "
                "items one, or say in dataset.columns what they are called"
                + (f" (there are: {shown:.300})." if shown else ".")
            )

    def _unread(self) -> Mapping[str, int]:
        known = self.options.columns.read().union(self._extra)
        known |= {name.partition(".")[0] for name in known}
        seen = self._seen.most_common()
        items = {name: count for name, count in seen if count and name not in known}
        return items | dict(self._ignored)

    def _check_unknown(self) -> None:
        unknown = self.notes[UNKNOWN_QUERIES] + self.notes[UNKNOWN_ITEMS]
        if unknown > MAX_UNKNOWN_SHARE * self._judgements:
            raise DataError(
                f"{unknown} of {self._judgements} judgements refer to unknown queries or "
                f"items, more than {MAX_UNKNOWN_SHARE:.0%}, the first at "
                f"{self._first_unknown}; add them, or remove these judgements."
            )

    def _relevant(self) -> dict[str, frozenset[str]]:
        threshold = 1.0 if self.options.threshold is None else self.options.threshold
        relevant = {}
        for id_ in self.queries:
            items = frozenset(
                item for item, grade in self._judged.get(id_, {}).items() if grade >= threshold
            )
            if items:
                relevant[id_] = items
        if not relevant and self._judgements:
            raise DataError(
                f"The data set {self.name} has no relevant items: none of its {self._judgements} "
                f"judgements reaches the grade {threshold:g}; check the labels or lower "
                "dataset.threshold."
            )
        return relevant

    def _split(self, relevant: Mapping[str, frozenset[str]]) -> dict[str, Split]:
        dev_share = self.options.dev_share
        test_share = DEFAULT_TEST_SHARE if self.test_share is None else self.test_share
        splits: dict[str, Split]
        if self.options.split_by == "cluster":
            until_dev = test_share + (1 - test_share) * dev_share
            at = {id_: place(cluster_key(self.queries[id_].text)) for id_ in relevant}
            return {
                id_: "test" if at[id_] < test_share else "dev" if at[id_] < until_dev else "train"
                for id_ in relevant
            }
        if self._splits:
            splits = {id_: self._named_split(id_) for id_ in relevant}
        else:
            test = seeded_part(relevant, test_share)
            splits = {id_: "test" if id_ in test else "train" for id_ in relevant}
        train = [id_ for id_, split in splits.items() if split == "train"]
        return splits | dict.fromkeys(seeded_part(train, dev_share), "dev")

    def _named_split(self, id_: str) -> Split:
        if id_ not in self._splits:
            raise DataError(
                f"{self._query_places[id_]}: the query {id_!r} is in no split, but others are; "
                f"put it into one of {', '.join(SPLITS)}, or none of them."
            )
        return self._splits[id_][0]


def content_hash(dataset: Dataset) -> str:
    """sha256 over items, queries, splits, weights and labels; it does not depend on the order or
    form of the files.
    """
    sha = hashlib.sha256()

    def add(parts: Iterable[str]) -> None:
        # Length-prefixed parts: two different contents never give one string.
        sha.update("".join([f"{len(part)}:{part}" for part in parts]).encode())

    for item in in_id_order(dataset.items):
        add(("item", item.id, item.title, item.text))
    for split in SPLITS:
        for query in sorted(dataset.queries[split], key=lambda query: query.id):
            relevant = dataset.relevant[query.id]
            weight, number = repr(float(query.weight)), str(len(relevant))
            add(("query", split, query.id, query.text, weight, number))
            for item_id, grade in sorted(dataset.judged[query.id].items()):
                add((item_id, repr(grade), "relevant" if item_id in relevant else ""))
    return sha.hexdigest()
