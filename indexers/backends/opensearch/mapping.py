"""Names, settings, mapping, documents and roles of an index, and checks of an existing one.

Nothing here sends a request. docs/opensearch.md explains each line of the mapping and each role of
the security plugin.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from cogr.errors import ServiceError
from cogr.matching.bm25 import DEFAULT
from cogr.records import Side
from cogr.snapshots import Manifest, Row, Snapshot
from indexers.backends import side_of
from indexers.backends.opensearch.client import Version

LAYOUT = 1
"""Version of the documents' layout. An index of another layout is rewritten."""
PLURAL: Mapping[Side, str] = {"item": "items", "query": "queries"}
SIMILARITY = "kw_bm25"
WORDS = "text.words"
"""The field of items' texts that a text search reads, where the meta names its analyser."""
LITERAL = "*.words"
"""The fields in one of which a literal match has every word: titles, and texts of extra fields."""
DRAFT = ".draft"
"""Suffix of the draft index of a push by difference."""


def alias_name(prefix: str, side: Side) -> str:
    """The name that clients search: `<prefix>-items` or `<prefix>-queries`."""
    return f"{prefix}-{PLURAL[side]}"


def index_name(prefix: str, snapshot_id: str) -> str:
    """The write-once index of one snapshot, such as `shop-items-item-r001-0123456789ab`."""
    return f"{alias_name(prefix, side_of(snapshot_id))}-{snapshot_id}"


def id_field(side: Side) -> str:
    """item_id or query_id."""
    return f"{side}_id"


