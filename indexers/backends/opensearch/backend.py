"""The backend `opensearch`: the protocol for one cluster and prefix, the aliases, which name what
serves, and verification: no snapshot serves before its documents and live results equal those of
the snapshot and its mirror.

Publishing is one atomic call that switches one side's alias or both; a rollback is the same with
an older snapshot. Deletion never takes an index that an alias names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Any

import numpy as np

from cogr.errors import CheckFailedError, CogrError, LockedError, SnapshotError
from cogr.matching.mirror import Mirror
from cogr.records import SIDES, Advance, Side
from cogr.settings.serving import IntoSettings, OpenSearchSettings
from cogr.snapshots import Row, Snapshot, check_normalisers, check_side, open_snapshot, side_of
from cogr.store import Store
from indexers.backends import (
    Keywords,
    Listed,
    Pair,
    Pushed,
    SearchResult,
    Verified,
    Words,
    boosts_of,
    compared,
)
from indexers.backends.memory import Opened, mirror_of
from indexers.backends.opensearch import push, search
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import (
    WORDS,
    IndexState,
    alias_name,
    check_count,
    complete_index,
    documents,
    mark,
    pushed_index,
)
from indexers.backends.opensearch.search import KEYWORDS, OWN, Fields
from indexers.backends.opensearch.serving import (
    IndexAnswers,
    aliased,
    count_of,
    pair_of,
    request_of,
    served_fields,
    with_count,
)

_Aliased = Mapping[Side, Sequence[IndexState]]
"""The indexes that each side's alias names; one, but for a switch that went wrong."""


