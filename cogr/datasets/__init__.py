"""Data sets: `load_dataset` reads any known format into one `cogr.records.Dataset`.

`LOADERS` names the function of each format, from a folder's files to a `Builder`. Items are all
that a folder needs: queries without labels get keywords, but nothing can be trained or evaluated on
them. Published data sets are read by `benchmarks/published.py`, which only a clone of the
repository has. Formats, their files and their rules are in docs/datasets.md. Nothing here writes.
"""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cogr.datasets.builder import Builder, Options, SplitBy
from cogr.datasets.fields import Columns, id_field, number_field, text_field, time_field
from cogr.datasets.judgements import read_judgements
from cogr.datasets.reading import (
    WESTERN,
    Place,
    Sheet,
    find,
    json_object,
    json_records,
    json_whole,
    need,
    parquet_rows,
)
from cogr.errors import DataError, SettingsError
from cogr.records import SPLITS, Dataset

DATA_DIR_VARIABLE = "COGR_DATA_DIR"

LINEAGE = "lineage.json"
"""A file of a data set's folder that says where its labels come from."""


@dataclass(frozen=True, slots=True)
class Loader:
    """One format.

    Attributes:
        threshold: the lowest relevant grade, unless set otherwise.
        test_share: the fixed share of test queries where the data has no splits of its own, drawn
            with seed 0.
        own: for a user's own data, to which `dataset.columns` applies, and whose texts lose HTML.
        fetch: for published data, how to get it; its folder is $COGR_DATA_DIR/<name> by default.
        fetches: it downloads its files itself, and has no folder.
    """

    name: str
    read: Callable[[Path, Builder], None]
    threshold: float = 1.0
    test_share: float | None = None
    own: bool = False
    fetch: str = ""
    fetches: bool = False


WESTERN_FILES = "files read as Windows-1252"
"""A note of the data set."""

Records = Iterator[tuple[Place, Mapping[str, Any]]]
Part = Callable[[Path, str, Builder], Records | None]
"""The records of a part of a data set (items, queries, labels or pairs); None where it has none."""


def _read_parts(format: str, folder: Path, builder: Builder) -> None:
    # A part that is not there in this format may be there in another one.
    def part(name: str) -> Records | None:
        formats = dict.fromkeys((format, *_PARTS))
        found = (_PARTS[one](folder, name, builder) for one in formats)
        return next((records for records in found if records is not None), None)

    columns, signals = builder.options.columns, builder.options.pair_signals
    items, queries, labels = map(part, ("items", "queries", "labels"))
    if items is None:
        raise DataError(
            f"{folder} has no items.{format} (or items.{format}.gz): write one record an item, "
            "with id, title and text."
        )
    for place, record in items:
        builder.has_fields(record)
        title, text = columns.title_and_text(record, place)
        updated = time_field(record, columns.updated, place)
        builder.item(place, id_field(record, columns.id, place), title, text, updated, record)
    for place, record in queries or ():
        id_, text = id_field(record, "id", place), text_field(record, "text", place)
        weight = number_field(record, "weight", place, default=1.0)
        split = text_field(record, "split", place) or None
        builder.query(place, id_, text, weight, split, time_field(record, "updated", place))
    for place, record in labels or ():
        if queries is None:
            raise DataError(
                f"{folder} has no queries.{format} (or queries.{format}.gz): labels need queries; "
                "write one record a query, with id and text."
            )
        query, item = id_field(record, "query", place), id_field(record, "item", place)
        builder.judgement(place, query, item, number_field(record, "grade", place, default=1.0))
        builder.pair_signals(place, query, item, record)
    for place, record in (part("pairs") if signals else None) or ():
        query, item = id_field(record, "query", place), id_field(record, "item", place)
        builder.pair_signals(place, query, item, record)


def _jsonl(folder: Path, name: str, _builder: Builder) -> Records | None:
    path = find(folder, f"{name}.jsonl")
    return json_records(path) if path else None


