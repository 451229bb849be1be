"""Data sets: `load_dataset` reads any known format into one `cogr.records.Dataset`.

`LOADERS` names the function of each format, from a folder's files to a `Builder`. Items are all
that a folder needs: queries without labels get keywords, but nothing can be trained or evaluated on
them. Other packages bring loaders by entry points; so does this repository for published data sets.
Formats, their files and their rules are in docs/datasets.md. Nothing here writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from cogr.datasets.builder import Builder, DatasetOptions
from cogr.datasets.fields import Columns, id_field, number_field, text_field, time_field
from cogr.datasets.judgements import read_judgements
from cogr.datasets.reading import (
    Place,
    Sheet,
    find,
    json_object,
    json_records,
    json_whole,
    nearest,
    need,
    parquet_rows,
)
from cogr.errors import DataError, SettingsError
from cogr.records import SPLITS, Dataset

LINEAGE = "lineage.json"
"""A file of a data set's folder that says where its labels come from."""


@dataclass(frozen=True, slots=True)
class Loader:
    """One format.

    Attributes:
        read: adds the records of a path, None where none is set, to a builder.
        threshold: the lowest relevant grade, unless set otherwise.
        own: for a user's own data, to which `dataset.columns` applies, and whose texts lose HTML.
    """

    read: Callable[[Path | None, Builder], None]
    threshold: float = 1.0
    own: bool = False


_Records = Iterator[tuple[Place, Mapping[str, Any]]]
Part = Callable[[Path, str, Builder], _Records]
"""The records of a file of a data set's part: items, queries, labels or pairs."""


def _read_parts(format: str, path: Path | None, builder: Builder) -> None:
    folder = _folder(path, format)
    signals = builder.options.pair_signals
    wanted = ("items", "queries", "labels", *(["pairs"] if signals else []))
    files = {part: _files_of(folder, part, format) for part in (*_NAMED, "pairs")}
    for name, paths in files.items():
        for unread in paths[1:] if name in wanted else paths:
            builder.unread(unread.name)

    def part(name: str) -> _Records | None:
        for first in files[name][:1]:
            return _PARTS[_format_of(first)](first, name, builder)
        return None

    items, queries, labels = map(part, _NAMED)
    if items is None:
        raise DataError(
            f"{folder} has no items.{format} (or items.{format}.gz): write one record an item, "
            "with id, title and text."
        )
    for place, record in items:
        builder.has_fields(record)
        _add_item(builder, place, record, builder.options.columns.id)
    for place, record in queries or ():
        _add_query(builder, place, record)
    if labels is not None and queries is None:
        raise DataError(
            f"{folder} has no queries.{format} (or queries.{format}.gz): labels need queries; "
            "write one record a query, with id and text."
        )
    if labels is not None:
        _add_labels(builder, labels)
    for place, record in (part("pairs") if signals else None) or ():
        query, item = id_field(record, "query", place), id_field(record, "item", place)
        builder.pair_signals(place, query, item, record)


_NAMED = ("items", "queries", "labels")


def _files_of(folder: Path, part: str, format: str) -> list[Path]:
    """The files of a part, the one to read first: of the format, plain, then gzip."""
    formats = [*dict.fromkeys((format, *_PARTS))]
    there = [path for path in folder.glob(f"{part}.*") if _format_of(path)]
    return sorted(there, key=lambda path: (formats.index(_format_of(path)), path.name))


def _format_of(path: Path) -> str:
    end = path.name.removesuffix(".gz").rpartition(".")[2]
    return {"tsv": "csv"}.get(end, end if end in _PARTS else "")


def _add_query(builder: Builder, place: Place, record: Mapping[str, Any]) -> None:
    id_, text = id_field(record, "id", place), text_field(record, "text", place)
    weight = number_field(record, "weight", place, default=1.0)
    split = text_field(record, "split", place) or None
    builder.query(place, id_, text, weight, split, time_field(record, "updated", place))
    builder.unread(*(f"queries' {name}" for name in record if name not in _QUERY))


_QUERY = frozenset(("id", "text", "weight", "split", "updated"))
_EVIDENCE = ("confidence", "rate", "impressions")
"""What labels from clicks have for people to look at."""
_CALLED_GRADES = re.compile("grade|rating|relevance|score|label|judg|gain", re.IGNORECASE)