class OpenSearchBackend:
    """Snapshots in an OpenSearch cluster: one write-once index each, behind the aliases
    `<prefix>-items` and `<prefix>-queries`.

    Scores are those of a mirror with `cluster.version.bm25`. The store keeps the mirrors that
    verification compares with.
    """

    name = "opensearch"

    def __init__(
        self, settings: OpenSearchSettings, store: Store, into: IntoSettings | None = None
    ) -> None:
        self.cluster = Cluster(settings)
        self.prefix = settings.prefix
        self.catalogue = f"{self.name}-{settings.prefix}"
        self._aliases = {side: alias_name(settings.prefix, side) for side in SIDES}
        self._store, self._into = store, into or IntoSettings()
        self._opened = lru_cache(maxsize=2)(lambda id_: Opened(open_snapshot(store, id_)))

    def push(self, snapshot: Snapshot) -> Pushed:
        """See `push.push`. Where the parent is pushed, only the difference is written."""
        base, parent = None, snapshot.manifest.parent
        with suppress(SnapshotError):  # It was removed, or is damaged: all is written.
            base = open_snapshot(self._store, parent) if parent else None
        return push.push(self.cluster, snapshot, base)

    def verify(
        self,
        snapshot: Snapshot,
        queries: Iterable[Keywords],
        *,
        every: bool = False,
        advance: Advance = lambda _: None,
    ) -> Verified:
        """Compare the index of a pushed snapshot with its files, and live results with its mirror:
        totals, order and the bits of every score; mark it as verified or not.
        """
        state, cluster = complete_index(self.cluster, snapshot.id), self.cluster
        scored = mirror_of(snapshot).scored_by(cluster.version.bm25)
        rows = compared(snapshot, every=every)
        try:
            check_count(cluster, state.name, snapshot)
            _check_documents(cluster, state.name, snapshot, rows, advance)
            _check_texts(cluster, state, snapshot)
            scores = [_check_parity(cluster, state, scored, one) for one in queries]
        except CheckFailedError:
            if state.verified:
                mark(cluster, state, verified=False)
            raise
        if not state.verified:
            mark(cluster, state, verified=True)
        entities = snapshot.manifest.entities
        return Verified(state.name, entities, len(rows), len(scores), sum(scores))

    def publish(
        self, snapshots: Mapping[Side, str], expected: Mapping[Side, str | None] | None = None
    ) -> Mapping[Side, str | None]:
        """Switch the aliases of the given sides by one call, after the stored search template is in
        place. Raises also ServiceError where an alias' name is taken, or the cluster refuses.
        """
        search.install_template(self.cluster, self.prefix)
        now = self._aliased()
        _check_expected(now, expected)
        new = {side: self._publishable(side, id_) for side, id_ in snapshots.items()}
        pair = [state for side in SIDES for state in ([new[side]] if side in new else now[side])]
        check_normalisers({state.snapshot: str(state.meta.get("normaliser")) for state in pair})
        then = {side: [new[side]] if side in new else states for side, states in now.items()}
        self._swap(now, then, f"switching the aliases of {self.prefix}")
        if first := [side for side in new if not now[side]]:
            self._check_alone(first, new)
        return {side: now[side][0].snapshot if now[side] else None for side in new}

    def _swap(self, now: _Aliased, then: _Aliased, doing: str, gone: str = "") -> None:
        """Switch by one call, and remove an index. A side that stays is named too: the call fails
        as a whole where another one serves by now.
        """
        actions = [*self._named("remove", now, must_exist=True), *self._named("add", then)]
        actions += [{"remove_index": {"index": gone}}] if gone else []
        try:
            self._act(actions, doing)
        except CogrError as error:
            if self._aliased() not in (now, then):
                raise LockedError(_SWITCHED.format(self.prefix)) from error
            raise

    def _check_alone(self, sides: Sequence[Side], new: Mapping[Side, IndexState]) -> None:
        """Nothing served these sides, so that the call could not ask for it."""
        there = self._aliased()
        if any(len(there[side]) > 1 for side in sides):
            mine = self._named("remove", {side: [new[side]] for side in sides})
            self._act(mine, f"giving way in {self.prefix}")
            raise LockedError(_SWITCHED.format(self.prefix))

    def _named(self, action: str, states: _Aliased, **more: bool) -> list[dict[str, Any]]:
        return [
            {action: {"index": one.name, "alias": self._aliases[side], **more}}
            for side, some in states.items()
            for one in some
        ]

    def _act(self, actions: Sequence[Mapping[str, Any]], doing: str) -> None:
        if actions:
            body = {"actions": actions}
            self.cluster.call("POST", "/_aliases", body=body, doing=doing, retry_connection=False)

    def state(self, places: Sequence[str], /) -> Mapping[str, str | None]:
        """What the aliases name, and in these places, by INDEX/FIELD, what the fields do. A place
        whose index is gone is left out.
        """
        own = IntoSettings()
        serving = dict[str, str | None](pair_of(self._asked(own), self.prefix, own).ids.items())
        for place in places:
            index, _, field = place.rpartition("/")
            into = IntoSettings(index=index, field=field)
            answer = self._asked(into)
            if any(index in (name, *one.get("aliases", {})) for name, one in answer.items()):
                serving[place] = pair_of(answer, self.prefix, into).ids["item"]
        return serving

    def serving(self) -> Mapping[Side, str | None]:
        """The snapshot that serves each side, or None."""
        return self.pair().ids

    def pair(self, *, counted: bool = False) -> Pair:
        """What serves: what the aliases name, or for items a field of the index of `into`."""
        pair = pair_of(self._asked(self._into), self.prefix, self._into)
        if counted and self._into.index and pair.item:
            path, params, body = count_of(pair.item)
            doing = f"counting the documents of {pair.item.index}"
            answer = self.cluster.call("POST", path, body=body, params=params, doing=doing)
            pair = with_count(pair, answer)
        return pair

    def list(self) -> Sequence[Listed]:
        """Every pushed snapshot under the prefix."""
        pattern = ",".join(f"{alias}-{side}-r*" for side, alias in self._aliases.items())
        seen = {"expand_wildcards": "open,hidden"}
        there = self.cluster.call("GET", f"/{pattern}", params=seen, doing="listing the indexes")
        listed = []
        for state in (IndexState.read(name, answer) for name, answer in there.items()):
            if id_ := state.snapshot:
                serving = self._aliases[side_of(id_)] in state.aliases
                complete = state.complete and state.verified
                listed.append(Listed(id_, state.meta["entities"], serving, complete))
        return sorted(listed, key=attrgetter("snapshot"))

    def search(
        self,
        keywords: Keywords,
        *,
        snapshot: str,
        size: int = 10,
        explain: bool = False,
        words: Words | None = None,
    ) -> SearchResult:
        """The best entities that have one of `keywords`, and whose texts match the words; of what
        serves in the index of `into`, there.
        """
        index, fields = self._place_of(snapshot)
        boosts = boosts_of(keywords)
        result = search.top(self.cluster, index, boosts, size, explain, words, fields)
        return result if fields.keywords == KEYWORDS else self._titled(result, snapshot)

    def retrieved(
        self, keywords: Keywords, *, snapshot: str, words: Words | None = None
    ) -> SearchResult:
        """The whole retrieved set with scores, without texts."""
        index, fields = self._place_of(snapshot)
        return search.everything(self.cluster, index, boosts_of(keywords), words, fields)

    def lookup(self, text: str, *, snapshot: str) -> Row | None:
        """The row of a query text; None when the query side does not hold it."""
        state = pushed_index(self.cluster, snapshot)
        return search.lookup(self.cluster, state.name, text)

    def _place_of(self, snapshot: str) -> tuple[str, Fields]:
        item = self.pair().item if self._into.index and side_of(snapshot) == "item" else None
        if item and item.snapshot == snapshot:
            return item.index, served_fields(self._into, item)
        return pushed_index(self.cluster, snapshot).name, OWN[side_of(snapshot)]

    def _titled(self, result: SearchResult, snapshot: str) -> SearchResult:
        """With titles and extra fields of the snapshot: a team's index calls its own otherwise."""
        opened = self._opened(snapshot)
        hits = [
            replace(hit, text=opened.texts[dense], fields=opened.fields_of(dense))
            if (dense := opened.mirror.ids.find(hit.id)) >= 0
            else hit
            for hit in result.hits
        ]
        return replace(result, hits=hits)

    def delete(self, snapshot: str) -> None:
        """Remove the index of a snapshot. Raises SnapshotError while it serves, and LockedError
        where another process switches at this moment.
        """
        now, state = self._aliased(), pushed_index(self.cluster, snapshot)
        if state.aliases:
            raise SnapshotError(
                f"Snapshot {snapshot} serves as {', '.join(state.aliases)}; publish another one "
                "before deleting it."
            )
        self._swap(now, now, f"removing the index {state.name}", state.name)

    def close(self) -> None:
        self.cluster.close()

    def _asked(self, into: IntoSettings) -> IndexAnswers:
        path, params = request_of(self.prefix, into)
        doing = f"looking at what serves by the prefix {self.prefix}"
        answer: IndexAnswers = self.cluster.call("GET", path, params=params, doing=doing)
        return answer

    def _aliased(self) -> _Aliased:
        answer = self._asked(IntoSettings())
        named = aliased(answer, self.prefix)
        return {side: [IndexState.read(n, answer[n]) for n in some] for side, some in named.items()}

    def _publishable(self, side: Side, snapshot_id: str) -> IndexState:
        check_side(snapshot_id, side)
        state = complete_index(self.cluster, snapshot_id)
        if not state.verified:
            raise CheckFailedError(
                f"The index {state.name} has not passed verification; run cogr-index verify "
                f"{snapshot_id}."
            )
        doing = f"asking for the health of {state.name}"
        health = self.cluster.call("GET", f"/_cluster/health/{state.name}", doing=doing)
        if health["status"] == "red":
            raise CheckFailedError(
                f"The index {state.name} has shards that are not there (red); see the cluster's "
                "health, or push the snapshot again."
            )
        return state


