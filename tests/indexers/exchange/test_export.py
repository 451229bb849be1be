"""Exports, read by other means than those that wrote them: what is in the snapshot is in the file,
once and whole.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cogr.errors import UserError
from cogr.matching.mirror import Mirror
from cogr.settings import OpenSearchSettings
from cogr.snapshots import Row, Snapshot
from cogr.store import Store
from indexers.backends.opensearch.client import Cluster
from indexers.exchange.export import NAMES, export
from indexers.exchange.importing import import_snapshot
from tests.indexers.backends.backend_worlds import (
    SHOP,
    SHOPPERS,
    frozen,
    random_queries,
    random_world,
)

ODD = [
    Row("o1", "a, b => c", ("x\\y", "comma, inside", "it's")),
    Row("o2", "#hash", ("# not a comment", "=> arrow")),
    Row("o3", "no keywords", ()),
    Row("o4", "A,  B => C", ("never: the same text as of o1",)),
]


@pytest.fixture
def items(tmp_path: Path) -> Snapshot:
    return frozen(Store(tmp_path / "store"), "item", SHOP)


@pytest.fixture
def queries(tmp_path: Path) -> Snapshot:
    return frozen(Store(tmp_path / "store"), "query", [*SHOPPERS, *ODD])


def whole(row: Row) -> set[str]:
    return {word for word in (row.self_keyword, *row.keywords) if word}


def exported(snapshot: Snapshot, folder: Path, format_: str) -> tuple[str, dict[str, str]]:
    """The file's text, and those beside it by ending."""
    written = export(snapshot, folder / "out", format_, "shop")
    assert written.entities == snapshot.manifest.entities
    return (folder / "out").read_text("utf-8"), {
        name.removeprefix("out."): (folder / name).read_text("utf-8") for name in written.beside
    }


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_a_snapshot_comes_back_as_it_was(
    items: Snapshot, queries: Snapshot, tmp_path: Path, format_: str
) -> None:
    for snapshot in (items, queries):
        file = tmp_path / f"out.{format_}"
        assert export(snapshot, file, format_).beside == [f"out.{format_}.manifest.json"]
        back = import_snapshot(Store(tmp_path / f"other {snapshot.side}"), file, "item", 30)
        assert (back.id, list(back.rows())) == (snapshot.id, list(snapshot.rows()))


@pytest.mark.parametrize("format_", ["bulk", "elasticsearch"])
def test_bulk_files_are_pairs_of_lines_with_a_mapping_beside(
    items: Snapshot, queries: Snapshot, tmp_path: Path, format_: str
) -> None:
    for snapshot, index in ((items, "shop-items"), (queries, "shop-queries")):
        text, beside = exported(snapshot, tmp_path, format_)
        lines = [json.loads(line) for line in text.split("\n")[:-1]]
        rows = list(snapshot.rows())
        assert lines[::2] == [{"index": {"_index": index, "_id": row.id}} for row in rows]
        assert [set(document["keywords"]) for document in lines[1::2]] == [
            whole(row) for row in rows
        ]
        mapping = json.loads(beside["mapping.json"])["mappings"]
        assert {name for document in lines[1::2] for name in document} == set(mapping["properties"])
        keywords = mapping["properties"]["keywords"]
        assert (keywords["type"], keywords["norms"], keywords["index_options"]) == (
            "keyword",
            True,
            "freqs",
        )
        # Elasticsearch scores keyword fields anyway, and refuses a word that it does not know.
        assert ("use_similarity" in keywords) == (format_ == "bulk")


def test_solr_documents_fit_the_schema_beside(
    items: Snapshot, queries: Snapshot, tmp_path: Path
) -> None:
    for snapshot in (items, queries, frozen(items.store, "item", [])):
        text, beside = exported(snapshot, tmp_path, "solr")
        documents, rows = json.loads(text), list(snapshot.rows())
        assert [document["id"] for document in documents] == [row.id for row in rows]
        assert [set(document["keywords"]) for document in documents] == [whole(row) for row in rows]
        schema = json.loads(beside["schema.json"])
        fields = {field["name"]: field for field in schema["add-field"]}
        assert {name for document in documents for name in document} <= {"id", *fields}
        assert {field["type"] for field in fields.values()} == {
            "string",
            schema["add-field-type"]["name"],
        }
        several = {
            name
            for document in documents
            for name, value in document.items()
            if isinstance(value, list)
        }
        assert several <= {name for name, field in fields.items() if field.get("multiValued")}
        assert (
            schema["add-field-type"]["analyzer"]["tokenizer"]["class"]
            == "solr.KeywordTokenizerFactory"
        )