def _add_labels(builder: Builder, labels: _Records) -> None:
    """Raises DataError where no label has a grade, though some have more than two fields."""
    known = {"query", "item", "grade", *builder.options.pair_signals}
    graded, others, source = False, dict[str, None](), ""
    for place, record in labels:
        query, item = id_field(record, "query", place), id_field(record, "item", place)
        builder.judgement(place, query, item, number_field(record, "grade", place, default=1.0))
        builder.pair_signals(place, query, item, record)
        more = [name for name in record if name not in known]
        builder.unread(*(f"labels' {name}" for name in more if name not in _EVIDENCE))
        graded, source = graded or "grade" in record, str(place.source)
        others.update(dict.fromkeys(more))
    if others and not graded:
        likely = next(filter(_CALLED_GRADES.search, others), next(iter(others)))
        raise DataError(
            f"{source}: no field is named 'grade', and {likely!r} is not read; name it 'grade' if "
            "it has the grades, or leave it out if every row is a relevant pair."
        )


def _add_item(builder: Builder, place: Place, record: Mapping[str, Any], key: str) -> None:
    columns = builder.options.columns
    title, text = columns.title_and_text(record, place)
    updated = time_field(record, columns.updated, place)
    builder.item(place, id_field(record, key, place), title, text, updated, record)


def _jsonl(path: Path, _name: str, _builder: Builder) -> _Records:
    return json_records(path)


def _csv(path: Path, name: str, builder: Builder) -> _Records:
    if name != "items":
        named = ("id", "text") if name == "queries" else ("query", "item")
        return Sheet.of(path, *named).records()
    columns = builder.options.columns
    sheet = Sheet.open(path, columns.read())
    sheet.need(columns.id, "dataset.columns.id")
    builder.has_fields([column for column in sheet.header if column], 0)
    shopify = columns.id == "Handle" and "Option1 Value" in sheet.header
    return _products(sheet.records(), builder.options) if shopify else sheet.records()


_OF_VARIANTS = re.compile(r"Option\d Value|Variant (?:SKU|Barcode)")


def _products(rows: _Records, options: DatasetOptions) -> _Records:
    """The products of Shopify's export, which has a row for each variant and each image of one. The
    first value of each column stays; options, SKUs and barcodes of all variants go into the text.
    """
    columns, fields = options.columns, dict(options.columns.sources(options.fields)).values()
    for handle, group in groupby(rows, lambda one: one[1].get("Handle")):
        several = list(group) if handle else []
        product = {name: value for _, row in several[::-1] for name, value in row.items()}
        own = [name for name in product if _OF_VARIANTS.fullmatch(name)]
        values = [row[name] for name in own for _, row in several if name in row]
        said = ", ".join(one for one in dict.fromkeys(values) if one != "Default Title")
        text = columns.text[-1]
        named = {columns.title, *columns.text[:-1], *fields}
        for name in {*own} - named:
            del product[name]
        if several:
            product[text] = "\n".join(filter(None, (product.get(text), said)))
            yield several[0][0], product


def _parquet(path: Path, name: str, builder: Builder) -> _Records:
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    wanted, tell = None, None
    if name == "items":
        extra = builder.options.columns.sources(builder.options.fields)
        wanted = {*builder.options.columns.read(), *(source for _, source in extra)}
        wanted |= {name.partition(".")[0] for name in wanted}
        tell = builder.has_fields
    return chain.from_iterable(parquet_rows(path, wanted, tell) for path in files)


_PARTS: Mapping[str, Part] = {"jsonl": _jsonl, "csv": _csv, "parquet": _parquet}


def _read_beir(path: Path | None, builder: Builder) -> None:
    folder = _folder(path, "beir")
    # Each file plain or .gz. The qrels have a header line `query-id corpus-id score`.
    corpus = need(folder, "corpus.jsonl", "write one item a line, with _id, title and text")
    for place, record in json_records(corpus):
        _add_item(builder, place, record, "_id")
    qrels = {split: path for split in SPLITS if (path := find(folder / "qrels", f"{split}.tsv"))}
    for path in sorted(folder.glob("qrels/*")):
        if path not in qrels.values():
            builder.unread(f"qrels/{path.name}")
    queries = find(folder, "queries.jsonl")
    if qrels:
        advice = "qrels need queries: write one query a line, with _id and text"
        queries = need(folder, "queries.jsonl", advice)
    for place, record in json_records(queries) if queries else ():
        builder.query(place, id_field(record, "_id", place), text_field(record, "text", place))
    for split, path in qrels.items():
        for one in read_judgements(path, "beir"):
            builder.assign(one.place, one.query_id, split)
            builder.judgement(one.place, one.query_id, one.item, one.grade or 0.0)