_SWITCHED = (
    "Another process has switched {} meanwhile; this one has switched nothing. Run the same "
    "command again."
)


def _check_expected(now: _Aliased, expected: Mapping[Side, str | None] | None) -> None:
    if not expected:
        return
    for side, states in now.items():
        # An alias of several indexes names no snapshot (`pair_of`).
        served = states[0].snapshot if len(states) == 1 else None
        if served != expected[side]:
            raise LockedError(_SWITCHED.format(f"the {side} side"))


_AT_ONCE, _END = 8, 100
"""Texts that are searched at once, and characters of each: a cluster limits clauses."""
_BATCH = 500
"""Documents that are compared at once."""
_REPAIR = "delete it and push the snapshot again"
_SPELLED = 200


def _check_documents(
    cluster: Cluster, index: str, snapshot: Snapshot, rows: Collection[int], advance: Advance
) -> None:
    expected = documents(snapshot, rows)
    while batch := dict(islice(expected, _BATCH)):
        body = {"query": {"ids": {"values": list(batch)}}, "size": len(batch)}
        hits = search.ask(cluster, index, body)["hits"]["hits"]
        stored = {hit["_id"]: hit["_source"] for hit in hits}
        for id_, document in batch.items():
            document.pop(WORDS, None)  # It is not stored: `_check_texts`.
            _check_document(index, id_, document, stored.get(id_, {}))
        advance(len(batch))


