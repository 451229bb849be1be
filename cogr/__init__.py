"""Co-evolving generative retrieval: keywords, data sets, snapshots, the mirror, rewards and
metrics.

The problem itself, without models, servers or network. Submodules are imported when they are used:
`from cogr.matching.mirror import Mirror`, `from cogr.keywords import normalise`.
"""

__version__ = "0.1.0"
