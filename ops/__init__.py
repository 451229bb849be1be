"""What runs beside indexing and training: local servers, health, the query expander.

No method of its own.
"""
