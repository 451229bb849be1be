"""The search backend `opensearch`.

client: the connection and its version. errors: sentences for refusals. mapping: names, mapping,
    documents, roles. writer: bulk requests. indexes: state, statistics and marks of an index.
backend: the protocol, and the aliases, which say what serves.
push: one snapshot into its index, in full or by difference. verify: documents and results, compared
    with the mirror. search: queries, and stored search templates.
foreign_field: keywords as a field of another team's index.
"""

from indexers.backends.opensearch.backend import OpenSearchBackend

__all__ = ["OpenSearchBackend"]
