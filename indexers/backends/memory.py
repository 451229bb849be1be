"""The backend `memory`: the mirror itself behind the protocol. No server; the embedded default.

Each process builds the mirrors that it needs, a second for 100,000 items. A push indexes items'
texts, for all snapshots of the same texts, and notes a snapshot in `memory/<id>.json`;
`memory/serving.json`, replaced atomically, says what serves. Scores are those of OpenSearch 3.x.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from pyroaring import BitMap

from cogr import __version__
from cogr.errors import (
    CheckFailedError,
    LockedError,
    SnapshotError,
    StorageError,
)
from cogr.keywords import query_key, self_keyword
from cogr.mapped import Strings
from cogr.matching.mirror import Mirror
from cogr.matching.postings import to_array, to_bitmap
from cogr.records import SIDES, Advance, FieldValue, Side, fields_of, values_of
from cogr.snapshots import (
    CONFIDENCE,
    ID,
    WEIGHTS,
    Manifest,
    Row,
    Snapshot,
    check_normalisers,
    check_side,
    open_snapshot,
    read_manifest,
    round_of,
    rows_of,
)
from cogr.snapshots.texts import whole_texts
from cogr.snapshots.writing import SCHEMA
from cogr.store import Store, as_json, file_sha256, storage_errors
from indexers.backends import (
    MAX_TEXT,
    NAMED_BOOST,
    Backend,
    Bodies,
    Hit,
    Keywords,
    Listed,
    Pair,
    Pushed,
    SearchResult,
    ServedSide,
    Tier,
    Verified,
    Words,
    boosts_of,
    compared,
    language_of,
)
from indexers.text import DETECT, Analyser, CodeIndex, WordIndex

T = TypeVar("T")

log = logging.getLogger(__name__)

_SERVING = "memory/serving.json"
_PAIR = TypeAdapter(dict[Side, str | None])
_NOTE = TypeAdapter(dict[str, bool])
_ANSWERS = pa.schema([*SCHEMA, WEIGHTS, CONFIDENCE])
_OWNERS, _SUMS = "owners.npy", "files.json"
INDEXES = "text_index"
"""The folder of the store that keeps indexes of items' texts."""
_TIERS: Sequence[Tier] = ("set", "more")
_SWITCHED = (
    "Another process has switched or removed a snapshot meanwhile; this one has switched nothing. "
    "Run the same command again."
)


