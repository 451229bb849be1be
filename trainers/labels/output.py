"""What the makers of labels write: queries and judgements for the loader jsonl, and where they come
from.

A folder gets `queries.jsonl`, `labels.jsonl` and `lineage.json`; `items.jsonl` beside them makes it
a data set. The lineage goes with the data set into the manifest of every snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cogr import __version__
from cogr.datasets import LINEAGE
from cogr.errors import DataError
from cogr.store import Store
from trainers.labels import RELEVANT

QUERIES, LABELS = "queries.jsonl", "labels.jsonl"


def check_free(folder: Path, *, replace: bool, queries: bool = True) -> None:
    """Raises DataError where the folder has labels or queries already, unless they are to be
    replaced.
    """
    names = [LABELS, *([QUERIES] if queries else [])]
    there = [name for name in names if (folder / name).exists()]
    if there and not replace:
        raise DataError(
            f"{folder} already has {' and '.join(there)}: name another folder with --out, or "
            "replace them with --replace."
        )


def write_folder(
    folder: Path,
    queries: Iterable[Mapping[str, Any]] | None,
    labels: Iterable[Mapping[str, Any]],
    lineage: Mapping[str, Any],
) -> None:
    """Write the files, each as a whole; the lineage last.

    Raises StorageError when the disk is full or read-only.
    """
    store = Store(folder.absolute())
    for name, rows in ((QUERIES, queries), (LABELS, labels)):
        if rows is not None:
            with store.replacing(name) as file:
                for row in rows:
                    file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    store.write_json(LINEAGE, {"cogr": __version__, "relevant_from": RELEVANT, **lineage})


def configuration(folder: Path) -> str:
    """The lines of cogr.toml that read such a folder."""
    return (
        f'[dataset]\nloader = "jsonl"\npath = {json.dumps(str(folder))}\n'
        f'threshold = {RELEVANT:g}  # acceptable or better\nsplit_by = "cluster"'
    )
