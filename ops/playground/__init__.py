"""The playground, `cogr-ops serve --playground`: a page that shows what keywords do to a search.

Everything is computed by the mirror from the store's snapshots, because it retrieves and scores as
the cluster does, bit for bit, also for snapshots that no cluster holds.

`views` opens snapshots, data set and models and makes the answers; `app` is the HTTP side and
`static/` the page itself. It changes nothing, and it is not a part of serving searches.
"""