@dataclass(frozen=True)
class Opened:
    """A snapshot to search: its mirror, and texts and extra fields in the mirror's order, each read
    when it is first asked for.
    """

    snapshot: Snapshot

    @cached_property
    def mirror(self) -> Mirror:
        """The snapshot's mirror, built at the first use. Raises StorageError."""
        return mirror_of(self.snapshot)

    @cached_property
    def texts(self) -> Strings:
        return self.snapshot.texts()

    @cached_property
    def extra(self) -> Strings | None:
        """The extra fields as JSON objects, by number; None where the snapshot has none."""
        return self.snapshot.fields()

    @cached_property
    def searched(self) -> _TextIndex:
        """What a search by text reads. Raises as `_TextIndex.of`."""
        return _TextIndex.of(self.snapshot)

    @cached_property
    def _places(self) -> Mapping[str, int]:
        ids = self.mirror.ids.arrow.to_pylist()
        return dict(zip(map(str.casefold, ids), range(len(ids)), strict=True))

    @cached_property
    def _answers(self) -> pa.Table:
        return pa.Table.from_batches(self.snapshot.batches(_ANSWERS.names), _ANSWERS)

    @cached_property
    def _keys(self) -> pa.Array:
        return pa.array(map(query_key, self._answers["text"].to_pylist()), pa.string())

    def row_of(self, text: str) -> Row | None:
        """The row of a query snapshot with this text, else with its own keyword, since a shopper's
        "sofa!" means "sofa" where only that is known; None when there is none.
        """
        table, own = self._answers, self_keyword(text)
        place = pc.index(self._keys, query_key(text)).as_py()
        place = pc.index(table["self"], own).as_py() if place < 0 and own else place
        batches = table.slice(place, 1).combine_chunks().to_batches() if place >= 0 else ()
        return next((row for batch in batches for row in rows_of(batch)), None)

    def fields_of(self, dense: int) -> Mapping[str, FieldValue]:
        return fields_of(self.extra[dense]) if self.extra else {}

    def literal(self, text: str) -> BitMap:
        """Items that the text is the id of, whose part number it begins, or that have all of its
        words in one field; dense ids.
        """
        own = self._places.get(text.strip().casefold())
        named = BitMap() if own is None else BitMap([own])
        return named | to_bitmap(self.searched.literal(text[:MAX_TEXT]).astype(np.uint32))

    def _named(self, text: str) -> list[int]:
        # Items that the text is the id or the part number of.
        own = self._places.get(text.strip().casefold())
        return [*self.searched.codes.find(text)[0].tolist(), *([] if own is None else [own])]

    def set_of(self, boosts: Mapping[str, float], words: Words) -> BitMap:
        """The set of a search, dense ids: what keywords find, and literal matches, but nothing with
        a keyword of weight 0.
        """
        items = self.mirror.retrieved([word for word, weight in boosts.items() if weight])
        for text in words.texts:
            items = items | self.literal(text)
        buried = [word for word, weight in boosts.items() if not weight]
        return items - self.mirror.retrieved(buried)

    def rank(self, boosts: Mapping[str, float], words: Words | None, size: int) -> Ranked:
        """Both tiers of a search; without words the best `size` by keywords."""
        if words is not None:
            return self._blended(boosts, words)
        ranking = self.mirror.search(boosts, size)
        return Ranked(ranking.dense, ranking.scores, ranking.total)

    def _blended(self, boosts: Mapping[str, float], words: Words) -> Ranked:
        searched, mirror = self.searched, self.mirror
        by_text = np.maximum.reduce([searched.whole.scores(text) for text in words.texts])
        by_text *= np.float32(words.boost)
        ranking = mirror.search(boosts, len(mirror))
        scores, more = by_text.copy(), np.ones(len(mirror), np.bool_)
        scores[ranking.dense] += ranking.scores
        scores[np.unique(np.array(self._named(words.texts[0]), np.int64))] += NAMED_BOOST
        more[to_array(self.set_of(boosts, words))] = False
        scored = np.flatnonzero((scores > 0) | ~more)
        best = scored[np.lexsort((-scores[scored], more[scored]))]
        total = int((~more).sum())
        return Ranked(best, scores[best], total, scored.size - total, by_text)

    def hits(
        self, ranked: Ranked, boosts: Mapping[str, float], size: int, *, explain: bool
    ) -> list[Hit]:
        """The best of a search, with their texts."""
        hits = []
        for at, dense in enumerate(ranked.dense[:size].tolist()):
            entity, tier = self.mirror.ids[dense], _TIERS[at >= ranked.total]
            parts = self.mirror.explain(boosts, entity) if explain else {}
            part = float(ranked.by_text[dense]) if explain and ranked.by_text is not None else 0.0
            score, fields = float(ranked.scores[at]), self.fields_of(dense)
            hits.append(Hit(entity, score, self.texts[dense], parts, fields, part, tier))
        return hits


