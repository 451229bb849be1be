"""What serves in a cluster, decided from the answer of one request: by the aliases of a prefix, or
for items by a field of the index that `serving.into` names.

The backend sends the request and waits, the query expander sends it without waiting; what the
answer means is decided here alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_json

from cogr.errors import ServiceError
from cogr.records import SIDES, Side
from cogr.settings.serving import IntoSettings
from cogr.snapshots import round_of
from indexers.backends import Pair, ServedSide
from indexers.backends.opensearch.foreign_field import field_in, snapshot_of
from indexers.backends.opensearch.indexes import alias_name
from indexers.backends.opensearch.search import OWN, Fields

IndexAnswers = Mapping[str, Mapping[str, Any]]
"""Index -> what the cluster said of it."""
_SIDE = TypeAdapter(ServedSide)
_READ = ("settings.index.uuid", "aliases", "mappings._meta")


def request_of(prefix: str, into: IntoSettings) -> tuple[str, dict[str, str]]:
    """Path and parameters of the request. One request, so that a switch is seen wholly or not at
    all.
    """
    items, parts = into.index or alias_name(prefix, "item"), [*_READ]
    if into.index:
        parts += [f"mappings.properties.*.{part}" for part in ("path", "meta")]
        parts.append(f"mappings.properties.{into.id_field.partition('.')[0]}")
    path = ",".join(f"*.{part}" for part in parts)
    return f"/{items},{alias_name(prefix, 'query')}", {
        "ignore_unavailable": "true",
        "filter_path": path,
    }


def aliased(answer: IndexAnswers, prefix: str) -> dict[Side, list[str]]:
    """The indexes that each side's alias names. Raises ServiceError where an index has the alias'
    name, or the alias names an index that CoGR did not write.
    """
    sides: dict[Side, list[str]] = {}
    for side in SIDES:
        alias = alias_name(prefix, side)
        if alias in answer:
            raise ServiceError(
                f"The name {alias} of the cluster is taken by an index, so it can't be an alias; "
                "rename or remove the index, or choose another opensearch.prefix."
            )
        sides[side] = sorted(n for n, index in answer.items() if alias in index.get("aliases", {}))
        for name in sides[side]:
            if not answer[name].get("mappings", {}).get("_meta", {}).get("snapshot"):
                raise ServiceError(
                    f"The alias {alias} names the index {name}, which was not written by cogr; "
                    "choose another opensearch.prefix."
                )
    return sides


def pair_of(answer: IndexAnswers, prefix: str, into: IntoSettings) -> Pair:
    """What serves; a side whose alias names several indexes is absent. Raises ServiceError as
    `aliased`, and where an index has an unreadable `_meta`.
    """
    sides = {
        side: _by_meta(names[0], answer[names[0]]["mappings"]["_meta"])
        for side, names in aliased(answer, prefix).items()
        if len(names) == 1
    }
    item, flaws = _by_field(answer, into) if into.index else (sides.get("item"), [])
    return Pair(item, sides.get("query"), (*flaws, *ambiguous(answer, prefix)))


def ambiguous(answer: IndexAnswers, prefix: str) -> list[str]:
    """A sentence for each alias that names several indexes. Raises ServiceError as `aliased`."""
    return [
        f"the alias {alias_name(prefix, side)} names {' and '.join(names)} at once"
        for side, names in aliased(answer, prefix).items()
        if len(names) > 1
    ]


def _by_meta(name: str, meta: Mapping[str, Any]) -> ServedSide:
    try:
        return _SIDE.validate_json(to_json({**meta, "index": name}))
    except ValueError as error:
        raise ServiceError(
            f"cogr-index did not write the _meta of the index {name}; publish a pair again."
        ) from error


def _by_field(answer: IndexAnswers, into: IntoSettings) -> tuple[ServedSide | None, Sequence[str]]:
    names = [n for n, index in answer.items() if into.index in (n, *index.get("aliases", {}))]
    if len(names) != 1:
        return None, [f"{into.index} names {' and '.join(sorted(names)) or 'no index'}"]
    properties = answer[names[0]].get("mappings", {}).get("properties", {})
    path = str(properties.get(into.field, {}).get("path", ""))
    if (snapshot := snapshot_of(into.field, path)) is None:
        return None, [f"{into.index} names {names[0]}, which lacks the field {into.field}"]
    meta: Mapping[str, str] = properties.get(path, {}).get("meta", {})
    normaliser, share = meta.get("normaliser", ""), float(meta.get("covered", 1))
    round_, id_type = round_of(snapshot), field_in(properties, into.id_field).get("type", "")
    item = ServedSide(snapshot, into.index, round_, normaliser, path, str(id_type), share)
    if (id_field := meta.get("id_field", into.id_field)) == into.id_field:
        return item, []
    return item, [
        f"the keywords of {into.index} were written by the field {id_field}, and "
        f"serving.into.id_field is {into.id_field}"
    ]


_KEPT = 0.95
"""Share of the documents with keywords at least, of what it was when they were published. New
products have none until the next publish.
"""
HALF = 0.5
"""Below this share of them it is no longer what was published."""


def count_of(item: ServedSide) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Path, parameters and body of the request that counts the documents with keywords."""
    held = {"filter": {"exists": {"field": item.field}}}
    body = {"size": 0, "track_total_hits": True, "aggs": {"held": held}}
    return f"/{item.index}/_search", {"filter_path": "hits.total,aggregations"}, body


def with_count(pair: Pair, answer: Mapping[str, Any]) -> Pair:
    """A pair with its coverage, and what that says."""
    every, held = answer["hits"]["total"]["value"], answer["aggregations"]["held"]["doc_count"]
    share = held / max(1, every)
    if pair.item is None or share >= _KEPT * pair.item.covered:
        return replace(pair, coverage=share)
    told = (
        f"only {held} of {every} documents of {pair.item.index} have keywords, at the publish "
        f"{pair.item.covered:.0%} had"
    )
    if share < HALF * pair.item.covered:
        return replace(pair, coverage=share, flaws=(*pair.flaws, told))
    return replace(pair, coverage=share, warnings=(*pair.warnings, told))


def served_fields(into: IntoSettings, item: ServedSide | None) -> Fields:
    """The fields in which what serves is searched: of CoGR's own index, or of the team's."""
    if not into.index:
        return OWN["item"]
    texts, numbers = into.text_fields, item is not None and item.id_type not in ("", "keyword")
    field, id_ = item.field if item else into.field, into.id_field
    return Fields(field, texts, texts, id_, numbers, f"{id_}.codes")
