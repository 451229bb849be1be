"""Query keywords as synonym files, for engines that can only expand queries in their analysis
chain.

Solr's format (also of OpenSearch's and Elasticsearch's `synonym_graph` filter) and WordNet's Prolog
facts. What such a file can't say is in docs/export.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from cogr.snapshots import Snapshot
from indexers.exchange.formats.base import Format

_NOUN = 100_000_000
"""WordNet numbers noun synsets from here on."""


def _solr(snapshot: Snapshot, _prefix: str) -> Iterator[str]:
    """`query => query, keyword, ...`: what is typed is replaced by S ∪ {self}.

    Of queries of one text the first by id counts.
    """
    yield f"# Keywords of the queries of {snapshot.id}\n"
    for own, words in _expanded(snapshot):
        yield f"{_escaped(own)} => {', '.join(map(_escaped, (own, *words)))}\n"


def _wordnet(snapshot: Snapshot, _prefix: str) -> Iterator[str]:
    """`s(synset, number, 'word', n, 1, 0).`: a query and its keywords are one synset."""
    for number, (own, words) in enumerate(_expanded(snapshot)):
        for place, word in enumerate((own, *words), 1):
            quoted = word.replace("'", "''")
            yield f"s({_NOUN + number},{place},'{quoted}',n,1,0).\n"


def _expanded(snapshot: Snapshot) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(query, its keywords) of every query that has keywords. Memory: the texts of the queries."""
    seen: set[str] = set()
    for row in snapshot.rows():
        own = row.self_keyword
        if own and row.keywords and own not in seen:
            seen.add(own)
            yield own, row.keywords


def _escaped(word: str) -> str:
    """A backslash takes the meaning from commas, arrows, and the sign of a comment."""
    escaped = word.replace("\\", "\\\\").replace(",", "\\,").replace("=>", "\\=>")
    return f"\\{escaped}" if escaped.startswith("#") else escaped


FORMATS = {"synonyms": Format(_solr, side="query"), "wordnet": Format(_wordnet, side="query")}
