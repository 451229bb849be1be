"""Documents and schemas for search engines: OpenSearch, Elasticsearch, Solr, Vespa. docs/export.md
says what of it has been run.

In all of them a keyword is one term, lengths are kept, and BM25 with k1 1.2 and b 0.75 ranks, as in
the mirror.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cogr.matching.bm25 import DEFAULT
from cogr.snapshots import Row, Snapshot
from indexers.backends.opensearch.client import Version
from indexers.backends.opensearch.mapping import PLURAL, index_settings, mapping, meta_of
from indexers.exchange.formats.base import Format, line, page, whole_set

_NEWEST = Version(3, 0, "3.0.0")
_OLDER = Version(2, 4, "2.4.0")


def _index(snapshot: Snapshot, prefix: str) -> str:
    return f"{prefix}-{PLURAL[snapshot.side]}"


def _fields(snapshot: Snapshot, row: Row) -> dict[str, Any]:
    fields = {f"{snapshot.side}_id": row.id, "text": row.text, "keywords": whole_set(row)}
    return fields | (
        {"self": row.self_keyword, "generated": row.keywords} if snapshot.side == "query" else {}
    )


def _bulk(snapshot: Snapshot, prefix: str) -> Iterator[str]:
    for row in snapshot.rows():
        yield line({"index": {"_index": _index(snapshot, prefix), "_id": row.id}})
        yield line({**_fields(snapshot, row), **row.fields})


def _mapping(snapshot: Snapshot, version: Version) -> Mapping[str, str]:
    body = {
        "settings": index_settings(1),
        "mappings": mapping(snapshot.side, version, meta_of(snapshot.manifest)),
    }
    return {"mapping.json": page(body)}


def _opensearch_mapping(snapshot: Snapshot, _prefix: str) -> Mapping[str, str]:
    return _mapping(snapshot, _NEWEST)


def _elasticsearch_mapping(snapshot: Snapshot, _prefix: str) -> Mapping[str, str]:
    """Elasticsearch scores keyword fields that have norms and frequencies, and knows no
    `use_similarity`.
    """
    return _mapping(snapshot, _OLDER)


def _solr(snapshot: Snapshot, _prefix: str) -> Iterator[str]:
    """An array of documents, for POST /solr/<collection>/update."""
    between = "[\n"
    for row in snapshot.rows():
        fields = _fields(snapshot, row)
        yield between + line({"id": row.id, **fields}).rstrip("\n")
        between = ",\n"
    yield "\n]\n" if between == ",\n" else "[]\n"


def _solr_schema(snapshot: Snapshot, _prefix: str) -> Mapping[str, str]:
    """Commands for the Schema API, POST /solr/<collection>/schema. `id` is there already."""
    similarity = {"class": "solr.BM25SimilarityFactory", "k1": DEFAULT.k1, "b": DEFAULT.b}
    scored = {
        "name": "cogr_keyword",
        "class": "solr.TextField",
        "omitNorms": False,
        "omitPositions": True,
        "similarity": similarity,
        "analyzer": {"tokenizer": {"class": "solr.KeywordTokenizerFactory"}},
    }
    sortable = {"type": "string", "indexed": True, "stored": True, "docValues": True}
    fields = [
        {"name": f"{snapshot.side}_id", **sortable},
        {"name": "text", "type": "string", "indexed": False, "stored": True, "docValues": False},
        {
            "name": "keywords",
            "type": "cogr_keyword",
            "indexed": True,
            "stored": True,
            "multiValued": True,
        },
    ]
    if snapshot.side == "query":
        kept = {
            "type": "string",
            "indexed": False,
            "stored": True,
            "docValues": False,
            "multiValued": True,
        }
        fields += [{"name": "self", **sortable}, {"name": "generated", **kept}]
    return {"schema.json": page({"add-field-type": scored, "add-field": fields})}


def _vespa(snapshot: Snapshot, prefix: str) -> Iterator[str]:
    """The feed, for `vespa feed FILE`."""
    kind = _vespa_name(snapshot, prefix)
    for row in snapshot.rows():
        fields = _fields(snapshot, row)
        yield line({"put": f"id:{kind}:{kind}::{row.id}", "fields": fields})


def _vespa_name(snapshot: Snapshot, prefix: str) -> str:
    return _index(snapshot, prefix).replace("-", "_")


def _vespa_schema(snapshot: Snapshot, prefix: str) -> Mapping[str, str]:
    """The schema. `match: word` makes a whole keyword one term."""
    name, side = _vespa_name(snapshot, prefix), snapshot.side
    more = ""
    if side == "query":
        more = """
        field self type string {
            indexing: summary | attribute
            match: word
            attribute: fast-search
        }
        field generated type array<string> {
            indexing: summary
        }"""
    schema = f"""schema {name} {{
    document {name} {{
        field {side}_id type string {{
            indexing: summary | attribute
        }}
        field text type string {{
            indexing: summary
        }}
        field keywords type array<string> {{
            indexing: summary | index
            match: word
            index: enable-bm25
        }}{more}
    }}
    rank-profile keywords inherits default {{
        rank-properties {{
            bm25(keywords).k1: {DEFAULT.k1}
            bm25(keywords).b: {DEFAULT.b}
        }}
        first-phase {{
            expression: bm25(keywords)
        }}
    }}
}}
"""
    return {"sd": schema}


FORMATS = {
    "bulk": Format(_bulk, _opensearch_mapping),
    "elasticsearch": Format(_bulk, _elasticsearch_mapping),
    "solr": Format(_solr, _solr_schema),
    "vespa": Format(_vespa, _vespa_schema),
}
