"""Exact keyword matching by BM25, in memory: the same sets, scores and order as OpenSearch."""
