"""The query expander, `cogr-ops serve`: a query in, its keywords and a ready OpenSearch clause out,
within a deadline.

`expander` decides where keywords come from; `pair` follows what serves; `cache`, `index` and
`models` are the three upstreams, each behind a `guard`; `app` is the HTTP side, `server` the server
under it; `backlog` answers later what could not be answered in time. Nothing here searches items:
that is the caller's own request, with the clause.
"""