class MemoryBackend:
    """Snapshots of a store, searched in this process."""

    name = catalogue = "memory"

    def __init__(self, store: Store) -> None:
        self._store = store
        # Both sides of the serving pair, and both of another pair.
        self._opened = lru_cache(maxsize=4)(lambda id_: Opened(open_snapshot(store, id_)))
        self._side = lru_cache(maxsize=4)(self._read_side)

    def push(self, snapshot: Snapshot) -> Pushed:
        """Index the texts of items, where the store has no such index or a damaged one, and note
        the snapshot. Idempotent.
        """
        started, entities = time.perf_counter(), snapshot.manifest.entities
        known = self._note(snapshot.id) is not None
        if snapshot.side == "item":
            _TextIndex.of(snapshot, checked=True)
        if not known:
            self._write_note(snapshot.id, verified=False)
        seconds = time.perf_counter() - started
        return Pushed(_note_path(snapshot.id), entities, 0 if known else entities, seconds)

    def verify(
        self,
        snapshot: Snapshot,
        queries: Iterable[Keywords],
        *,
        every: bool = False,
        advance: Advance = lambda _: None,
    ) -> Verified:
        """Compare the mirror with the snapshot."""
        self._pushed(snapshot.id)
        try:
            rows = compared(snapshot, every=every)
            verified = _check(mirror_of(snapshot), snapshot, queries, rows, advance)
        except CheckFailedError:
            self._write_note(snapshot.id, verified=False)
            raise
        self._write_note(snapshot.id, verified=True)
        return verified

    def publish(
        self, snapshots: Mapping[Side, str], expected: Mapping[Side, str | None] | None = None
    ) -> Mapping[Side, str | None]:
        """Switch the given sides at once."""
        for side, id_ in snapshots.items():
            check_side(id_, side)
            if not self._pushed(id_).get("verified"):
                raise CheckFailedError(
                    f"The mirror of {id_} has not passed verification; run cogr-index verify {id_}."
                )
        content = self._store.read(_SERVING) if self._store.exists(_SERVING) else None
        before = self.serving()
        pair = {**before, **snapshots}
        manifests = map(self._manifest, filter(None, pair.values()))
        check_normalisers({one.id: one.normaliser for one in manifests if one})
        same = expected is None or before.items() >= expected.items()
        if not same or not (pair == before or self._store.swap(_SERVING, content, as_json(pair))):
            raise LockedError(_SWITCHED)
        if not all(map(self._note, snapshots.values())):
            # A prune removed one while this process slept; and `delete` looks after it removed.
            self._store.swap(_SERVING, as_json(pair), as_json(before))
            raise LockedError(_SWITCHED)
        return {side: before[side] for side in snapshots}

    def serving(self) -> Mapping[Side, str | None]:
        known = self._read(_SERVING, _PAIR) or {}
        return {side: known.get(side) for side in SIDES}

    def pair(self, *, counted: bool = False) -> Pair:  # noqa: ARG002 (nothing to count)
        """What serves. A damaged manifest is a flaw."""
        sides: dict[Side, ServedSide] = {}
        flaws = []
        for side, id_ in self.serving().items():
            try:
                sides |= {side: self._side(id_)} if id_ else {}
            except SnapshotError as error:
                sides[side] = ServedSide(str(id_), "", round_of(str(id_)), "")
                flaws.append(str(error).rstrip("."))
        return Pair(sides.get("item"), sides.get("query"), tuple(flaws))

    def state(self, _places: Sequence[str], /) -> Mapping[str, str | None]:
        """What serves; there are no indexes of other teams."""
        return dict(self.serving().items())

    def list(self) -> Sequence[Listed]:
        serving = set(self.serving().values())
        names = (name.removesuffix(".json") for name in self._store.list("memory"))
        listed = []
        for id_ in filter(ID.fullmatch, names):
            manifest = self._manifest(id_)
            entities = manifest.entities if manifest else 0
            complete = self._pushed(id_).get("verified", False)
            listed.append(Listed(id_, entities, id_ in serving, complete))
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
        opened, boosts = self._searched(snapshot), boosts_of(keywords)
        ranked = opened.rank(boosts, words, size)
        hits = opened.hits(ranked, boosts, size, explain=explain)
        return SearchResult(ranked.total, hits, ranked.more)

    def retrieved(
        self, keywords: Keywords, *, snapshot: str, words: Words | None = None
    ) -> SearchResult:
        opened = self._searched(snapshot)
        ranked = opened.rank(boosts_of(keywords), words, len(opened.mirror))
        ids = map(opened.mirror.ids.__getitem__, ranked.dense[: ranked.total].tolist())
        hits = list(map(Hit, ids, ranked.scores.tolist()))
        return SearchResult(ranked.total, hits)

    def lookup(self, text: str, *, snapshot: str) -> Row | None:
        return self._searched(snapshot).row_of(text)

    def delete(self, snapshot: str) -> None:
        """Forget a pushed snapshot. Raises SnapshotError while it serves."""
        note, serves = self._pushed(snapshot), snapshot in self.serving().values()
        if not serves:
            self._store.remove(_note_path(snapshot))
            if serves := snapshot in self.serving().values():
                self._store.write_json(_note_path(snapshot), note)
        if serves:
            raise SnapshotError(
                f"Snapshot {snapshot} serves; publish another one before deleting it."
            )
        self.close()

    def close(self) -> None:
        self._opened.cache_clear()

    def _searched(self, snapshot_id: str) -> Opened:
        self._pushed(snapshot_id)
        return self._opened(snapshot_id)

    def _pushed(self, snapshot_id: str) -> dict[str, bool]:
        note = self._note(snapshot_id)
        if note is None:
            raise SnapshotError(
                f"Snapshot {snapshot_id} is not in the memory backend of {self._store.url}; run "
                f"cogr-index publish {snapshot_id}."
            )
        return note

    def _note(self, snapshot_id: str) -> dict[str, bool] | None:
        return self._read(_note_path(snapshot_id), _NOTE)

    def _read(self, path: str, kind: TypeAdapter[T]) -> T | None:
        try:
            return kind.validate_json(self._store.read(path))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise StorageError(
                f"The file {path} in {self._store.url} is damaged; remove it, then publish again."
            ) from error

    def _write_note(self, snapshot_id: str, *, verified: bool) -> None:
        self._store.write_json(_note_path(snapshot_id), {"verified": verified})

    def _read_side(self, snapshot_id: str) -> ServedSide:
        return ServedSide.of(read_manifest(self._store, snapshot_id))

    def _manifest(self, snapshot_id: str) -> Manifest | None:
        try:
            return read_manifest(self._store, snapshot_id)
        except SnapshotError:  # It is damaged.
            return None


