"""The search backend `opensearch`, cut by noun.

client: the connection and its version. errors: what refusals mean. mapping: names, mapping,
    documents, roles. writer: bulk requests. indexes: state, statistics and marks of an index, and
    the aliases, which say what serves.
push: one snapshot into its index, in full or by difference. verify: what is held and answered,
    against the mirror. search: queries, and stored search templates.
field: keywords as a field of another team's index. moving: old fields out of that index.
"""

from indexers.backends.opensearch.backend import OpenSearchBackend

__all__ = ["OpenSearchBackend"]
