"""Exports for evaluation tools and OpenSearch's Search Relevance Workbench: runs of the serving
pair, and the data set's judgements.

The workbench gets a query set whose entries carry keywords, judgements, search configurations and
an experiment. Since 3.8 an entry of a query set may have fields of its own, and a search
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
from pathlib import Path
from typing import Any

from cogr.datasets.judgements import FORMATS, Judged, judgment_ratings, rank_eval_body
from cogr.datasets.reading import Place, safe_cell
from cogr.errors import DataError, SettingsError, SnapshotError
from cogr.evaluation import measure, rows_of_queries, search_all
from cogr.metrics import CUTOFFS
from cogr.records import SPLITS, Dataset, Query
from cogr.snapshots import Row, open_snapshot
from cogr.store import replacing, storage_errors
from indexers.backends import Hit
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.search import KEYWORDS, query_body
from indexers.workspace import Workspace

METRIC = {"precision": {"k": CUTOFFS[0], "relevant_rating_threshold": 1}}
"""Of a written `_rank_eval` body; any other may take its place."""


@dataclass(frozen=True)
class Pair:
    """The two snapshots that results are of, and each query's row."""

    item: str
    query: str
    rows: Mapping[str, Row]

    @property
    def tag(self) -> str:
        """Of a TREC run."""
        return f"cogr-{self.query}"


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
    rows = rows_of_queries(
        queries,
        open_snapshot(workspace.store, query),
        unknown=True,
        weights=workspace.settings.keywords.weights,
    )
    return Pair(item, query, rows)


def run_of(workspace: Workspace, pair: Pair, size: int) -> dict[str, Sequence[Hit]]:
    """Query id -> its best hits. Raises ServiceError."""

    def search(keywords: Mapping[str, float]) -> Sequence[Hit]:
        return workspace.backend.search(keywords, size=size, snapshot=pair.item).hits

    return search_all(search, pair.rows)


def trec_run(run: Mapping[str, Sequence[Hit]], tag: str) -> Iterator[str]:
    """Lines of a TREC run: query id, Q0, item, rank from 1, score, tag. Raises SettingsError."""
    for query, hits in run.items():
        for rank, hit in enumerate(hits, start=1):
            for id_ in (query, hit.id):
                if any(letter.isspace() for letter in id_):
                    raise SettingsError(
                        f"The id {id_!r} has white space, which separates columns in a TREC run; "
                        "write a .csv file."
                    )
            yield f"{query} Q0 {hit.id} {rank} {float(hit.score)!r} {tag}\n"


def csv_run(run: Mapping[str, Sequence[Hit]], rows: Mapping[str, Row]) -> Iterator[str]:
    """The same with texts, for people: query_id, query, item, rank, score, title."""
    yield _row("query_id", "query", "item", "rank", "score", "title")
    for query, hits in run.items():
        for rank, hit in enumerate(hits, start=1):
            asked, title = safe_cell(rows[query].text), safe_cell(hit.text)
            yield _row(query, asked, hit.id, rank, float(hit.score), title)


def _row(*cells: object) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


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
    counts = {
        "queries": len(queries),
        "lacking": len(asked - run.keys()),
        "unknown": len(run.keys() - asked),
    }
    return {
        **counts,
        **{name: round(one, 6) for name, one in measure(dataset, queries, run).items()},
    }


def judged_of(dataset: Dataset, queries: Sequence[Query]) -> Iterator[Judged]:
    """The judgements of some queries, in the order of queries and of ids."""
    place = Place(f"the data set {dataset.name}", 0, "judgement")
    number = 0
    for query in queries:
        for item, grade in sorted(dataset.judged.get(query.id, {}).items()):
            number += 1
            yield Judged(place._replace(number=number), query.text, query.id, item, grade)


