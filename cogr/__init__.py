"""Co-evolving generative retrieval: keywords, data sets, snapshots, the mirror, rewards and
metrics.

This package needs no models, servers or network. Import its submodules as you need them: `from
cogr.matching.mirror import Mirror`, `from cogr.keywords import normalise`. `cogr.Project` is the
entry point from Python; it is loaded from `trainers.project` on first use.
"""

__version__ = "0.1.0"
__all__ = ["Project", "__version__"]


def __getattr__(name: str) -> object:
    if name == "Project":
        from importlib import import_module

        # Imported by name, because imports point from `trainers` to here.
        return import_module("trainers.project").Project
    raise AttributeError(f"module 'cogr' has no attribute {name!r}")
