"""The search backend `opensearch`: one OpenSearch cluster."""

from indexers.backends.opensearch.backend import OpenSearchBackend

__all__ = ["OpenSearchBackend"]