def _csv(folder: Path, name: str, builder: Builder) -> Records | None:
    path = find(folder, f"{name}.csv", f"{name}.tsv")
    if path is None:
        return None
    columns = builder.options.columns
    needed = (
        {"id": "id", "text": "text"} if name == "queries" else {"query": "query", "item": "item"}
    )
    if name == "items":
        needed = {columns.id: "dataset.columns.id"}
        needed |= {column: setting for setting, column in columns.renamed()}
    sheet = Sheet.open(path, {*needed, *(columns.read() if name == "items" else ())})
    for column, setting in needed.items():
        sheet.need(column, setting)
    if name == "items":
        if not {columns.title, *columns.text} & {*sheet.header}:
            sheet.need(columns.title, "dataset.columns.title or .text")
        builder.has_fields([column for column in sheet.header if column], 0)
    builder.notes[WESTERN_FILES] += sheet.encoding == WESTERN
    return sheet.records()


def _parquet(folder: Path, name: str, builder: Builder) -> Records | None:
    path = folder / f"{name}.parquet"
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path] if path.is_file() else []
    return _rows(files, builder if name == "items" else None) if files else None


_PARTS: Mapping[str, Part] = {"jsonl": _jsonl, "csv": _csv, "parquet": _parquet}


def _rows(files: Iterable[Path], builder: Builder | None) -> Records:
    wanted, tell = None, None
    if builder:
        extra = builder.options.columns.sources(builder.options.fields)
        wanted = {*builder.options.columns.read(), *(source for _, source in extra)}
        tell = builder.has_fields
    for path in files:
        yield from parquet_rows(path, wanted, tell)


def _read_beir(folder: Path, builder: Builder) -> None:
    # Each file plain or .gz. The qrels have a header line `query-id corpus-id score`.
    corpus = need(folder, "corpus.jsonl", "write one item a line, with _id, title and text")
    for place, record in json_records(corpus):
        title, text = builder.options.columns.title_and_text(record, place)
        updated = time_field(record, "updated", place)
        builder.item(place, id_field(record, "_id", place), title, text, updated, record)
    found = {split: path for split in SPLITS if (path := find(folder / "qrels", f"{split}.tsv"))}
    queries = find(folder, "queries.jsonl")
    if found and queries is None:
        need(
            folder, "queries.jsonl", "qrels need queries: write one query a line, with _id and text"
        )
    for place, record in json_records(queries) if queries else ():
        builder.query(place, id_field(record, "_id", place), text_field(record, "text", place))
    for split, path in found.items():
        for one in read_judgements(path, "beir"):
            builder.assign(one.place, one.query_id, split)
            builder.judgement(one.place, one.query_id, one.item, one.grade or 0.0)


LOADERS: Mapping[str, Loader] = {
    "jsonl": Loader("jsonl", partial(_read_parts, "jsonl"), own=True),
    "csv": Loader("csv", partial(_read_parts, "csv"), own=True),
    "parquet": Loader("parquet", partial(_read_parts, "parquet"), own=True),
    "beir": Loader("beir", _read_beir),
}
"""Loaders of formats, which read a folder, by their names in the setting dataset.loader.

Beside them: `PUBLISHED` and `ir_datasets:NAME`.
"""
PUBLISHED = ("nfcorpus", "msrd", "chorus", "wands")
"""Published data sets that have a loader of their own."""
IRDS = "ir_datasets:"
"""Before the name of a data set of the package ir_datasets, which downloads it."""


