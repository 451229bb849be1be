"""Co-evolving generative retrieval: keywords, data sets, snapshots, the mirror, rewards and
metrics.

The problem itself, without models, servers or network. Submodules are imported when they are used:
`from cogr.matching.mirror import Mirror`, `from cogr.keywords import normalise`. `cogr.Project` is
the way in from Python; it lives in `trainers.project` and is loaded when it is asked for.
"""

__version__ = "0.1.0"
__all__ = ["Project", "__version__"]


def __getattr__(name: str) -> object:
    if name == "Project":
        from importlib import import_module

        # By name: imports point from `trainers` to here.
        return import_module("trainers.project").Project
    raise AttributeError(f"module 'cogr' has no attribute {name!r}")