def _check_texts(cluster: Cluster, state: IndexState, snapshot: Snapshot) -> None:
    # Each item of a sample is found by the end of what is searched of it. Not by every word, since
    # what is cut may be read otherwise than the whole.
    if not state.meta.get("search_text"):
        return
    how = {"minimum_should_match": "60%", "zero_terms_query": "all"}
    expected = documents(snapshot, compared(snapshot, every=False))
    while batch := {id_: " ".join(one[WORDS])[-_END:] for id_, one in islice(expected, _AT_ONCE)}:
        texts = {id_: {"match": {WORDS: {"query": end, **how}}} for id_, end in batch.items()}
        clauses = [
            {"bool": {"filter": [{"term": {"_id": id_}}, text]}} for id_, text in texts.items()
        ]
        body = {"query": {"bool": {"should": clauses}}, "size": _AT_ONCE, "_source": False}
        hits = {hit["_id"] for hit in search.ask(cluster, state.name, body)["hits"]["hits"]}
        if lost := [id_ for id_ in batch if id_ not in hits]:
            raise CheckFailedError(
                f"The index {state.name} does not find {lost[0]!r} by its text; {_REPAIR}."
            )


def _check_document(
    index: str, id_: str, expected: Mapping[str, Any], stored: Mapping[str, Any]
) -> None:
    for name in sorted(expected.keys() | stored.keys()):
        here, there = (repr(one.get(name))[:_SPELLED] for one in (stored, expected))
        if stored.get(name) != expected.get(name):
            raise CheckFailedError(
                f"The field {name} of document {id_!r} in the index {index} is {here}, the "
                f"snapshot says {there}; {_REPAIR}."
            )


def _check_parity(cluster: Cluster, state: IndexState, mirror: Mirror, keywords: Keywords) -> int:
    boosts, index = boosts_of(keywords), state.name
    result = search.everything(cluster, state.name, boosts, fields=OWN[side_of(state.snapshot)])
    expected = mirror.search(boosts, len(mirror))
    if result.total != expected.total:
        raise CheckFailedError(
            f"The index {index} retrieves {result.total} for {list(boosts)}, the mirror "
            f"{expected.total}; {_REPAIR}."
        )
    live, ids = np.array([hit.score for hit in result.hits], np.float32), expected.ids
    same = live.view(np.uint32) == expected.scores.view(np.uint32)
    for rank, hit in enumerate(result.hits):
        if hit.id != ids[rank] or not same[rank]:
            raise CheckFailedError(
                f"At rank {rank + 1} for {list(boosts)} the index {index} has {hit.id!r} with "
                f"score {hit.score}, the mirror {ids[rank]!r} with "
                f"{float(expected.scores[rank])}; {_REPAIR}."
            )
    return expected.total
