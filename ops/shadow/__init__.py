"""`cogr-ops shadow`: a query log asked of the search that serves today and of one with CoGR's
keywords, side by side.

`cogr.datasets.query_logs` reads what was asked, `replay` asks both and times them, `comparison`
compares. Nothing here changes an index, and no shopper sees any of it.
"""
