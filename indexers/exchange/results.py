"""What the serving pair finds, and the data set's judgements, for evaluation tools and OpenSearch's
Search Relevance Workbench.

The workbench gets a query set whose entries carry keywords, judgements, search configurations and
an experiment for each. Since 3.8 an entry of a query set may have fields of its own, and a search
configuration may name them as Mustache variables: with the keywords in one, the workbench evaluates
CoGR without any plugin of ours. The requests follow the plugin's documentation and its source; they
were run against a recorded server, not against the plugin, which no package registry has.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from cogr.datasets.judgements import FORMATS, Judged
from cogr.datasets.reading import Place, safe_cell
from cogr.errors import DataError, SettingsError, SnapshotError
from cogr.evaluation import measure, rows_of_queries, search_all
from cogr.records import SPLITS, Dataset, Query
from cogr.snapshots import Row, open_snapshot
from cogr.store import replacing
from indexers.backends import Hit
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.search import KEYWORDS
from indexers.workspace import Workspace


@dataclass(frozen=True)
class Pair:
    """The two snapshots that results are of, and each query's row."""

    item: str
    query: str
    rows: Mapping[str, Row]


def queries_of(dataset: Dataset, split: str | None) -> list[Query]:
    """The labelled queries of a split, or of all.

    Raises:
        SettingsError: an unknown split.
        DataError: an empty split.
    """
    if split is None:
        return list(dataset.all_queries())
    chosen = next((one for one in SPLITS if one == split), None)
    if chosen is None:
        raise SettingsError(f"--split {split!r} is unknown; write one of {', '.join(SPLITS)}.")
    return list(dataset.require(chosen))


def serving_pair(workspace: Workspace, queries: Sequence[Query]) -> Pair:
    """What serves, for some queries; one that the query side lacks is searched by its own text.

    Raises SnapshotError where nothing serves, ServiceError.
    """
    item, query = (workspace.backend.serving()[side] for side in ("item", "query"))
    if item is None or query is None:
        raise SnapshotError("No pair serves yet: run cogr-index rebuild for both sides.")
    weights = workspace.settings.keywords.weights
    snapshot = open_snapshot(workspace.store, query)
    return Pair(item, query, rows_of_queries(queries, snapshot, unknown=True, weights=weights))


def run_of(workspace: Workspace, pair: Pair, size: int) -> dict[str, Sequence[Hit]]:
    """Query id -> its best hits. Raises ServiceError."""

    def search(keywords: Mapping[str, float]) -> Sequence[Hit]:
        return workspace.backend.search(keywords, size=size, snapshot=pair.item).hits

    return search_all(search, pair.rows)


def write_run(run: Mapping[str, Sequence[Hit]], pair: Pair, to: Path) -> int:
    """Write a table with texts where the file's name ends in .csv, and a TREC run otherwise, whose
    tag names the query snapshot; how many hits.

    Raises SettingsError for an id that a TREC run can't have, StorageError.
    """
    table, text = to.suffix == ".csv", io.StringIO()
    writer = csv.writer(text, delimiter="," if table else " ", lineterminator="\n")
    if table:
        writer.writerow(("query_id", "query", "item", "rank", "score", "title"))
    count = 0
    for query, hits in run.items():
        for rank, hit in enumerate(hits, start=1):
            count, score = count + 1, repr(float(hit.score))
            if table:
                asked, title = safe_cell(pair.rows[query].text), safe_cell(hit.text)
                writer.writerow((query, asked, hit.id, rank, score, title))
                continue
            if any(letter.isspace() for letter in query + hit.id):
                raise SettingsError(
                    f"The id {query!r} or {hit.id!r} has white space, which separates columns in "
                    "a TREC run; write a .csv file."
                )
            text.write(f"{query} Q0 {hit.id} {rank} {score} cogr-{pair.query}\n")
    with replacing(to) as file:
        file.write(text.getvalue().encode())
    return count


def score(dataset: Dataset, run: Mapping[str, Sequence[str]], split: str | None) -> dict[str, Any]:
    """A run of any system, by the data set's labels and the metrics of `cogr-train evaluate`; a
    query that the run lacks counts as 0.

    Raises:
        DataError: no query of the run is in the data set.
    """
    queries = queries_of(dataset, split)
    asked = {query.id for query in queries}
    if not asked & run.keys():
        raise DataError(
            f"No query of the run is one of the {len(queries)} labelled ones of the data set "
            f"{dataset.name}; give the run the ids of its queries."
        )
    return {
        "queries": len(queries),
        "lacking": len(asked - run.keys()),
        "unknown": len(run.keys() - asked),
        **{name: round(one, 6) for name, one in measure(dataset, queries, run).items()},
    }


def judged_of(dataset: Dataset, queries: Sequence[Query]) -> Iterator[Judged]:
    """The judgements of some queries, in the order of queries and of ids."""
    number = 0
    for query in queries:
        for item, grade in sorted(dataset.judged.get(query.id, {}).items()):
            number += 1
            place = Place(f"the data set {dataset.name}", number, "judgement")
            yield Judged(place, query.text, query.id, item, grade)