class LiveMemory:
    """The memory backend of a store, for catalogues that fit into one process."""

    name = "store"
    errors: tuple[type[Exception], ...] = ()
    patience = 60.0
    """It opens a new pair, for which no query waits: the previous one stays in use."""

    def __init__(self, backend: Backend, bodies: Callable[[Keywords, Words], Bodies]) -> None:
        self._backend, self._bodies, self._warm = backend, bodies, ""

    async def pair(self) -> Pair:
        return await asyncio.to_thread(self._read_pair)

    def _read_pair(self) -> Pair:
        pair = self._backend.pair()
        if pair.query and pair.query.snapshot != self._warm:
            # The first lookup opens the snapshot and loads parts of pyarrow, which takes longer
            # than a query's deadline.
            self._backend.lookup("a query", snapshot=pair.query.snapshot)
            self._warm = pair.query.snapshot
        return pair

    async def lookup(self, query: ServedSide, text: str) -> Row | None:
        return await asyncio.to_thread(self._backend.lookup, text, snapshot=query.snapshot)

    def bodies(self, _: ServedSide | None, keywords: Keywords, words: Words) -> Bodies:
        """The bodies that search CoGR's own index."""
        return self._bodies(keywords, words)

    async def close(self) -> None:
        self._backend.close()


@dataclass(frozen=True)
class _TextIndex:
    """What a text search of one item snapshot reads, by numbers of its rows.

    Attributes:
        whole: title and text of each item.
        spoken: titles and text values of fields, in one of which a literal match has every word.
        owners: the item of each of these, shape (spoken,).
        codes: part numbers in these and in ids, by item.
    """

    whole: WordIndex
    spoken: WordIndex
    owners: NDArray[np.int64]
    codes: CodeIndex

    @classmethod
    def of(cls, snapshot: Snapshot, *, checked: bool = False) -> _TextIndex:
        """The index of a snapshot, mapped. A local store keeps it for all snapshots whose items
        read the same; elsewhere each process makes its own. `checked`: the files' content is
        hashed, which takes time by their size; else their sizes tell whether they are whole.

        Raises SnapshotError where texts are lost.
        """
        store, named = snapshot.store, snapshot.manifest.generator.get("language") or DETECT
        if not store.is_local:
            return cls._made(snapshot, Analyser(language_of(snapshot)))
        folder = store.local(f"{INDEXES}/{index_name_of(snapshot.manifest, named)}")
        language = _language_in(folder, checked=checked)
        if language:
            with suppress(OSError, ValueError, TypeError, LookupError):  # Damaged: it is made anew.
                return cls._open(folder, Analyser(language))
        made = cls._made(snapshot, Analyser(language or language_of(snapshot)))
        try:
            with storage_errors(store.url):
                made._keep(folder, made.whole.analyser.language)
        except StorageError as error:  # A process that only searches may have no right to write.
            log.warning("The index of texts is not kept. %s", error)
            return made
        return cls._open(folder, made.whole.analyser)

    @classmethod
    def _open(cls, folder: Path, analyser: Analyser) -> _TextIndex:
        whole, spoken = (WordIndex.open(folder / part, analyser) for part in ("whole", "spoken"))
        owners = np.load(folder / _OWNERS, mmap_mode="r")
        return cls(whole, spoken, owners, CodeIndex.open(folder))

    @classmethod
    def _made(cls, snapshot: Snapshot, analyser: Analyser) -> _TextIndex:
        whole = WordIndex.of(map(" ".join, whole_texts(snapshot)), analyser)
        titles, fields = snapshot.texts(), snapshot.fields()
        values = [(at, value) for at, one in enumerate(fields or ()) for value in _said(one)]
        spoken = WordIndex.of(chain(titles, (value for _, value in values)), analyser)
        owners = np.array([at for at, _ in values], np.int64)
        ids = (row.id for row in snapshot.rows())
        codes = CodeIndex.of(chain(enumerate(ids), enumerate(titles), values))
        return cls(whole, spoken, np.concatenate([np.arange(len(titles)), owners]), codes)

    def _keep(self, folder: Path, language: str) -> None:
        made = folder.with_name(f".tmp-{uuid.uuid4().hex}")
        made.mkdir(parents=True)
        try:
            self.whole.save(made / "whole")
            self.spoken.save(made / "spoken")
            np.save(made / _OWNERS, self.owners)
            self.codes.save(made)
            (made / _SUMS).write_text(json.dumps({"language": language, "files": _sums(made)}))
            if folder.exists() and not _language_in(folder, checked=True):
                shutil.rmtree(folder)
            # Of two processes at once one is too late, and has made the same.
            with suppress(OSError) if folder.exists() else nullcontext():
                made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def literal(self, text: str) -> NDArray[np.int64]:
        """Items that have all words of the text in one field, or a part number that begins so."""
        begun = self.codes.find(text)[1]
        return np.union1d(begun, self.owners[self.spoken.literal(text)])