def test_the_vespa_feed_fits_the_schema_beside(
    items: Snapshot, queries: Snapshot, tmp_path: Path
) -> None:
    for snapshot, kind in ((items, "shop_items"), (queries, "shop_queries")):
        text, beside = exported(snapshot, tmp_path, "vespa")
        feed, rows = [json.loads(line) for line in text.splitlines()], list(snapshot.rows())
        # The last part of a document id is the user's, whatever is in it.
        assert [put["put"].split(":", 4)[1:3] for put in feed] == [[kind, kind]] * len(rows)
        assert [put["put"].split("::", 1)[1] for put in feed] == [row.id for row in rows]
        assert [set(put["fields"]["keywords"]) for put in feed] == [whole(row) for row in rows]
        ((name, schema),) = blocks(beside["sd"]).items()
        fields = {
            key.split()[1]: key for key in schema[f"document {kind}"] if key.startswith("field ")
        }
        assert name == f"schema {kind}"
        assert set(feed[0]["fields"]) == set(fields)
        for field, head in fields.items():
            array = isinstance(feed[0]["fields"][field], list)
            assert head == f"field {field} type {'array<string>' if array else 'string'}"
        keywords = schema[f"document {kind}"]["field keywords type array<string>"]
        assert keywords == {"indexing": "summary | index", "match": "word", "index": "enable-bm25"}
        profile = schema["rank-profile keywords inherits default"]
        assert profile["first-phase"] == {"expression": "bm25(keywords)"}


def blocks(text: str) -> dict[str, Any]:
    """A schema as nested blocks `head { ... }` of lines `name: value`."""
    root: dict[str, Any] = {}
    open_ = [root]
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.endswith("{"):
            open_.append(open_[-1].setdefault(line[:-1].strip(), {}))
        elif line == "}":
            open_.pop()
        else:
            name, value = re.split(r":\s*", line, maxsplit=1)
            open_[-1][name] = value
    assert open_ == [root]
    return root


def solr_rules(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """(what is typed, what takes its place) as Lucene's SolrSynonymParser reads a line: one
    character after the other.
    """
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        sides: list[list[str]] = [[""]]
        at = 0
        while at < len(line):
            if line[at] == "\\":
                sides[-1][-1] += line[at + 1]
                at += 2
            elif line.startswith("=>", at):
                sides.append([""])
                at += 2
            elif line[at] == ",":
                sides[-1].append("")
                at += 1
            else:
                sides[-1][-1] += line[at]
                at += 1
        before, after = ([word.strip() for word in side] for side in sides)
        yield before, after


def test_synonyms_replace_a_query_by_its_keywords(queries: Snapshot, tmp_path: Path) -> None:
    text, _ = exported(queries, tmp_path, "synonyms")
    rules = list(solr_rules(text))
    expected: dict[str, list[str]] = {}
    for row in queries.rows():
        if row.keywords and row.self_keyword:
            expected.setdefault(row.self_keyword, [row.self_keyword, *row.keywords])
    assert rules == [([own], words) for own, words in expected.items()]
    assert any("comma, inside" in after for _, after in rules)


def test_wordnet_facts_have_one_synset_a_query(queries: Snapshot, tmp_path: Path) -> None:
    text, _ = exported(queries, tmp_path, "wordnet")
    synsets: dict[str, list[str]] = {}
    for line in text.splitlines():
        number, place, word = re.fullmatch(
            r"s\((\d{9}),(\d+),'((?:[^']|'')*)',n,1,0\)\.", line
        ).groups()  # type: ignore[union-attr]
        synsets.setdefault(number, []).append(word.replace("''", "'"))
        assert len(synsets[number]) == int(place)
    solr, _ = exported(queries, tmp_path, "synonyms")
    assert list(synsets.values()) == [after for _, after in solr_rules(solr)]


def test_what_can_not_be_exported_is_refused(items: Snapshot, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is for the side query"):
        export(items, tmp_path / "out", "synonyms")
    with pytest.raises(UserError, match=f"is one of {', '.join(NAMES)}"):
        export(items, tmp_path / "out", "csv")
    with pytest.raises(UserError, match="is not there; create it"):
        export(items, tmp_path / "no" / "out", "jsonl")
    assert not (tmp_path / "out").exists()


@pytest.mark.server
def test_a_bulk_file_by_hand_gives_the_mirrors_scores(
    opensearch: OpenSearchSettings, tmp_path: Path
) -> None:
    rows = random_world(120)
    snapshot = frozen(Store(tmp_path / "store"), "item", rows)
    prefix = f"test-{uuid.uuid4().hex[:8]}"
    export(snapshot, tmp_path / "out", "bulk", prefix)
    cluster, index = Cluster(opensearch), f"{prefix}-items"
    mapping = json.loads((tmp_path / "out.mapping.json").read_text())
    cluster.call("PUT", f"/{index}", body=mapping, doing="as the docs say")
    answer = cluster.call(
        "POST", "/_bulk", body=(tmp_path / "out").read_bytes(), doing="as the docs say"
    )
    assert answer["errors"] is False
    cluster.call("POST", f"/{index}/_refresh", doing="refreshing")
    mirror = Mirror.build(snapshot)
    for keywords in random_queries(rows, 5, 10):
        clauses = [{"match": {"keywords": {"query": word}}} for word in dict.fromkeys(keywords)]
        body = {"size": 200, "query": {"bool": {"should": clauses}}, "sort": ["_score", "item_id"]}
        hits = cluster.call("POST", f"/{index}/_search", body=body, doing="searching")["hits"][
            "hits"
        ]
        expected = mirror.search(list(dict.fromkeys(keywords)), 200)
        assert [hit["_id"] for hit in hits] == expected.ids
        scores = np.array([hit["sort"][0] for hit in hits], np.float32)
        assert scores.tobytes() == expected.scores.tobytes()
    cluster.call("DELETE", f"/{index}", doing="cleaning up")
    cluster.close()