def write_labels(
    dataset: Dataset, queries: Sequence[Query], to: Path, format: str, pair: Pair | None, index: str
) -> int:
    """Write judgements in a format of `cogr.datasets.judgements`; how many there are.

    Beside qrels, which have ids alone, lies `<file>.queries.tsv` with ids and texts, for
    `import labels --queries`.

    Args:
        pair: for rank_eval, whose requests are the clauses of its keywords.
        index: for rank_eval, which has the items' ids as its documents' own.

    Raises:
        DataError: an id or a grade that the format can't have.
        StorageError: the disk is full or read-only.
    """
    judged = list(judged_of(dataset, queries))
    writer = FORMATS[format].write
    if writer is not None:
        text = writer(judged)
    else:
        if pair is None:
            raise SnapshotError("rank_eval asks what serves: publish a pair first.")
        rows = pair.rows
        body = rank_eval_body(judged, index, lambda id_: {"query": query_body(rows[id_].weighted)})
        text = json.dumps({**body, "metric": METRIC}, ensure_ascii=False) + "\n"
    with storage_errors(str(to)):
        to.write_text(text, "utf-8")
        if format == "trec":
            lines = (f"{query.id}\t{' '.join(query.text.split())}\n" for query in queries)
            to.with_name(f"{to.name}.queries.tsv").write_text("".join(lines), "utf-8")
    return len(judged)


def written(to: Path, pieces: Iterator[str]) -> int:
    """Write a file line by line; how many lines. Raises StorageError."""
    count = 0
    with replacing(to) as file:
        for piece in pieces:
            file.write(piece.encode())
            count += 1
    return count


BASE = "/_plugins/_search_relevance"
LONGEST_NAME = 50
"""Characters of a name, as the plugin takes them."""
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
    return {
        "query": {
            "query_string": {
                "query": "{{keywords}}",
                "fields": [field],
                "default_operator": "or",
            }
        }
    }


@dataclass(frozen=True)
class Bench:
    """The objects for the workbench.

    Attributes:
        name: of the query set and the judgements, and the beginning of the others' names.
        index: that is searched; its documents' ids are the items' ids.
        rows: query id -> its text and keywords.
        judged: what is known to be relevant.
        present: JSON body of today's search with `%SearchText%`, to be compared with; or None.
        size: hits that are judged.
        field: of the index, which has the keywords.
    """

    name: str
    index: str
    rows: Mapping[str, Row]
    judged: Sequence[Judged]
    present: str | None = None
    size: int = 10
    field: str = KEYWORDS

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > LONGEST_NAME - 9 or _REFUSED.search(self.name):
            raise SettingsError(
                f"--name {self.name!r} is no name that the workbench takes; write at most "
                f"{LONGEST_NAME - 9} characters without quotes, backslashes, < and >."
            )

    def query_set(self) -> dict[str, Any]:
        """The body of `PUT query_sets`."""
        entries = [
            {"queryText": row.text, KEYWORDS: as_query_string(row.weighted)}
            for row in self.rows.values()
        ]
        return {
            "name": self.name,
            "description": "Queries with the keywords that CoGR wrote for them",
            "sampling": "manual",
            "querySetQueries": entries,
        }

    def judgments(self) -> dict[str, Any]:
        """The body of `PUT judgments`."""
        return {
            "name": self.name,
            "description": "Judgements of the data set",
            "type": "IMPORT_JUDGMENT",
            "judgmentRatings": judgment_ratings(self.judged),
        }

    def configurations(self) -> list[dict[str, Any]]:
        """The bodies of `PUT search_configurations`: the keywords, and today's search."""
        query = json.dumps(keywords_query(self.field))
        found = [{"name": f"{self.name} keywords", "query": query, "index": self.index}]
        if self.present is not None:
            found.append({"name": f"{self.name} today", "query": self.present, "index": self.index})
        return found

    def experiment(self, query_set: str, judgments: str, configuration: str) -> dict[str, Any]:
        """The body of `PUT experiments`, by the ids of its parts."""
        return {
            "querySetId": query_set,
            "searchConfigurationList": [configuration],
            "judgmentList": [judgments],
            "size": self.size,
            "type": "POINTWISE_EVALUATION",
        }

    def send(self, cluster: Cluster) -> dict[str, Any]:
        """Create everything; the ids.

        Raises ServiceError: the cluster can't be reached, refuses, or has no workbench.
        """

        def put(what: str, body: Mapping[str, Any], id_: str) -> str:
            doing = f"creating {what} of the workbench"
            return str(cluster.call("PUT", f"{BASE}/{what}", body=body, doing=doing)[id_])

        queries = put("query_sets", self.query_set(), "query_set_id")
        judged = put("judgments", self.judgments(), "judgment_id")
        searches = [
            put("search_configurations", body, "search_configuration_id")
            for body in self.configurations()
        ]
        experiments = [
            put("experiments", self.experiment(queries, judged, search), "experiment_id")
            for search in searches
        ]
        return {
            "query_set": queries,
            "judgments": judged,
            "search_configurations": searches,
            "experiments": experiments,
        }
