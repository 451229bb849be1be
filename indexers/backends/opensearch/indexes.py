"""An index: names, settings, mapping and documents; its state, statistics and marks, refresh, merge
and removal. docs/opensearch.md explains each line of the mapping.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cogr.errors import CheckFailedError, ServiceError, SnapshotError
from cogr.matching.bm25 import DEFAULT
from cogr.records import PLURAL, Side, values_of
from cogr.snapshots import Manifest, Row, Snapshot, side_of
from cogr.snapshots.texts import Texts, pieces, texts_of
from indexers.backends.opensearch.client import Cluster, Version, service_error
from indexers.text import (
    ASKED_CODE,
    CODE,
    CODE_RUN,
    CODE_WORD,
    MAX_CODE,
    MIN_CODE,
    SIGNS,
    SPELLING_RULES,
    UNITS,
    Analyser,
    codes,
    is_language,
)

SIMILARITY = "kw_bm25"
WORDS = "whole_text"
"""The field that a text search reads: title and text, or where texts are not kept, an alias of the
title's.
"""
LITERAL = "literal"
"""The object of fields in one of which a literal match has every word: `text` is the title, then
texts of extra fields. `item_id` has the whole id, whatever its case.
"""
CODES = "part_numbers"
"""The field of part numbers in titles, ids, and texts of extra fields."""
OWN_WORDS, OWN_SPELLED = "cogr_words", "cogr_spelled"
"""The analysers of an index's own settings that read texts as `indexers.text.Analyser` does: any
text, and one in one spelling (`searched`).
"""
OWN_CODES = "cogr_codes"
"""The one that reads part numbers; that of a query is its name and `_asked`."""
NOT_STORED = (WORDS, LITERAL, CODES)
"""Fields that documents don't have when they are read back."""
SPACE = "\\u0020"
_Document = dict[str, Any]
_ROWS = 1024


def alias_name(prefix: str, side: Side) -> str:
    """The name that clients search: `<prefix>-items` or `<prefix>-queries`."""
    return f"{prefix}-{PLURAL[side]}"


def index_name(prefix: str, snapshot_id: str) -> str:
    """The write-once index of one snapshot, such as `shop-items-item-r001-0123456789ab`."""
    return f"{alias_name(prefix, side_of(snapshot_id))}-{snapshot_id}"


def draft_name(prefix: str, side: Side) -> str:
    """The index in which a push by difference begins. A side has one, so that the next push removes
    what a dead one left.
    """
    return f"{alias_name(prefix, side)}.draft"


