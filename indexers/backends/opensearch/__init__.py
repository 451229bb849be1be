"""The search backend `opensearch`, cut by noun.

client: the connection and its version. errors: what refusals mean. mapping: names, mapping,
    documents. writer: bulk.
indexes: state, statistics and marks of one index. copying: an index made of its parent's.
push: one snapshot into its index. verify: live results against the mirror. publish: aliases.
    search: queries.
"""

from indexers.backends.opensearch.backend import OpenSearchBackend

__all__ = ["OpenSearchBackend"]