def write_labels(dataset: Dataset, queries: Sequence[Query], to: Path, format: str) -> int:
    """Write judgements in a format of `cogr.datasets.judgements`; how many there are.

    Beside formats that have ids alone lies `<file>.queries.tsv` with ids and texts, for `import
    labels --queries`.

    Raises:
        DataError: an id that the format can't have.
        StorageError: the disk is full or read-only.
    """
    judged = list(judged_of(dataset, queries))
    files = {to: FORMATS[format][1](judged)}
    if format != "quepid":
        lines = (f"{query.id}\t{' '.join(query.text.split())}\n" for query in queries)
        files[to.with_name(f"{to.name}.queries.tsv")] = "".join(lines)
    for path, text in files.items():
        with replacing(path) as file:
            file.write(text.encode())
    return len(judged)


BASE = "/_plugins/_search_relevance"
LONGEST_NAME = 41
"""Characters of a name; with " keywords" the 50 that the plugin takes."""
_REFUSED = re.compile(r"[\"\\<>]")
_IN_QUOTES = re.compile(r'(["\\])')


def as_query_string(keywords: Mapping[str, float]) -> str:
    """Weighted keywords in the syntax of OpenSearch's `query_string`, each a phrase: on a field of
    type keyword a phrase is one term. Scores are those of the keywords' own clause.
    """
    quoted = ((_IN_QUOTES.sub(r"\\\1", word), weight) for word, weight in keywords.items())
    return " ".join(
        f'"{word}"' + ("" if weight == 1 else f"^{weight!r}") for word, weight in quoted
    )


def keywords_query(field: str = KEYWORDS) -> dict[str, Any]:
    """The body of a search configuration that searches an entry's keywords."""
    asked = {"query": "{{keywords}}", "fields": [field], "default_operator": "or"}
    return {"query": {"query_string": asked}}


def workbench(
    name: str,
    index: str,
    rows: Mapping[str, Row],
    judged: Sequence[Judged],
    present: str | None = None,
    field: str = KEYWORDS,
) -> dict[str, list[dict[str, Any]]]:
    """The bodies of `PUT query_sets`, `judgments` and `search_configurations`.

    Args:
        name: of the query set and the judgements, and the beginning of the others' names.
        index: that is searched; its documents' ids are the items' ids.
        rows: query id -> its text and keywords.
        present: JSON body of today's search with `%SearchText%`, to be compared with.
        field: of the index, which has the keywords.

    Raises SettingsError for a name that the workbench does not take.
    """
    if not name or len(name) > LONGEST_NAME or _REFUSED.search(name):
        raise SettingsError(
            f"--name {name!r} is no name that the workbench takes; write at most {LONGEST_NAME} "
            "characters without quotes, backslashes, < and >."
        )
    entries = [
        {"queryText": row.text, KEYWORDS: as_query_string(row.weighted)} for row in rows.values()
    ]
    ratings = [
        {
            "query": text,
            "ratings": [{"docId": one.item, "rating": f"{one.grade:.3f}"} for one in some],
        }
        for text, some in groupby(judged, lambda one: one.query)
    ]
    searches = {"keywords": json.dumps(keywords_query(field)), "today": present}
    return {
        "query_sets": [
            {
                "name": name,
                "description": "Queries with the keywords that CoGR wrote for them",
                "sampling": "manual",
                "querySetQueries": entries,
            }
        ],
        "judgments": [
            {
                "name": name,
                "description": "Judgements of the data set",
                "type": "IMPORT_JUDGMENT",
                "judgmentRatings": ratings,
            }
        ],
        "search_configurations": [
            {"name": f"{name} {end}", "query": query, "index": index}
            for end, query in searches.items()
            if query is not None
        ],
    }


def send_workbench(
    cluster: Cluster, bodies: Mapping[str, Sequence[Mapping[str, Any]]], size: int
) -> dict[str, Any]:
    """Create everything, and an experiment for each search configuration; the ids.

    Args:
        size: hits that are judged.

    Raises ServiceError: the cluster can't be reached, refuses, or has no workbench.
    """

    def put(what: str, some: Sequence[Mapping[str, Any]], id_: str) -> list[str]:
        doing = f"creating {what} of the workbench"
        path = f"{BASE}/{what}"
        return [str(cluster.call("PUT", path, body=one, doing=doing)[id_]) for one in some]

    queries = put("query_sets", bodies["query_sets"], "query_set_id")[0]
    judged = put("judgments", bodies["judgments"], "judgment_id")[0]
    searches = put(
        "search_configurations", bodies["search_configurations"], "search_configuration_id"
    )
    experiments = [
        {
            "querySetId": queries,
            "searchConfigurationList": [search],
            "judgmentList": [judged],
            "size": size,
            "type": "POINTWISE_EVALUATION",
        }
        for search in searches
    ]
    return {
        "query_set": queries,
        "judgments": judged,
        "search_configurations": searches,
        "experiments": put("experiments", experiments, "experiment_id"),
    }
