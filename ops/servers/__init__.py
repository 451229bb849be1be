"""Local servers for development and tests: ordinary processes that listen on 127.0.0.1 only.

Not for production. `opensearch` and `valkey` are what can be started; `instances` knows which
servers there are.
"""
