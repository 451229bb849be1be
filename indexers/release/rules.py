"""A merchant's decisions: the file `publish.rules`, applied to snapshots just before they go live.

The file is a table (CSV), since merchandisers work in spreadsheets. A decision on an item for a
query becomes a keyword that both have and nothing else: a heavy one pins the item, one of weight 0
keeps it out of the query's set. So every client that matches keywords obeys. Of two synonyms items
get both spellings; a query with one of them is asked with the other, too, and what is added to a
query is searched in texts (`Rules.readings`, `Rules.also`).

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
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

from pyroaring import BitMap

from cogr.datasets.reading import Sheet
from cogr.errors import CogrError, DataError, SnapshotError
from cogr.keywords import folded, parse, query_key, query_keywords, self_keyword
from cogr.records import Say, Side
from cogr.settings.indexing import kind_of
from cogr.snapshots import (
    RULES,
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
from cogr.store import Store
from indexers.backends import Pair, ServedSide
from indexers.backends.memory import Opened
from indexers.live import live_model
from indexers.workspace import Workspace

MAX_PINS = 10
"""Most pinned items of a query."""
MAX_READINGS = 4
"""Most texts that a query reads as by synonyms, its own first: each is looked up."""

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
_SAID = 20


@dataclass(frozen=True)
class Rule:
    """One decision, with the key of its query (of a synonym its words) and its normalised keyword;
    "" where the rule has none.
    """

    kind: str
    query: str = ""
    item: str = ""
    keyword: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(filter(None, (self.query, self.item, self.keyword)))}"


class Rules:
    """The rules of a file, by what they change."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules
        self._forbidden = defaultdict[tuple[str, str], set[str]](set)
        self._of_query = defaultdict[str, dict[str, float]](dict)
        self._twins, self._added, self._of_item = (defaultdict[str, list[str]](list) for _ in "123")
        pins: dict[str, int] = defaultdict(int)
        for rule in self.rules:
            if rule.kind == "forbid":
                self._forbidden[rule.query, rule.item].add(rule.keyword)
            elif rule.kind == "synonym":
                for word, twin in permutations((rule.query, rule.keyword)):
                    self._twins[word].append(twin)
                    self._of_query[word].setdefault(twin, 1.0)
            elif rule.kind == "add" and rule.query:
                self._of_query[rule.query][rule.keyword] = 1.0
                self._added[rule.query].append(rule.keyword)
            elif rule.kind == "add":
                self._of_item[rule.item].append(rule.keyword)
            else:
                # `normalise` strips brackets, so no title, model or shopper can write these.
                word, weight = f"[buried for {rule.query}]", 0.0
                if rule.kind == "pin":
                    pins[rule.query] += 1
                    word = f"[pin {pins[rule.query]} for {rule.query}]"
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
        return {*self._of_query}

    def _left(self, words: Iterable[str], query: str = "", item: str = "") -> list[str]:
        without = self._forbidden[query, item] | self._forbidden["", ""]
        return [word for word in words if word not in without]

    def _spelled(self, word: str) -> Iterator[str]:
        """A keyword with a synonym in place of each word that has one."""
        for at in self._any_twin.finditer(word):
            yield from (f"{word[: at.start()]}{t}{word[at.end() :]}" for t in self._twins[at[0]])

    def readings(self, text: str) -> list[str]:
        """The texts whose keywords a query gets: its own, `folded`, and those by synonyms."""
        text = folded(text)
        return [*dict.fromkeys((text, *self._spelled(text)))][:MAX_READINGS]

    def also(self, text: str) -> tuple[str, ...]:
        """The texts by which a query is searched beside its own."""
        more = (*self.readings(text)[1:], *self._added.get(query_key(text), ()))
        return tuple(dict.fromkeys(more))[:MAX_READINGS]

    def about(self, query: str) -> list[Rule]:
        """The rules that concern a query's text."""
        key = query_key(query)
        said = {at[0] for at in self._any_twin.finditer(folded(query))}
        return [
            rule
            for rule in self.rules
            if (key and rule.query == key)
            or (rule.kind == "synonym" and said & {rule.query, rule.keyword})
        ]

    def item_row(self, row: Row) -> Row:
        """An item's row as the rules want it."""
        said = [twin for word in row.keywords for twin in self._spelled(word)]
        words = self._left((*row.keywords, *said), item=row.id)
        return replace(row, keywords=tuple(dict.fromkeys((*words, *self._of_item.get(row.id, ())))))

    def query_row(self, row: Row) -> Row:
        """A query's row as the rules want it."""
        key, own, weighted = row.key, row.self_keyword, row.weighted
        kept = {word: weighted[word] for word in self._left(weighted, key) if word != own}
        decided = self._of_query.get(key, {})
        kept |= {word: weight for word, weight in decided.items() if word not in kept}
        weights = (*kept.values(), weighted.get(own, 1.0))
        plain = all(weight == 1 for weight in weights)
        return replace(row, keywords=tuple(kept), weights=() if plain else weights)


