"""A merchant's decisions: the file `publish.rules`, applied to snapshots just before they go live.

The file is a table (CSV), since merchandisers work in spreadsheets. A decision on an item for a
query becomes a keyword that both have and nothing else: a heavy one pins the item, one of weight 0
keeps it out of the query's set. So every client that matches keywords obeys. Of two synonyms items
get both spellings, and queries each other's keywords.

The snapshot with the rules is one of its own; its manifest has the rules, and the snapshot that it
was made from, which later rules and updates start from.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from cogr.datasets.reading import Sheet
from cogr.errors import DataError
from cogr.keywords import parse, self_keyword
from cogr.records import Query, Say
from cogr.settings.indexing import KINDS
from cogr.snapshots import (
    RULES,
    Manifest,
    Row,
    Snapshot,
    open_snapshot,
    read_manifest,
    read_set_aside,
    rounded,
    side_of,
    write_set_aside,
)
from cogr.snapshots.writing import HEAVIEST, write_snapshot
from indexers.generators import Completion, Request, query_row
from indexers.generators.statistical.generator import Statistical
from indexers.workspace import Workspace

MOST_PINS = 10
"""Most pinned items of a query."""

_COLUMNS = ("rule", "query", "item", "keyword")
_CELLS = {
    "pin": ({"query", "item"},),
    "bury": ({"query", "item"},),
    "add": ({"query", "keyword"}, {"item", "keyword"}),
    "forbid": ({"keyword"}, {"query", "keyword"}, {"item", "keyword"}),
    "synonym": ({"query", "keyword"},),
}
_OPPOSITE = {"pin": "bury", "bury": "pin", "add": "forbid", "forbid": "add"}
# A pin outweighs the next one even where its item has twice as many keywords.
_NEXT_PIN = 0.4
_NAMED = 3


@dataclass(frozen=True)
class Rule:
    """One decision. Query and keyword are normalised; "" where the rule has none."""

    kind: str
    query: str = ""
    item: str = ""
    keyword: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(filter(None, (self.query, self.item, self.keyword)))}"


@dataclass
class Rules:
    """The rules of a file, by what they change."""

    rules: Sequence[Rule]
    _forbidden: dict[tuple[str, str], set[str]] = field(init=False)
    _of_query: dict[str, dict[str, float]] = field(init=False)
    _of_item: dict[str, list[str]] = field(init=False)
    _twins: dict[str, list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self._forbidden, self._twins = defaultdict(set), defaultdict(list)
        self._of_query, self._of_item = defaultdict(dict), defaultdict(list)
        pins: dict[str, int] = defaultdict(int)
        for rule in self.rules:
            if rule.kind == "forbid":
                self._forbidden[rule.query, rule.item].add(rule.keyword)
            elif rule.kind == "synonym":
                self._twins[rule.query].append(rule.keyword)
                self._twins[rule.keyword].append(rule.query)
            elif rule.kind == "add" and rule.query:
                self._of_query[rule.query][rule.keyword] = 1.0
            elif rule.kind == "add":
                self._of_item[rule.item].append(rule.keyword)
            else:
                word, weight = self_keyword(f"buried for {rule.query}"), 0.0
                if rule.kind == "pin":
                    pins[rule.query] += 1
                    word = self_keyword(f"pin {pins[rule.query]} for {rule.query}")
                    weight = rounded(HEAVIEST * _NEXT_PIN ** (pins[rule.query] - 1))
                self._of_query[rule.query][word] = weight
                self._of_item[rule.item].append(word)
        words = "|".join(map(re.escape, self._twins)) or "(?!)"
        self._any_twin = re.compile(rf"(?<!\w)(?:{words})(?!\w)")

    @property
    def digest(self) -> str:
        """The same for the same rules in the same order."""
        text = json.dumps([astuple(rule) for rule in self.rules])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def queries(self) -> set[str]:
        """The queries that get something of their own."""
        return {*self._of_query, *self._twins}

    @property
    def items(self) -> set[str]:
        """The items that get something of their own."""
        return {*self._of_item, *(item for _, item in self._forbidden if item)}

    def _left(self, words: Iterable[str], query: str = "", item: str = "") -> list[str]:
        without = self._forbidden[query, item] | self._forbidden["", ""]
        return [word for word in words if word not in without]

    def item_row(self, row: Row) -> Row:
        """An item's row as the rules want it."""
        said = [
            f"{word[: at.start()]}{twin}{word[at.end() :]}"
            for word in row.keywords
            for at in self._any_twin.finditer(word)
            for twin in self._twins[at[0]]
        ]
        words = self._left((*row.keywords, *said), item=row.id)
        return replace(row, keywords=tuple(dict.fromkeys((*words, *self._of_item.get(row.id, ())))))

    def query_row(self, row: Row, known: Mapping[str, Row]) -> Row:
        """A query's row as the rules want it; `known` has the rows of `queries` by their texts."""
        own = row.self_keyword
        found: dict[str, float] = {}
        for one in (row, *(known[twin] for twin in self._twins.get(own, ()))):
            for word in self._left(one.weighted, own):
                found.setdefault(word, one.weighted[word])
        found.pop(own, None)
        decided = self._of_query.get(own, {})
        found |= {word: weight for word, weight in decided.items() if word not in found}
        weights = (*found.values(), row.weighted.get(own, 1.0))
        plain = all(weight == 1 for weight in weights)
        return replace(row, keywords=tuple(found), weights=() if plain else weights)