LOADERS: Mapping[str, Loader] = {
    "jsonl": Loader(partial(_read_parts, "jsonl"), own=True),
    "csv": Loader(partial(_read_parts, "csv"), own=True),
    "parquet": Loader(partial(_read_parts, "parquet"), own=True),
    "beir": Loader(_read_beir),
}
"""Loaders of formats, which read a folder, by their names in the setting dataset.loader.

Beside them: those of `PLUGINS`.
"""
PLUGINS = "cogr.loaders"
"""The entry points of other packages' loaders: a function from the setting to a `Loader`. One whose
name ends in `:NAME` takes any name there.
"""


def load_dataset(
    loader: str, path: str | Path | None = None, options: DatasetOptions | None = None
) -> Dataset:
    """Load a data set.

    A file lineage.json beside the data says where its labels come from; see `Dataset.lineage`.

    Args:
        loader: a name of `LOADERS` or `PLUGINS`.
        path: the folder of the files; $COGR_DATA_DIR/<loader> by default for published data.

    Raises:
        SettingsError: an unknown loader, a path that is not set, a field that no item has, columns
            for a loader that has its own.
        DataError: a missing folder or file, a bad record, no relevant items; names file and line.
    """
    chosen, asked = _find_loader(loader), options or DatasetOptions()
    if asked.columns != Columns() and not chosen.own:
        own = ", ".join(name for name, one in LOADERS.items() if one.own)
        raise SettingsError(
            f"The loader {loader} has its own columns; remove dataset.columns, which is for {own}."
        )
    threshold = chosen.threshold if asked.threshold is None else asked.threshold
    builder = Builder(loader, replace(asked, threshold=threshold, strip_html=chosen.own))
    place = None if path is None else Path(path).expanduser()
    chosen.read(place, builder)
    dataset, file = builder.build(), place and place / LINEAGE
    if not file or not file.is_file():
        return dataset
    lineage = json_object(json_whole(file), Place(file, 1))
    return replace(dataset, lineage=lineage, new=_younger(dataset, lineage))


def _younger(dataset: Dataset, lineage: Mapping[str, Any]) -> frozenset[str]:
    key = "to" if lineage.get("to") else "date"
    made = time_field(lineage, key, Place(LINEAGE, 1))
    if made is None:
        return frozenset()
    updated = dataset.updated.get("item", {})
    return dataset.never_judged(id_ for id_, time in updated.items() if time > made)


def _find_loader(name: str) -> Loader:
    if name in LOADERS:
        return LOADERS[name]
    plugins = entry_points(group=PLUGINS)
    for plugin in plugins:
        begin, any_name, _ = plugin.name.partition("NAME")
        if name.startswith(begin) if any_name else name == begin:
            return _loaded(plugin, name)
    known = [*LOADERS, *plugins.names]
    raise SettingsError(
        f"The loader {name!r} is unknown; set dataset.loader to another{nearest(name, known)} "
        f"(there are: {', '.join(known)})."
    )


def _loaded(plugin: EntryPoint, name: str) -> Loader:
    try:
        made: Callable[[str], Loader] = plugin.load()
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"The loader {name} is in {plugin.module}, which is not installed. Loaders of "
            "published data sets are in the repository only: run in a clone installed by pip "
            "install -e ., or convert the data to beir or jsonl."
        ) from error
    return made(name)


def _folder(path: Path | None, loader: str) -> Path:
    if path is None:
        raise SettingsError(f"The loader {loader} needs a folder: set dataset.path.")
    if not path.is_dir():
        what, advice = "does not exist", "check dataset.path"
        if path.exists():
            what = "is not a folder"
            advice = f"put it into one as items.{loader}, and set dataset.path to that"
        raise DataError(f"The folder {path} {what}: {advice}.")
    return path
