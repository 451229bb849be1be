"""`cogr-index export`: snapshots as files for other systems.

A format turns a snapshot's rows into text, streaming, and may add files beside it. In the bulk
formats a keyword is one term, ranked by BM25 with the mirror's parameters. docs/exchange.md tells
which formats were run, and the limits of a synonym file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cogr.errors import UserError
from cogr.keywords import with_self
from cogr.records import Side
from cogr.snapshots import Snapshot
from cogr.store import Store
from indexers.backends.opensearch.client import Version
from indexers.backends.opensearch.mapping import PLURAL, document, index_settings, mapping, meta_of
from indexers.exchange.imports import manifest_beside


@dataclass(frozen=True)
class Exported:
    """The result of an export: entities in the file, and the files beside it."""

    entities: int
    beside: list[str]


def export(snapshot: Snapshot, to: Path, format_: str, prefix: str = "cogr") -> Exported:
    """Write a snapshot's rows to a file, and what belongs to the format (manifest, mapping) beside
    it.

    Args:
        format_: one of NAMES.
        prefix: names of indexes in the formats of search engines begin with it.

    Raises:
        UserError: an unknown format, a format of the other side, or a folder that is not there.
        StorageError: the disk is full or read-only.
    """
    if format_ not in NAMES:
        raise UserError(f"The format {format_!r} is unknown; it is one of {', '.join(NAMES)}.")
    if not to.absolute().parent.is_dir():
        raise UserError(
            f"The folder {to.absolute().parent} is not there; create it, or name another file."
        )
    folder, beside = Store(to.absolute().parent), []
    if format_ in _IMPORTED:
        beside.append(manifest_beside(to).name)
        folder.write_json(beside[0], snapshot.manifest.model_dump(mode="json"))
    if format_ == "parquet":
        folder.write(to.name, snapshot.store.read(snapshot.path))
        return Exported(snapshot.manifest.entities, beside)
    chosen = FORMATS[format_]
    if chosen.side and chosen.side != snapshot.side:
        raise UserError(
            f"The format {format_} is for the side {chosen.side}; name a {chosen.side} snapshot."
        )
    with folder.replacing(to.name) as file:
        for piece in chosen.pieces(snapshot, prefix):
            file.write(piece.encode())
    for ending, text in chosen.beside(snapshot).items():
        beside.append(f"{to.name}.{ending}")
        folder.write(beside[-1], text.encode())
    return Exported(snapshot.manifest.entities, beside)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def _jsonl(snapshot: Snapshot, _prefix: str) -> Iterator[str]:
    """What `cogr-index import` reads back."""
    for row in snapshot.rows():
        record = {"id": row.id, "text": row.text, "self": row.self_keyword}
        more = {"weights": row.weights, "confidence": row.confidence, "fields": row.fields}
        there = {name: value for name, value in more.items() if value not in (None, (), {})}
        yield _line({**record, "keywords": row.keywords, **there})


def _bulk(snapshot: Snapshot, prefix: str) -> Iterator[str]:
    """The body of a `_bulk` request."""
    index = f"{prefix}-{PLURAL[snapshot.side]}"
    for row in snapshot.rows():
        keywords = with_self(row.self_keyword, row.keywords)
        yield _line({"index": {"_index": index, "_id": row.id}})
        yield _line(document(snapshot.side, row) | {"keywords": keywords})


def _mapping(snapshot: Snapshot, version: Version) -> Mapping[str, str]:
    """The body of `PUT /<index>`."""
    body = {
        "settings": index_settings(1),
        "mappings": mapping(snapshot.side, version, meta_of(snapshot.manifest)),
    }
    return {"mapping.json": json.dumps(body, ensure_ascii=False, indent=1) + "\n"}


def _opensearch_mapping(snapshot: Snapshot) -> Mapping[str, str]:
    return _mapping(snapshot, Version(3, 0, "3.0.0"))


def _elasticsearch_mapping(snapshot: Snapshot) -> Mapping[str, str]:
    """Elasticsearch scores keyword fields that have norms and frequencies, and knows no
    `use_similarity`: as OpenSearch 2.
    """
    return _mapping(snapshot, Version(2, 4, "2.4.0"))


def _synonyms(snapshot: Snapshot, _prefix: str) -> Iterator[str]:
    """`query => query, keyword, ...`, in Solr's synonym format, which OpenSearch's and
    Elasticsearch's filter `synonym_graph` reads: what is typed is replaced by S ∪ {self}.

    Of several queries with one text the first by id counts. Memory: the texts of the queries.
    """
    yield f"# Keywords of the queries of {snapshot.id}\n"
    seen: set[str] = set()
    for row in snapshot.rows():
        own = row.self_keyword
        if own and row.keywords and own not in seen:
            seen.add(own)
            yield f"{_escaped(own)} => {', '.join(map(_escaped, (own, *row.keywords)))}\n"


def _escaped(word: str) -> str:
    """A backslash takes the meaning from commas, arrows, and the sign of a comment."""
    escaped = word.replace("\\", "\\\\").replace(",", "\\,").replace("=>", "\\=>")
    return f"\\{escaped}" if escaped.startswith("#") else escaped


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        pieces: the file's text, streaming, of a snapshot and the prefix of index names.
        beside: ending -> text of the files beside it.
        side: its only side; None for both.
    """

    pieces: Callable[[Snapshot, str], Iterator[str]]
    beside: Callable[[Snapshot], Mapping[str, str]] = lambda _: {}
    side: Side | None = None


FORMATS: Mapping[str, Format] = {
    "jsonl": Format(_jsonl),
    "bulk": Format(_bulk, _opensearch_mapping),
    "elasticsearch": Format(_bulk, _elasticsearch_mapping),
    "synonyms": Format(_synonyms, side="query"),
}
"""By name, as `cogr-index export --format` takes them; parquet is the snapshot's own file."""
_IMPORTED = ("jsonl", "parquet")
"""Formats that `cogr-index import` reads: the manifest goes beside them."""
NAMES = (*_IMPORTED, *(name for name in FORMATS if name not in _IMPORTED))