def read_rules(path: Path) -> Rules:
    """The rules of a CSV file with the columns rule, query, item and keyword.

    Raises DataError, with the line: an unknown rule, cells missing or too many, a contradiction.
    """
    if not path.is_file():
        raise DataError(f"There is no file of rules {path}; check publish.rules.")
    sheet = Sheet.of(path, *_COLUMNS)
    rules: dict[Rule, Any] = {}
    pins: dict[str, int] = defaultdict(int)
    for place, cells in sheet.records():
        rule = _rule(place, cells)
        opposite = replace(rule, kind=_OPPOSITE.get(rule.kind, ""))
        if opposite in rules:
            raise DataError(f"{place}: {rule} contradicts {rules[opposite]}; keep one of them.")
        pins[rule.query] += rule.kind == "pin" and rule not in rules
        if pins[rule.query] > MAX_PINS:
            raise DataError(
                f"{place}: {rule.query!r} has more than {MAX_PINS} pins; leave some out."
            )
        rules.setdefault(rule, place)
    return Rules(tuple(rules))


def _rule(place: Any, cells: Mapping[str, str]) -> Rule:
    kind = cells.get("rule", "").casefold()
    if kind not in _CELLS:
        raise DataError(f"{place}: {kind!r} is not a rule; write one of {', '.join(_CELLS)}.")
    filled = {*cells} & {*_COLUMNS[1:]}
    if filled not in _CELLS[kind]:
        wanted = " or ".join(" and ".join(sorted(one, reverse=True)) for one in _CELLS[kind])
        raise DataError(f"{place}: {kind} takes {wanted}; fill in only these cells.")
    # A synonym's query is also looked for within texts.
    spelled = self_keyword if kind == "synonym" else query_key
    query, keyword = spelled(cells.get("query", "")), parse(cells.get("keyword", ""))
    for name, value in (("query", self_keyword(query)), ("keyword", len(keyword) == 1)):
        if name in filled and not value:
            raise DataError(
                f"{place}: {cells[name]!r} is not one {name}; write words, without commas."
            )
    return Rule(kind, query, cells.get("item", ""), "".join(keyword))


def rules_note(store: Store, snapshot: str) -> Mapping[str, Any]:
    """The rules that a snapshot was made with, their digest, and its base; empty without rules.
    Raises SnapshotError where the store lacks it, or it is damaged.
    """
    note: Mapping[str, Any] = read_manifest(store, snapshot).notes.get(RULES, {})
    return note


def rules_of(store: Store, snapshot: str | None) -> Rules:
    """The rules that a snapshot was made with; none where the store lacks it. Raises SnapshotError
    where it is damaged.
    """
    known = snapshot is not None and snapshot in store.list("snapshots")
    note = rules_note(store, snapshot) if snapshot and known else {}
    return Rules(tuple(Rule(*one) for one in note.get("rules", ())))