def read_rules(path: Path) -> Rules:
    """The rules of a CSV file with the columns rule, query, item and keyword.

    Raises DataError, with the line: an unknown rule, cells missing or too many, a contradiction.
    """
    if not path.is_file():
        raise DataError(f"There is no file of rules {path}; check publish.rules.")
    sheet = Sheet.of(path, *_COLUMNS)
    found: dict[Rule, Any] = {}
    pins: dict[str, int] = defaultdict(int)
    for place, cells in sheet.records():
        rule = _rule(place, cells)
        opposite = replace(rule, kind=_OPPOSITE.get(rule.kind, ""))
        if opposite in found:
            raise DataError(f"{place}: {rule} contradicts {found[opposite]}; keep one of them.")
        pins[rule.query] += rule.kind == "pin" and rule not in found
        if pins[rule.query] > MOST_PINS:
            raise DataError(
                f"{place}: {rule.query!r} has more than {MOST_PINS} pins; leave some out."
            )
        found.setdefault(rule, place)
    return Rules(tuple(found))


def _rule(place: Any, cells: Mapping[str, str]) -> Rule:
    kind = cells.get("rule", "").casefold()
    if kind not in _CELLS:
        raise DataError(f"{place}: {kind!r} is not a rule; write one of {', '.join(_CELLS)}.")
    filled = {*cells} & {*_COLUMNS[1:]}
    if filled not in _CELLS[kind]:
        wanted = " or ".join(" and ".join(sorted(one, reverse=True)) for one in _CELLS[kind])
        raise DataError(f"{place}: {kind} takes {wanted}; fill in these cells and no other.")
    query, keyword = self_keyword(cells.get("query", "")), parse(cells.get("keyword", ""))
    for name, value in (("query", query), ("keyword", len(keyword) == 1)):
        if name in filled and not value:
            raise DataError(
                f"{place}: {cells[name]!r} is not one {name}; write words, without commas."
            )
    return Rule(kind, query, cells.get("item", ""), "".join(keyword))


def rules_of(manifest: Manifest, query: str | None = None) -> list[Rule]:
    """The rules that a snapshot was made with; only those that a query's text concerns."""
    rules = [Rule(*one) for one in manifest.notes.get(RULES, {}).get("rules", ())]
    if query is None:
        return rules
    own = self_keyword(query)
    return [
        rule
        for rule in rules
        if own in (rule.query, rule.keyword if rule.kind == "synonym" else rule.query)
    ]


