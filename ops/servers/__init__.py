"""Local servers for development and tests, run as ordinary processes bound to 127.0.0.1.

Not for production.
"""