def with_rules(
    workspace: Workspace,
    ids: Sequence[str],
    serving: Mapping[Side, str | None],
    rolled_back: Collection[str],
    say: Say,
) -> list[str]:
    """The snapshots with the rules of today, and the other side of what serves, if that has others
    and the store has it; the given ones where `publish.rules` is not set. Rules that were
    `rolled_back` stay so: those of what serves are taken. Says how many items each rule moves.

    Raises DataError before anything is written, where the file is bad.
    """
    path = workspace.settings.publish.rules
    if path is None:
        return list(ids)
    rules, store = read_rules(Path(path)), workspace.store
    known = {side: id_ for side, id_ in serving.items() if id_ and _is_sound(store, id_)}
    digests = {id_: rules_note(store, id_).get("digest") for id_ in (*ids, *known.values())}
    if rules.digest in rolled_back and rules.digest not in {digests[id_] for id_ in ids}:
        say(f"The rules of {path} were rolled back, so they are not applied until they change.")
        served = (rules_of(store, id_) for id_ in known.values())
        rules = next((one for one in served if one.rules), Rules(()))
    sides = {side_of(id_) for id_ in ids}
    others = [id_ for side, id_ in known.items() if side not in sides]
    bases, made = dict[Side, Snapshot](), []
    for id_ in (*ids, *others):
        bases[side_of(id_)] = base = open_snapshot(store, id_).base
        if digests[id_] == rules.digest or not (rules.rules or digests[id_]):
            made += [id_] if id_ in ids else []
            continue
        new = _made(workspace, base, rules, known.get(base.side)) if rules.rules else base
        made += [new.id] if id_ in ids or new.id != id_ else []
    say(f"{len(rules.rules)} rules of {path}: {' and '.join(made)}")
    if items := bases.get("item"):
        _say_effects(rules, items, bases.get("query"), say)
    return made


def _is_sound(store: Store, id_: str) -> bool:
    # What is lost or damaged must not block switching away from it.
    with suppress(SnapshotError):
        return bool(open_snapshot(store, id_).base)
    return False


def _say_effects(rules: Rules, items: Snapshot, queries: Snapshot | None, say: Say) -> None:
    """Say how many items each rule moves: into what a query finds, out of it or to its top; or how
    many items get or lose its keyword. The snapshots are those without rules.
    """
    opened, wanted = Opened(items), {rule.query for rule in rules.rules}
    asked = queries.rows() if queries else ()
    rows = {key: row for row in asked if (key := row.key) in wanted}
    moved = [(rule, len(_moved(rule, opened, rows))) for rule in rules.rules]
    for rule, count in moved[:_SAID]:
        say(f"{rule}: {count:,} items")
    if idle := [str(rule) for rule, count in moved if not count]:
        more = f" and {len(idle) - _SAID} more" if len(idle) > _SAID else ""
        say(f"Warning: {len(idle)} rules move no item: {'; '.join(idle[:_SAID])}{more}.")


def _moved(rule: Rule, items: Opened, rows: Mapping[str, Row]) -> BitMap:
    mirror, word = items.mirror, rule.keyword
    named = BitMap([place]) if (place := mirror.ids.find(rule.item)) >= 0 else BitMap()
    having = mirror.retrieved([word]) if word else BitMap()
    row = rows.get(rule.query)
    if rule.kind == "pin":
        return named
    if rule.item and rule.kind != "bury":
        return named - having if rule.kind == "add" else named & having
    if rule.kind == "forbid":
        return having if not rule.query or (row and word in row.keywords) else BitMap()
    own = query_keywords(rule.query, row.keywords if row else ())
    matched = items.literal(rule.query) | mirror.retrieved(own)
    if rule.kind == "bury":
        return named & matched
    more = having | items.literal(word)
    return more ^ matched if rule.kind == "synonym" else more - matched


def _made(workspace: Workspace, base: Snapshot, rules: Rules, parent: str | None) -> Snapshot:
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
    return made


def _query_rows(workspace: Workspace, base: Snapshot, rules: Rules) -> Iterator[Row]:
    known = {row.key for row in base.rows()}
    new = sorted(_written(workspace, base, rules.queries - known), key=lambda row: row.id)
    return map(rules.query_row, heapq.merge(base.rows(), new, key=lambda row: row.id))


def _written(workspace: Workspace, base: Snapshot, texts: Collection[str]) -> Iterator[Row]:
    """Rows of queries that the snapshot lacks, with the keywords that a model in this process
    writes for them, since a row stands in for keywords that are written live.
    """
    model, pair = None, Pair(workspace.backend.pair().item, ServedSide.of(base.manifest))
    with suppress(CogrError):
        if texts and kind_of(str(base.manifest.generator.get("kind"))).model == "":
            model = live_model(workspace, pair)
    for text in texts:
        id_ = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        row = model.answer(text) if model else None
        yield replace(row or Row("", text, ()), id=f"rule-{id_}", text=text)
