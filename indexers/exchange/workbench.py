"""OpenSearch's Search Relevance Workbench: a query set whose entries carry keywords, judgements,
search configurations and an experiment.

Since 3.8 an entry of a query set may have fields of its own, and a search configuration may name
them as Mustache variables: with the keywords in one, the workbench evaluates CoGR without any
plugin of ours. The requests follow the plugin's documentation and its source; they were run against
a recorded server, not against the plugin, which no package registry has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cogr.datasets.judgements import Judged, judgment_ratings
from cogr.errors import SettingsError
from cogr.snapshots import Row
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.search import KEYWORDS

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
    """What goes into the workbench.

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