def with_rules(workspace: Workspace, ids: Sequence[str], say: Say, *, both: bool) -> list[str]:
    """The snapshots with the rules of today; the given ones where `publish.rules` is not set.

    Raises DataError before anything is written, where the file is bad.
    """
    path = workspace.settings.publish.rules
    if path is None:
        return list(ids)
    rules, store = read_rules(Path(path)), workspace.store
    serving = {
        side: id_
        for side, id_ in workspace.backend.serving().items()
        if id_ in store.list("snapshots")
    }
    sides = {side_of(id_) for id_ in ids}
    others = [id_ for side, id_ in serving.items() if id_ and both and side not in sides]
    made = []
    for id_ in (*ids, *others):
        manifest = read_manifest(store, id_)
        if manifest.notes.get(RULES, {}).get("digest") == rules.digest:
            made += [id_] if id_ in ids else []
            continue
        base = open_snapshot(store, id_).base
        new = _made(workspace, base, rules, serving.get(base.side), say)
        made += [new.id] if id_ in ids or new.id != id_ else []
    say(f"{len(rules.rules)} rules of {path}: {' and '.join(made)}")
    return made


def _made(
    workspace: Workspace, base: Snapshot, rules: Rules, parent: str | None, say: Say
) -> Snapshot:
    store, manifest = base.store, base.manifest
    note = {"base": base.id, "digest": rules.digest, "rules": [astuple(r) for r in rules.rules]}
    provenance = manifest.provenance(
        parent=parent or manifest.parent, notes={**manifest.notes, RULES: note}
    )
    items = base.side == "item"
    rows = map(rules.item_row, base.rows()) if items else _query_rows(workspace, base, rules)
    made = write_snapshot(store, base.side, rows, provenance, manifest.fields)
    if manifest.set_aside and made.id != base.id:
        write_set_aside(store, made.id, read_set_aside(store, base.id))
    known = base.ids()
    missing = [id_ for id_ in sorted(rules.items) if items and known.find(id_) < 0]
    if missing:
        first = ", ".join(missing[:_NAMED])
        say(f"{len(missing)} items of the rules are not in {base.id}, the first: {first}")
    return made


def _query_rows(workspace: Workspace, base: Snapshot, rules: Rules) -> Iterator[Row]:
    wanted = rules.queries
    known = {row.self_keyword: row for row in base.rows() if row.self_keyword in wanted}
    new = sorted(_written(workspace, base, wanted - known.keys()), key=lambda row: row.id)
    known |= {row.self_keyword: row for row in new}
    merged = heapq.merge(base.rows(), new, key=lambda row: row.id)
    return (rules.query_row(row, known) for row in merged)


def _written(workspace: Workspace, base: Snapshot, texts: Collection[str]) -> Iterator[Row]:
    """Rows of queries that the snapshot lacks, with the keywords that its fit of `statistical`
    writes for them, since a row stands in for keywords that are generated live.
    """
    ids = {hashlib.blake2b(one.encode(), digest_size=8).hexdigest(): one for one in texts}
    queries = [Query(f"rule-{id_}", text) for id_, text in sorted(ids.items())]
    learned = base.manifest.generator.get("kind") == "statistical"
    if queries and learned and KINDS["statistical"].is_installed:
        with workspace.generator("query", "statistical") as fitted:
            assert isinstance(fitted, Statistical)
            items = workspace.backend.serving().get("item")
            if generator := fitted.live(base.manifest.generator, items):
                prompter = workspace.prompter("query", "statistical")
                asked = [Request(one.id, one, prompter(one)) for one in queries]
                for query, answer in zip(queries, generator.generate(asked), strict=True):
                    assert isinstance(answer, Completion)
                    yield query_row(answer, query, base.manifest.k_max)
                return
    yield from (Row(query.id, query.text, ()) for query in queries)