def mapping(side: Side, version: Version, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The strict mapping of one side's index; the meta names the types of items' extra fields, and
    the analyser of their texts.
    """
    unread: dict[str, Any] = {"type": "keyword", "index": False, "doc_values": False}
    properties: dict[str, Any] = {
        f"{side}_id": {"type": "keyword"},
        "keywords": {
            "type": "keyword",
            "doc_values": False,
            "norms": True,
            "index_options": "freqs",
            "similarity": SIMILARITY,
        },
        "text": unread,
    }
    for name, type_ in meta.get("fields", {}).items():
        properties[name] = {"type": type_}
    if side == "item":
        properties |= _read_mapping(meta)
    if version.has_use_similarity:
        properties["keywords"]["use_similarity"] = True
    if side == "query":
        number = {"type": "float", "index": False, "doc_values": False}
        properties |= {"query_key": {"type": "keyword"}, "self": {"type": "keyword"}}
        properties |= {"generated": unread, "weights": number, "confidence": number}
    # Copies are made of the whole index, never from documents, so that no text needs to be stored.
    # A template of the cluster that switches _source off, or trims it, must not count either.
    own: dict[str, Any] = {"enabled": True}
    if side == "item":
        own |= {"excludes": [*NOT_STORED], "recovery_source_enabled": False}
    return {
        "dynamic": "strict",
        "_meta": dict(meta),
        "_source": own,
        "properties": properties,
    }


def _read_mapping(meta: Mapping[str, Any]) -> dict[str, Any]:
    # What `searched` adds to items.
    folded = {"type": "keyword", "normalizer": "lowercase", "doc_values": False}
    literal: dict[str, Any] = {"item_id": folded}
    read: dict[str, Any] = {LITERAL: {"properties": literal}}
    if not (analyser := meta.get("text_analyzer")):
        return read
    words = {"type": "text", "analyzer": analyser}
    if is_language(analyser):
        words |= {"analyzer": OWN_SPELLED, "search_analyzer": OWN_WORDS}
        read[CODES] = {**CODED, "analyzer": "whitespace"}
    literal |= dict.fromkeys(_texts_in(meta), words)
    whole = {**words, "index_options": "freqs"}
    alias = {"type": "alias", "path": f"{LITERAL}.text"}
    return {**read, WORDS: whole if meta.get("search_text") else alias}


def _texts_in(meta: Mapping[str, Any]) -> list[str]:
    fields = meta.get("fields", {})
    return ["text", *(name for name, type_ in fields.items() if type_ == "keyword")]


def index_settings(shards: int, analyser: str = "") -> dict[str, Any]:
    """Settings of an index while it is written; replicas come at the end. With `analyser`, a
    language that `Analyser` knows, the index's own analysers read texts as that does.
    """
    settings: dict[str, Any] = {
        "number_of_shards": shards,
        "number_of_replicas": 0,
        "refresh_interval": "-1",
        "similarity": {SIMILARITY: {"type": "BM25", "k1": DEFAULT.k1, "b": DEFAULT.b}},
    }
    own = {"analysis": analysis(Analyser(analyser))} if analyser and is_language(analyser) else {}
    return {"index": {**settings, **own}}


CODED: Mapping[str, Any] = {
    "type": "text",
    "analyzer": OWN_CODES,
    "search_analyzer": f"{OWN_CODES}_asked",
    "index_options": "docs",
    "norms": False,
}
"""The mapping of a field of part numbers."""
_APART = (r"[.·:,;'](?:(?<=[^\W\d_][.·:])(?=[^\W\d_])|(?<=\d[,;'])(?=\d))", " ")
"""Words that the tokenizer `standard` would leave together. Signs first: Python looks for a set of
characters ten times as fast as it looks behind each.
"""


def analysis(analyser: Analyser) -> dict[str, Any]:
    """The analysers of an index's settings: `OWN_WORDS` gives the terms of `Analyser.terms`, but
    for scripts without spaces that the tokenizer `standard` does not read letter by letter (Thai).
    `OWN_SPELLED` gives the same of texts that went through `searched`: rules take a cluster six
    times as long as all the rest, and a push need not pay for them.
    """
    signs = {**SIGNS, **{chr(one): other for one, other in analyser.capitals.items()}}
    read = [f"{sign} => {other.replace(' ', SPACE)}" for sign, other in signs.items()]
    units = [f"{unit} => {name}" for unit, name in UNITS.items()]
    rules = {
        f"rule_{number:02}": _replacing(rule, with_)
        for number, (rule, with_) in enumerate((*SPELLING_RULES, _APART))
    }
    words = {"tokenizer": "standard", "char_filter": ["signs", *rules]}
    snowball = {"type": "snowball", "language": analyser.stemmer.capitalize()}
    stems = {"stems": snowball} if analyser.stemmer else {}
    filters = ["lowercase", "units", "pairs", "stop_words", *stems]
    coded = code_analysis()
    return {
        "char_filter": {"signs": {"type": "mapping", "mappings": read}, **rules},
        "filter": {
            "units": {"type": "synonym", "synonyms": units},
            "pairs": {"type": "cjk_bigram", "ignored_scripts": ["hangul"]},
            "stop_words": {"type": "stop", "stopwords": sorted(analyser.stop_words) or "_none_"},
            **stems,
            **coded["filter"],
        },
        "analyzer": {
            OWN_WORDS: {**words, "filter": filters},
            OWN_SPELLED: {"tokenizer": "standard", "filter": filters},
            **coded["analyzer"],
        },
    }


def searched(
    documents: Iterable[tuple[str, Mapping[str, Any] | None]], meta: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """Documents of items with what an index of this `_meta` reads of them, which it does not store:
    `LITERAL`, `WORDS` and `CODES`, texts in one spelling by `SPELLING_RULES`.
    """
    named, names = meta.get("text_analyzer", ""), _texts_in(meta)
    analyser = Analyser(named) if named and is_language(named) else None
    for id_, one in documents:
        if one is None or "item_id" not in one:
            yield id_, one
            continue
        texts = {name: values_of(one[name]) for name in names if named and name in one}
        whole = one.get(WORDS, [])
        read: dict[str, Any] = {LITERAL: {"item_id": one["item_id"], **texts}}
        if analyser:
            said = [text for some in texts.values() for text in some]
            spelled = {text: _spelled(analyser, text) for text in {*said, *whole}}
            read[LITERAL] |= {name: [*map(spelled.get, some)] for name, some in texts.items()}
            whole = [*map(spelled.get, whole)]
            in_item = set[str]().union(*map(codes, [*said, one["item_id"]]))
            read |= {CODES: " ".join(sorted(in_item))} if in_item else {}
        yield id_, {**one, **read, **({WORDS: whole} if whole else {})}


def _spelled(analyser: Analyser, text: str) -> str:
    return re.sub(*_APART, analyser.spelled(text))


def code_analysis() -> dict[str, Any]:
    """The part of `analysis` that reads part numbers, as `indexers.text.codes` and `asked_code`
    do; an index of one's own can have it too (docs/publishing.md).
    """
    filters: dict[str, Any] = {
        "code_runs": {
            "type": "shingle",
            "min_shingle_size": 2,
            "max_shingle_size": CODE_RUN,
            "token_separator": "",
        },
        "code_length": {"type": "length", "min": MIN_CODE, "max": MAX_CODE},
    }
    chains: dict[str, list[str]] = {}
    for kind, rules in (("word", CODE_WORD), ("run", CODE), ("asked", ASKED_CODE)):
        made = {f"code_{kind}_{n}": _replacing(*rule) for n, rule in enumerate(rules)}
        filters |= made
        chains[kind] = [*made]
    read = ["lowercase", *chains["word"], "code_runs", *chains["run"], "code_length"]
    asked = ["lowercase", "trim", *chains["asked"], "code_length"]
    return {
        "filter": filters,
        "analyzer": {
            OWN_CODES: {"tokenizer": "whitespace", "filter": read},
            f"{OWN_CODES}_asked": {"tokenizer": "keyword", "filter": asked},
        },
    }


def _replacing(rule: str, with_: str) -> dict[str, str]:
    replacement = re.sub(r"\\(\d+)", r"$\1", with_)
    return {"type": "pattern_replace", "pattern": f"(?iU){rule}", "replacement": replacement}


def meta_of(manifest: Manifest, analyser: str = "") -> dict[str, Any]:
    """The `_meta` of an index: the manifest's essentials, the analyser of items' texts ("" where
    they are not searched), and two marks, which are set later: `complete` by the push, `verified`
    by the verification.
    """
    more: dict[str, Any] = {"fields": dict(manifest.fields)} if manifest.fields else {}
    if analyser and manifest.side == "item":
        more |= {"text_analyzer": analyser, "search_text": bool(manifest.texts)}
    return {
        "snapshot": manifest.id,
        "round": manifest.round,
        "normaliser": manifest.normaliser,
        "content_hash": manifest.content_hash,
        "entities": manifest.entities,
        "complete": False,
        "verified": False,
        **more,
    }


def documents(
    snapshot: Snapshot, numbers: Collection[int] | None = None
) -> Iterator[tuple[str, _Document]]:
    """(id, document) of every entity in id order, streaming; or only of rows of these numbers.

    `keywords` is S ∪ {self}: S in generation order, then the own text's keyword unless S has it. A
    query's document also has S in `generated`, so that S can be read back unchanged. `weights` is
    in the order of `generated`, with the own text's last. Extra fields are there, and a query's
    confidence, where there is one. Raises SnapshotError where texts are lost.
    """
    return documents_of(snapshot.rows(numbers), snapshot.side, texts_of(snapshot))


def documents_of(rows: Iterable[Row], side: Side, kept: Texts) -> Iterator[tuple[str, _Document]]:
    """(id, document) of rows; with the texts of items, where some are kept. Raises SnapshotError
    where texts are lost.
    """
    rows = iter(rows)
    while some := list(islice(rows, _ROWS)):
        texts = kept.of([row.body for row in some])
        for row, text in zip(some, texts, strict=True):
            whole = {WORDS: pieces(row.text, text)} if kept.names else {}
            yield row.id, _document(side, row) | whole


def _document(side: Side, row: Row) -> _Document:
    made: _Document = {
        f"{side}_id": row.id,
        "keywords": [one for one in dict.fromkeys((*row.keywords, row.self_keyword)) if one],
        "text": row.text,
        **row.fields,
    }
    if side == "item":
        return made
    made |= {"query_key": row.key, "self": row.self_keyword, "generated": list(row.keywords)}
    if row.weights:
        made["weights"] = list(row.weights)
    if row.confidence is not None:
        made["confidence"] = row.confidence
    return made


@dataclass(frozen=True)
class IndexState:
    """An index as the cluster has it (the answer of `GET /<index>`)."""

    name: str
    meta: Mapping[str, Any]
    properties: Mapping[str, Any]
    settings: Mapping[str, Any]
    aliases: Sequence[str]
    mappings: Mapping[str, Any]

    @classmethod
    def read(cls, name: str, answer: Mapping[str, Any]) -> IndexState:
        """The state of an index from the cluster's answer to GET /NAME."""
        mappings = answer.get("mappings", {})
        return cls(
            name,
            mappings.get("_meta", {}),
            mappings.get("properties", {}),
            answer.get("settings", {}).get("index", {}),
            tuple(answer.get("aliases", {})),
            mappings,
        )

    @property
    def snapshot(self) -> str:
        """Id of its snapshot; "" for an index that cogr did not write."""
        return str(self.meta.get("snapshot", ""))

    @property
    def uuid(self) -> str:
        """Another one where an index was made anew under the same name."""
        return str(self.settings.get("uuid", ""))

    @property
    def complete(self) -> bool:
        return self.meta.get("complete") is True

    @property
    def verified(self) -> bool:
        return self.meta.get("verified") is True

    @property
    def shards(self) -> int:
        return int(self.settings.get("number_of_shards", 1))

    @property
    def replicas(self) -> int:
        return int(self.settings.get("number_of_replicas", 0))

    @property
    def write_blocked(self) -> bool:
        return str(self.settings.get("blocks", {}).get("write", "false")) == "true"


def check_scored(state: IndexState, version: Version) -> None:
    """Refuse an index whose keyword field is not scored as the mirror scores it."""
    expected = mapping("item", version, {})["properties"]["keywords"]
    actual = state.properties.get("keywords", {})
    if actual != expected:
        raise ServiceError(
            f"The index {state.name} can't be used: its field keywords is {actual}, not "
            f"{expected}, so its scores differ from the mirror's; delete it and push the snapshot "
            "again."
        )
    source = state.mappings.get("_source", {})
    if source.get("enabled") is False or {
        *source.get("includes", ()),
        *source.get("excludes", ()),
    } - {*NOT_STORED}:
        raise ServiceError(
            f"The index {state.name} can't be used: its mapping has _source {source}, so its "
            "documents can't be read back; delete it and push the snapshot again."
        )


MERGE_SECONDS = 4 * 3600.0
"""Longest wait for a force-merge in seconds. If a load balancer cuts the request earlier, the merge
is polled.
"""
LEASE_SECONDS = 90.0
"""Longest wait in seconds until a node drops deleted documents that it keeps for the recovery of
copies; its timer runs every half minute.
"""
LOOK_EVERY = 1.0


def read_index(cluster: Cluster, name: str) -> IndexState | None:
    """The index with exactly this name, or None."""
    answer = cluster.call("GET", f"/{name}", doing=f"looking at the index {name}", missing_ok=True)
    return IndexState.read(name, answer[name]) if answer and name in answer else None


def mark(cluster: Cluster, state: IndexState, **marks: bool) -> None:
    """Set `complete` or `verified` in the index's `_meta`."""
    body = {"_meta": {**state.meta, **marks}}
    cluster.call(
        "PUT", f"/{state.name}/_mapping", body=body, doing=f"marking the index {state.name}"
    )


def check_count(cluster: Cluster, name: str, snapshot: Snapshot) -> None:
    """Check that the index has exactly the snapshot's entities, and no deleted documents, which
    would change the statistics behind the scores. Raises CheckFailedError.
    """
    docs, expected = stats(cluster, name, "docs")["docs"], snapshot.manifest.entities
    if docs["count"] != expected or docs["deleted"]:
        raise CheckFailedError(
            f"The index {name} has {docs['count']} documents and {docs['deleted']} deleted ones, "
            f"the snapshot {expected}; something else wrote to it: delete it and push the snapshot "
            "again."
        )


def block_writes(cluster: Cluster, name: str) -> None:
    """Freeze an index: it takes no more writes."""
    cluster.call("PUT", f"/{name}/_block/write", doing=f"freezing the index {name}")


def refresh(cluster: Cluster, name: str) -> None:
    """Make writes visible to searches and statistics."""
    cluster.call("POST", f"/{name}/_refresh", doing=f"refreshing the index {name}")


def merge(cluster: Cluster, name: str, patience: float = 0.0) -> None:
    """Merge to one segment a shard, without deleted documents. Only for an index that gets no more
    writes. Retries for `patience` seconds while deleted documents are kept for the recovery of
    copies (`LEASE_SECONDS`).
    """
    deadline = time.monotonic() + patience
    while True:
        _force_merge(cluster, name)
        if time.monotonic() > deadline or not stats(cluster, name, "docs")["docs"]["deleted"]:
            return
        time.sleep(5 * LOOK_EVERY)


def _force_merge(cluster: Cluster, name: str) -> None:
    doing, params = f"merging the index {name}", {"max_num_segments": 1}
    deadline = time.monotonic() + MERGE_SECONDS
    while True:
        _, refusal = cluster.try_once("POST", f"/{name}/_forcemerge", None, params)
        if refusal is None:
            break
        if not refusal.is_transient or time.monotonic() > deadline:
            raise service_error(refusal, cluster.url, doing)
        # The request was cut, but the merge goes on in the cluster: wait for it, then repeat the
        # request, which costs nothing after a finished merge.
        while stats(cluster, name, "merge")["merges"]["current"] and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
    refresh(cluster, name)


def stats(cluster: Cluster, name: str, metric: str) -> dict[str, Any]:
    """Statistics of an index's primary shards. Raises ServiceError when a shard did not answer."""
    doing = f"reading the statistics of {name}"
    answer = cluster.call("GET", f"/{name}/_stats/{metric}", doing=doing)
    if (failed := answer["_shards"]["failed"]) or not answer["indices"]:
        raise ServiceError(
            f"{failed} shards of {name} at {cluster.url} gave no statistics; try again later."
        )
    primaries: dict[str, Any] = answer["indices"][name]["primaries"]
    return primaries


def pushed_index(cluster: Cluster, snapshot_id: str) -> IndexState:
    """The index of a pushed snapshot. Raises SnapshotError when there is none."""
    prefix = cluster.settings.prefix
    state = read_index(cluster, index_name(prefix, snapshot_id))
    if state is None or state.snapshot != snapshot_id:
        raise SnapshotError(
            f"Snapshot {snapshot_id} is not in OpenSearch at {cluster.url} under the prefix "
            f"{prefix}; run cogr-index publish {snapshot_id}."
        )
    return state


def complete_index(cluster: Cluster, snapshot_id: str) -> IndexState:
    """As `pushed_index`, if it is whole. Raises ServiceError where it is not scored."""
    state = pushed_index(cluster, snapshot_id)
    if not state.complete:
        raise SnapshotError(
            f"The index {state.name} is half-written; run cogr-index publish {snapshot_id}, which "
            "continues."
        )
    check_scored(state, cluster.version)
    return state


def remove_index(cluster: Cluster, name: str) -> None:
    """Remove an index that serves nothing, such as a draft, if it is there."""
    cluster.call("DELETE", f"/{name}", doing=f"removing the index {name}", missing_ok=True)
