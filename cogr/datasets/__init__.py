"""Data sets: `load_dataset` reads any known format into one `cogr.records.Dataset`. One module a format.

Formats, their files and their rules are in docs/datasets.md. Nothing here writes, and only `ir_datasets:NAME` may
download anything.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from cogr.datasets import beir, jsonl, nfcorpus
from cogr.datasets.building import Builder, Options
from cogr.datasets.loader import Loader
from cogr.errors import DataError, SettingsError
from cogr.records import Dataset

DATA_DIR_VARIABLE = "COGR_DATA_DIR"

LOADERS: dict[str, Loader] = {module.LOADER.name: module.LOADER for module in (jsonl, beir, nfcorpus)}
"""Every loader by the name that the setting dataset.loader takes."""


def load_dataset(
    loader: str,
    path: str | Path | None = None,
    *,
    threshold: float | None = None,
    test_share: float | None = None,
    dev_share: float = 0.0,
    seed: int = 0,
    max_unknown_share: float = 0.05,
) -> Dataset:
    """Load a data set.

    Args:
        loader: a name of `LOADERS`.
        path: the folder of the files; $COGR_DATA_DIR/<loader> by default for nfcorpus, msrd, chorus and wands.
        threshold: the lowest grade that counts as relevant; by default the loader's.
        test_share: share of the queries that become the test split, by a seeded shuffle, where the data names no splits
            (0.1 unless set); an error where it does.
        dev_share: share of the training queries that are set apart as (or added to) the dev split, by a seeded shuffle.
        seed: of these shuffles. Fixed evaluation splits (msrd, chorus, wands) don't depend on it.
        max_unknown_share: the largest accepted share of judgements that point to queries or items that are not there.

    Raises:
        SettingsError: an unknown loader, a path that is not set, a share out of range.
        DataError: a missing folder or file, a bad record, no relevant items; names file and line.
    """
    chosen = _find_loader(loader)
    options = Options(
        threshold=chosen.threshold if threshold is None else threshold,
        test_share=test_share,
        dev_share=dev_share,
        seed=seed,
        max_unknown_share=max_unknown_share,
    )
    builder = Builder(chosen.name, options)
    chosen.read(_folder(chosen, path), builder)
    return builder.build(chosen.test_share)


def _find_loader(name: str) -> Loader:
    if name in LOADERS:
        return LOADERS[name]
    near = difflib.get_close_matches(name, LOADERS, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else "set dataset.loader to a known one:"
    raise SettingsError(f"The loader {name!r} is unknown; {hint} Known are {', '.join(LOADERS)}.")


def _folder(loader: Loader, path: str | Path | None) -> Path:
    if path is not None:
        folder = Path(path).expanduser()
    elif not loader.fetch:
        raise SettingsError(f"The loader {loader.name} needs a folder: set dataset.path.")
    elif home := os.environ.get(DATA_DIR_VARIABLE):
        folder = Path(home).expanduser() / loader.name
    else:
        raise SettingsError(
            f"The data set {loader.name} has no folder: set dataset.path, or set {DATA_DIR_VARIABLE} to the folder that "
            f"holds {loader.name}/; to have the data, {loader.fetch}."
        )
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "is not there"
        raise DataError(f"The folder {folder} {what}: {loader.fetch or 'check dataset.path'}.")
    return folder
