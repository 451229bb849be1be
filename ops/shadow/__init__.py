"""`cogr-ops shadow`: a query log asked of the search that serves today and of one with CoGR's
keywords, side by side.

`cogr.datasets.query_logs` reads the log, `replay` sends each query to both searches and measures
the times, `comparison` compares the answers. Nothing here changes an index, and shoppers are not
affected.
"""