def mapping(side: Side, version: Version, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The strict mapping of one side's index; the meta names the types of items' extra fields, and
    the analyser of their texts.
    """
    unread: dict[str, Any] = {"type": "keyword", "index": False, "doc_values": False}
    text = dict(unread)
    if analyser := meta.get("text_analyzer"):
        text["fields"] = {"words": {"type": "text", "analyzer": analyser}}
    properties: dict[str, Any] = {
        id_field(side): {"type": "keyword"},
        "keywords": {
            "type": "keyword",
            "norms": True,
            "index_options": "freqs",
            "similarity": SIMILARITY,
        },
        "text": text,
        **{name: {"type": type_} for name, type_ in meta.get("fields", {}).items()},
    }
    if analyser:
        for name in (name for name, type_ in meta.get("fields", {}).items() if type_ == "keyword"):
            properties[name]["fields"] = text["fields"]
    if version.has_use_similarity:
        properties["keywords"]["use_similarity"] = True
    if side == "query":
        number = {"type": "float", "index": False, "doc_values": False}
        properties |= {"self": {"type": "keyword"}, "generated": unread}
        properties |= {"weights": number, "confidence": number}
    return {"dynamic": "strict", "_meta": dict(meta), "properties": properties}


def index_settings(shards: int) -> dict[str, Any]:
    """Settings of an index while it is written; replicas come at the end."""
    return {
        "index": {
            "number_of_shards": shards,
            "number_of_replicas": 0,
            "refresh_interval": "-1",
            "similarity": {SIMILARITY: {"type": "BM25", "k1": DEFAULT.k1, "b": DEFAULT.b}},
        }
    }


def meta_of(manifest: Manifest, analyser: str = "") -> dict[str, Any]:
    """The `_meta` of an index: the manifest's essentials, the analyser of items' texts ("" where
    they are not searched), and two marks, which are set later: `complete` by the push, `verified`
    by the verification.
    """
    more: dict[str, Any] = {"fields": dict(manifest.fields)} if manifest.fields else {}
    if analyser and manifest.side == "item":
        more["text_analyzer"] = analyser
    return {
        "layout": LAYOUT,
        "snapshot": manifest.id,
        "side": manifest.side,
        "round": manifest.round,
        "normaliser": manifest.normaliser,
        "content_hash": manifest.content_hash,
        "k_max": manifest.k_max,
        "entities": manifest.entities,
        "created": manifest.created,
        "complete": False,
        "verified": False,
        **more,
    }


def documents(
    snapshot: Snapshot, numbers: Collection[int] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(id, document) of every entity in id order, streaming; or only of rows of these numbers.

    `keywords` is S ∪ {self}: S in generation order, then the own text's keyword unless S has it. A
    query's document also has S in `generated`, so that S can be read back unchanged. `weights` is
    in the order of `generated`, with the own text's last.
    """
    for row in snapshot.rows(numbers):
        yield row.id, document(snapshot.side, row)


def document(side: Side, row: Row) -> dict[str, Any]:
    """One entity's document: its id, its text, its own text as a keyword, its keyword set, its
    extra fields; a query's weights and confidence, where it has some.
    """
    words, own = list(row.keywords), row.self_keyword
    keywords = [*words, own] if own and own not in words else words
    made: dict[str, Any] = {
        id_field(side): row.id,
        "keywords": keywords,
        "text": row.text,
        **row.fields,
    }
    if side == "item":
        return made
    made |= {"self": own, "generated": words}
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
    alias_options: Mapping[str, Mapping[str, Any]]
    mappings: Mapping[str, Any]

    @classmethod
    def read(cls, name: str, answer: Mapping[str, Any]) -> IndexState:
        """From the cluster's answer."""
        mappings = answer.get("mappings", {})
        return cls(
            name,
            mappings.get("_meta", {}),
            mappings.get("properties", {}),
            answer.get("settings", {}).get("index", {}),
            answer.get("aliases", {}),
            mappings,
        )

    @property
    def aliases(self) -> Sequence[str]:
        """The names of its aliases."""
        return tuple(self.alias_options)

    @property
    def snapshot(self) -> str:
        """Id of its snapshot; "" for an index that cogr did not write."""
        return str(self.meta.get("snapshot", ""))

    @property
    def uuid(self) -> str:
        """Distinguishes an index from a later one of the same name."""
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
    field = state.properties.get("keywords", {})
    similarity = state.settings.get("similarity", {}).get(SIMILARITY, {})
    scored = not version.has_use_similarity or field.get("use_similarity") is True
    ours = field.get("similarity") == SIMILARITY
    formula = (float(similarity.get("k1", -1)), float(similarity.get("b", -1)))
    met = {
        "it has no field keywords of type keyword": field.get("type") == "keyword",
        "its keywords have no norms, so long sets are not weighed down": field.get("norms") is True,
        "its keywords do not store frequencies": field.get("index_options", "docs") != "docs",
        "its keywords are not scored (use_similarity is not set)": scored,
        f"its similarity is not BM25 with k1 {DEFAULT.k1} and b {DEFAULT.b}": ours
        and formula == (DEFAULT.k1, DEFAULT.b),
    }
    for flaw in (flaw for flaw, holds in met.items() if not holds):
        raise ServiceError(
            f"The index {state.name} can't be used: {flaw}; delete it and push the snapshot again."
        )


ROLES = ("writer", "publisher", "reader", "merger")
"""Least-privilege roles of the security plugin, as the JSON files in roles/."""


def role(name: str, prefix: str, index: str = "") -> dict[str, Any]:
    """The body of `PUT _plugins/_security/api/roles/<role>`, limited to the indexes of a prefix;
    with `index`, also to the product index (or alias) that keywords are written into.
    """
    text = files(__package__).joinpath("roles", f"{name}.json").read_text("utf-8")
    made: dict[str, Any] = json.loads(text)
    parts = made["index_permissions"]
    made["index_permissions"] = [one for one in parts if index or "INDEX" not in json.dumps(one)]
    for part in made["index_permissions"]:
        part["index_patterns"] = [
            # Between slashes a pattern is a regular expression.
            one.replace("PREFIX", re.escape(prefix) if one[0] == "/" else prefix).replace(
                "INDEX", index
            )
            for one in part["index_patterns"]
        ]
    return made