def index_name_of(manifest: Manifest, language: str = "") -> str:
    """The folder of a snapshot's index of texts, by their named language, or `DETECT`; without it,
    what its name begins with. Another version may read texts otherwise, and makes its own.
    """
    return f"{manifest.read_hash[:24]}-" + (f"{language}-{__version__}" if language else "")


def _sums(folder: Path, *, hashed: bool = True) -> dict[str, list[Any]]:
    # Path -> size, and hash of the content.
    files = sorted(path for path in folder.rglob("*.*") if path.is_file() and path.name != _SUMS)
    return {
        str(path.relative_to(folder)): [path.stat().st_size, *map(file_sha256, [path][:hashed])]
        for path in files
    }


def _language_in(folder: Path, *, checked: bool) -> str:
    # That of a sound index; "" of none. Detecting it again would read texts.
    try:
        noted = json.loads((folder / _SUMS).read_bytes())
        files = {name: one if checked else one[:1] for name, one in noted["files"].items()}
        return str(noted["language"]) if files == _sums(folder, hashed=checked) else ""
    except (OSError, ValueError, LookupError):
        return ""


def _said(fields_json: str) -> Iterator[str]:
    for value in fields_of(fields_json).values():
        yield from (one for one in values_of(value) if isinstance(one, str))


@dataclass(frozen=True)
class Ranked:
    """Dense ids, the set's first, with scores; the sizes of both tiers; the text's part of each
    entity's score.
    """

    dense: NDArray[Any]
    scores: NDArray[np.float32]
    total: int
    more: int = 0
    by_text: NDArray[np.float32] | None = None


def _note_path(snapshot_id: str) -> str:
    return f"memory/{snapshot_id}.json"


def _check(
    mirror: Mirror,
    snapshot: Snapshot,
    queries: Iterable[Keywords],
    chosen: Collection[int],
    advance: Advance,
) -> Verified:
    if len(mirror) != snapshot.manifest.entities:
        raise CheckFailedError(
            f"The mirror of {snapshot.id} has {len(mirror)} entities, the snapshot "
            f"{snapshot.manifest.entities}; delete it and push again."
        )
    for number, row in zip(sorted(chosen), snapshot.rows(chosen), strict=True):
        own = dict.fromkeys((*row.keywords, row.self_keyword))
        if mirror.keywords_of(number) != tuple(filter(None, own)):
            raise CheckFailedError(
                f"The mirror of {snapshot.id} has other keywords for {row.id!r} than the "
                "snapshot; delete it and push again."
            )
        advance(1)
    totals = [mirror.search(boosts_of(one), len(mirror)).total for one in queries]
    return Verified(_note_path(snapshot.id), len(mirror), len(chosen), len(totals), sum(totals))


_KEPT = 4
_built: dict[str, Mirror] = {}


def mirror_of(snapshot: Snapshot) -> Mirror:
    """The mirror of a snapshot; this process keeps the last ones that it built. Raises
    StorageError.
    """
    key = snapshot.manifest.content_hash
    built = _built.get(key)
    if built is None:
        while len(_built) >= _KEPT:
            _built.pop(next(iter(_built)), None)  # The oldest; another thread may have been faster.
        built = _built[key] = Mirror.build(snapshot)
    return built
