"""The query expander, `cogr-ops serve`: it answers a query with its keywords and a ready OpenSearch
clause, within a deadline.

`expander` looks for keywords in three upstreams: Redis and the query index (`precomputed`), and a
model (`live_models`), each behind the circuit breaker of `upstream`, and follows the pair of
snapshots that serves. `app` has routes, checks of requests, and server. Nothing here searches
items: the caller does, with the clause.
"""
