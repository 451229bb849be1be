"""The query expander, `cogr-ops serve`: a query in, its keywords and a ready OpenSearch clause out,
within a deadline.

`expander` decides where keywords come from; `follower` follows the pair of snapshots that serves;
`redis_cache`, `precomputed` and `live_models` are the three upstreams, each behind a
`circuit_breaker`; `app` is the HTTP side with `admission` before it and `http_server` under it;
`prometheus` counts. Nothing here searches items: that is the caller's own request, with the clause.
"""