def load_dataset(
    loader: str,
    path: str | Path | None = None,
    *,
    threshold: float | None = None,
    dev_share: float = 0.0,
    fields: Sequence[str] = (),
    pair_signals: Sequence[str] = (),
    columns: Columns | None = None,
    split_by: SplitBy = "shuffle",
) -> Dataset:
    """Load a data set.

    Args:
        loader: a name of `LOADERS` or `PUBLISHED`, or ir_datasets:NAME.
        path: the folder of the files; $COGR_DATA_DIR/<loader> by default for nfcorpus, msrd, chorus
            and wands.
        threshold: the lowest grade that counts as relevant; by default the loader's.
        dev_share: share of the training queries that are set apart as (or added to) the dev split,
            by a seeded shuffle.
        fields: names of extra fields that items carry (`cogr.records.Item.fields`), as `columns`
            spells them.
        pair_signals: names of numbers that pairs of query and item carry
            (`cogr.records.Dataset.pair_signals`); of jsonl, csv and parquet.

    A file lineage.json beside the data says where its labels come from; see `Dataset.lineage`.

    Raises:
        SettingsError: an unknown loader, a path that is not set, a share out of range, a field that
            no item has.
        DataError: a missing folder or file, a bad record, no relevant items; names file and line.
    """
    chosen = _find_loader(loader)
    options = Options(
        threshold=chosen.threshold if threshold is None else threshold,
        dev_share=dev_share,
        fields=fields,
        pair_signals=pair_signals,
        columns=_columns(chosen, columns),
        strip_html=chosen.own,
        split_by=split_by,
    )
    builder = Builder(loader, options)
    folder = _folder(chosen, path)
    chosen.read(folder, builder)
    if chosen.fetches:
        return builder.build()
    dataset, lineage = builder.build(chosen.test_share), read_lineage(folder)
    return replace(dataset, lineage=lineage, new=_younger(dataset, lineage, folder))


def _younger(dataset: Dataset, lineage: Mapping[str, Any], folder: Path) -> frozenset[str]:
    key = "to" if lineage.get("to") else "date"
    made = time_field(lineage, key, Place(folder / LINEAGE, 1))
    if made is None:
        return frozenset()
    later = {id_ for id_, time in dataset.updated.get("item", {}).items() if time > made}
    return frozenset(later.difference(*dataset.relevant.values(), *dataset.judged.values()))


def read_lineage(folder: Path) -> Mapping[str, Any]:
    """The content of a folder's file `lineage.json`; empty without one. Raises DataError."""
    path = folder / LINEAGE
    if not path.is_file():
        return {}
    return json_object(json_whole(path), Place(path, 1))


def _find_loader(name: str) -> Loader:
    if name in LOADERS:
        return LOADERS[name]
    if name in PUBLISHED or name.startswith(IRDS):
        return _published(name)
    known = [*LOADERS, *PUBLISHED, f"{IRDS}NAME"]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"set dataset.loader to {near[0]}, the nearest" if near else "set dataset.loader to one"
    raise SettingsError(f"The loader {name!r} is unknown; {hint} of {', '.join(known)}.")


def _published(name: str) -> Loader:
    try:
        module = importlib.import_module("benchmarks.published")
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"The loader {name} is part of the repository (benchmarks/published.py), not of the "
            "installed package: run in a clone that is installed with pip install -e, or convert "
            "the data to beir or jsonl."
        ) from error
    found: Loader = module.LOADERS.get(name) or module.irds_loader(name)
    return found


def _columns(loader: Loader, columns: Columns | None) -> Columns:
    if columns is None or columns == Columns():
        return Columns()
    if not loader.own:
        own = ", ".join(one.name for one in LOADERS.values() if one.own)
        raise SettingsError(
            f"The loader {loader.name} has its own columns; remove dataset.columns, which is for "
            f"{own}."
        )
    return columns


def _folder(loader: Loader, path: str | Path | None) -> Path:
    home = os.environ.get(DATA_DIR_VARIABLE)
    if loader.fetches:
        if path is not None:
            raise SettingsError(
                f"The loader {loader.name} keeps its own files; remove dataset.path."
            )
        return Path()
    if path is None and not loader.fetch:
        raise SettingsError(f"The loader {loader.name} needs a folder: set dataset.path.")
    if path is None and not home:
        raise SettingsError(
            f"The data set {loader.name} has no folder: set dataset.path, or set "
            f"{DATA_DIR_VARIABLE} to the folder that holds {loader.name}/; to have the data, "
            f"{loader.fetch}."
        )
    folder = Path(path if path is not None else f"{home}/{loader.name}").expanduser()
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        advice = loader.fetch or "check dataset.path"
        if folder.exists() and loader.own:
            advice = f"put it into one as items.{loader.name}, and set dataset.path to that"
        raise DataError(f"The folder {folder} {what}: {advice}.")
    return folder
