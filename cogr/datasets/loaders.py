"""Loaders, one function each: from a folder's files to a `Builder`.

`jsonl`, `csv`, `parquet` and `beir` are layouts for data of one's own. Items are all that a folder
needs. Queries without labels get keywords, but nothing can be trained or evaluated on them. What
the fields are called in jsonl, csv and parquet is said by `dataset.columns`.

`chorus`, `msrd`, `nfcorpus` and `wands` are published data sets. What to fetch for each, and which
files then lie in its folder, is said by the constants in capitals. Their evaluation splits are
fixed, so that figures can be compared.

`ir_datasets:NAME` is any data set of the package ir_datasets, which downloads it. NAME has its own
queries and judgements, or its parts NAME/train, NAME/dev and NAME/test have them. A NAME that ends
in a split's name is all in that split; any other one without parts is split by a seeded shuffle.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cogr.datasets.builder import Builder, seeded_part
from cogr.datasets.fields import id_field, number_field, parse_number, text_field, time_field
from cogr.datasets.judgements import read_judgements
from cogr.datasets.reading import (
    QUOTED_TSV,
    WESTERN,
    Place,
    Sheet,
    check_columns,
    find,
    find_sheet,
    json_array,
    json_records,
    need,
    split_rows,
    table,
)
from cogr.errors import DataError, MissingExtraError, ServiceError, SettingsError
from cogr.records import SPLITS

WESTERN_FILES = "files read as Windows-1252"
"""A note of the data set."""
_ITEMS_ADVICE = "write one record an item, with id, title and text"
_QUERIES_ADVICE = "labels need queries: write one record a query, with id and text"


def read_jsonl(folder: Path, builder: Builder) -> None:
    """Our own layout: items.jsonl, queries.jsonl and labels.jsonl, each plain or .gz."""
    for place, record in json_records(need(folder, "items.jsonl", _ITEMS_ADVICE)):
        builder.has_fields(record)
        _add_item(builder, place, record)
    queries, labels = find(folder, "queries.jsonl"), find(folder, "labels.jsonl")
    for place, record in json_records(queries) if queries else ():
        _add_query(builder, place, record)
    for place, record in json_records(labels) if labels else ():
        if queries is None:
            need(folder, "queries.jsonl", _QUERIES_ADVICE)
        _add_label(builder, place, record)
    pairs = find(folder, "pairs.jsonl") if builder.options.pair_signals else None
    for place, record in json_records(pairs) if pairs else ():
        _add_pair(builder, place, record)


def _add_item(
    builder: Builder, place: Place, record: Mapping[str, Any], id_key: str | None = None
) -> None:
    """Add a record with an id, a title and a text, and perhaps when it was updated.

    Raises DataError when it has neither title nor text.
    """
    columns = builder.options.columns
    title, text = columns.title_and_text(record, place)
    id_ = id_field(record, id_key or columns.id, place)
    builder.item(place, id_, title, text, time_field(record, columns.updated, place), record)


def _add_query(builder: Builder, place: Place, record: Mapping[str, Any]) -> None:
    """Add a record with an id, a text, and perhaps a weight, a split, and when it was updated."""
    columns = builder.options.columns.queries
    split = text_field(record, columns.split, place) or None
    weight = number_field(record, columns.weight, place, default=1.0)
    id_ = id_field(record, columns.id, place)
    text = text_field(record, columns.text, place)
    builder.query(place, id_, text, weight, split, time_field(record, columns.updated, place))


def _add_label(builder: Builder, place: Place, record: Mapping[str, Any]) -> None:
    """Add a record with a query's id, an item's id and perhaps a grade (1 without)."""
    columns = builder.options.columns.labels
    grade = number_field(record, columns.grade, place, default=1.0)
    builder.judgement(
        place, id_field(record, columns.query, place), id_field(record, columns.item, place), grade
    )
    if builder.options.pair_signals:
        _add_pair(builder, place, record)


def _add_pair(builder: Builder, place: Place, record: Mapping[str, Any]) -> None:
    """Add the numbers of a record with a query's id and an item's id, which is no label."""
    columns = builder.options.columns.labels
    query, item = (id_field(record, name, place) for name in (columns.query, columns.item))
    builder.pair_signals(place, query, item, record)


def read_csv(folder: Path, builder: Builder) -> None:
    """Tables of spreadsheets and databases: items.csv, queries.csv and labels.csv, or .tsv.

    The files themselves say what delimiter and encoding they have (`Sheet`). Empty cells are no
    values.
    """
    _read_sheet_of_items(folder, builder)
    columns = builder.options.columns
    asked, judged = columns.queries, columns.labels
    queries, labels = find_sheet(folder, "queries"), find_sheet(folder, "labels")
    numbers = builder.options.pair_signals
    if queries:
        sheet = _open(queries, builder, {"queries.id": asked.id, "queries.text": asked.text})
        for place, record in _cells(sheet, asdict(asked).values(), {asked.weight}, asked.updated):
            _add_query(builder, place, record)
    if labels:
        sheet = _open(labels, builder, {"labels.query": judged.query, "labels.item": judged.item})
        wanted = {*asdict(judged).values(), *numbers}
        for place, record in _cells(sheet, wanted, {judged.grade, *numbers}):
            if not queries:
                raise DataError(f"{folder} has no queries.csv: {_QUERIES_ADVICE}.")
            _add_label(builder, place, record)
    if numbers and (pairs := find_sheet(folder, "pairs")):
        sheet = _open(pairs, builder, {"labels.query": judged.query, "labels.item": judged.item})
        for place, record in _cells(sheet, {judged.query, judged.item, *numbers}, numbers):
            _add_pair(builder, place, record)


def _read_sheet_of_items(folder: Path, builder: Builder) -> None:
    if not (path := find_sheet(folder, "items")):
        raise DataError(
            f"{folder} has no items.csv (or items.tsv, or either with .gz): save the sheet as CSV "
            "under this name, its columns named in the first line."
        )
    columns = builder.options.columns
    sheet = _open(path, builder, {"id": columns.id})
    for setting, name in columns.renamed():
        sheet.need(name, setting)
    if not {columns.title, *columns.text} & {*sheet.header}:
        sheet.need(columns.title, "dataset.columns.title or .text")
    names = tuple(name for name in sheet.header if name)
    builder.has_fields(names, 0)
    wanted = columns.read() | {source for _, source in columns.sources(builder.options.fields)}
    for place, record in _cells(sheet, wanted, (), columns.updated):
        builder.has_fields(names)
        record.setdefault(columns.title, "")  # an item without any text is blank, and counted
        _add_item(builder, place, record)


def _open(path: Path, builder: Builder, needed: Mapping[str, str]) -> Sheet:
    sheet = Sheet.open(path, needed.values())
    for setting, name in needed.items():
        sheet.need(name, f"dataset.columns.{setting}")
    if sheet.encoding == WESTERN:
        builder.notes[WESTERN_FILES] += 1
    return sheet


def _cells(
    sheet: Sheet, wanted: Collection[str], numbers: Collection[str] = (), updated: str = ""
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The wanted columns, row by row; cells without text are left out, and the others lose the
    white space around them.
    """
    read = [(name, at) for at, name in enumerate(sheet.header) if name and name in wanted]
    for place, row in sheet.rows():
        record: dict[str, Any] = {name: cell for name, at in read if (cell := row[at].strip())}
        for name in numbers:
            if name in record:
                record[name] = parse_number(record[name], name, place)
        if updated in record and record[updated].isdecimal():
            record[updated] = int(record[updated])  # seconds since 1970
        yield place, record


def read_parquet(folder: Path, builder: Builder) -> None:
    """items.parquet, queries.parquet and labels.parquet, with the columns of `jsonl`.

    Each may be one file or, as Spark writes them, a folder of files. Read in batches.
    """
    items = _need_parquet(folder, "items.parquet", _ITEMS_ADVICE)
    columns = builder.options.columns
    extra = (source for _, source in columns.sources(builder.options.fields))
    for place, record in _parquet_rows(items, {*columns.read(), *extra}, builder.has_fields):
        _add_item(builder, place, record)
    queries, labels = (_parquet(folder, f"{name}.parquet") for name in ("queries", "labels"))
    for place, record in _parquet_rows(queries, asdict(columns.queries).values()):
        _add_query(builder, place, record)
    numbers = builder.options.pair_signals
    names = (*asdict(columns.labels).values(), *numbers)
    for place, record in _parquet_rows(labels, names):
        if not queries:
            _need_parquet(folder, "queries.parquet", _QUERIES_ADVICE)
        _add_label(builder, place, record)
    pairs = _parquet(folder, "pairs.parquet") if numbers else []
    for place, record in _parquet_rows(pairs, names):
        _add_pair(builder, place, record)


def _need_parquet(folder: Path, name: str, advice: str) -> Sequence[Path]:
    if not (files := _parquet(folder, name)):
        raise DataError(f"{folder} has no {name}: {advice}.")
    return files


def _parquet(folder: Path, name: str) -> Sequence[Path]:
    path = folder / name
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path] if path.is_file() else []


def _parquet_rows(
    files: Sequence[Path],
    columns: Collection[str],
    tell: Callable[[Iterable[str], int], object] = lambda *_: None,
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The named columns, row by row; `tell` gets all columns and the rows of each file first."""
    # pyarrow.parquet is loaded only by those who read it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in files:
        number = 0
        try:
            with pq.ParquetFile(path) as file:
                tell(file.schema_arrow.names, file.metadata.num_rows)
                present = [name for name in columns if name in file.schema_arrow.names]
                for batch in file.iter_batches(batch_size=8192, columns=present):
                    for record in batch.to_pylist():
                        number += 1
                        yield Place(path, number, "row"), record
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise DataError(
                f"{path} is no parquet file or damaged ({reason}); write it again."
            ) from error
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: a text after row {number} is not UTF-8; write it again as UTF-8."
            ) from error


def read_beir(folder: Path, builder: Builder) -> None:
    """corpus.jsonl (_id, title, text), queries.jsonl (_id, text), qrels/{train,dev,test}.tsv.

    Each file plain or .gz. The qrels have a header line `query-id corpus-id score`.
    """
    corpus = need(folder, "corpus.jsonl", "write one item a line, with _id, title and text")
    for place, record in json_records(corpus):
        _add_item(builder, place, record, id_key="_id")
    found = {split: path for split in SPLITS if (path := find(folder / "qrels", f"{split}.tsv"))}
    queries = find(folder, "queries.jsonl")
    if found and queries is None:
        need(
            folder, "queries.jsonl", "qrels need queries: write one query a line, with _id and text"
        )
    for place, record in json_records(queries) if queries else ():
        builder.query(place, id_field(record, "_id", place), text_field(record, "text", place))
    for split, path in found.items():
        for place, (query, item, score) in table(path, ("query-id", "corpus-id", "score")):
            builder.assign(place, query, split)
            builder.judgement(place, query, item, parse_number(score, "score", place))


CHORUS = (
    "fetch https://querqy.org/datasets/icecat/icecat-products-w_price-19k-20201127.tar.gz and "
    "katas/Broad_Query_Set_rated.csv of https://github.com/querqy/chorus, unpack them, and put "
    "the .json and the .csv there"
)
MSRD = (
    "fetch movies-corpus.jsonl.gz and movies-judgments.tsv.gz from "
    "https://github.com/elastic/elasticsearch-labs (folder "
    "notebooks/search/sample_data/learning-to-rank) and put them there"
)
NFCORPUS = (
    "fetch nfcorpus.tar.gz from https://www.cl.uni-heidelberg.de/statnlpgroup/nfcorpus/ and put "
    "its {train,dev,test}.titles.queries, {train,dev,test}.2-1-0.qrel, dev.docs and test.docs there"
)
WANDS = (
    "fetch the folder dataset of https://github.com/wayfair/WANDS and put its query.csv, "
    "product.csv and label.csv there"
)

_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_TITLE_WORDS = 8
_GRADES = {"Exact": 2.0, "Partial": 1.0, "Irrelevant": 0.0}
_WANDS_TEST_SHARE = 50 / 480


def read_chorus(folder: Path, builder: Builder) -> None:
    """An electronics shop: 19,406 products of Icecat, 135 queries, rated 0 to 3 by people.

    Files: the products as JSON arrays in *.json or *.json.gz, and Broad_Query_Set_rated.csv, or
    another of Quepid's exports as the only *.csv there is. A rating of 2 or more is relevant. The
    test split is a fifth of the queries, drawn with seed 0. Only the top of a baseline search was
    rated: report judged-only metrics beside the full ones.
    """
    products = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    if not products:
        raise DataError(f"{folder} has no *.json (or *.json.gz): {CHORUS}.")
    for path in products:
        for place, record in json_array(path):
            id_, title = id_field(record, "id", place), text_field(record, "title", place)
            builder.item(place, id_, title, _product_text(record, place), record=record)
    tables = sorted(folder.glob("*.csv"))
    rated = tables[0] if len(tables) == 1 else need(folder, "Broad_Query_Set_rated.csv", CHORUS)
    for one in read_judgements(rated, "quepid"):
        if not builder.has_query(one.query):
            builder.query(one.place, one.query, one.query)
        if one.grade is not None:
            builder.judgement(one.place, one.query, one.item, one.grade)


def _product_text(record: Mapping[str, Any], place: Place) -> str:
    """The maker's name of the product and its short description, without mark-up.

    The attr_* fields stay out: with them BM25 falls from 0.42 to 0.39 test F1.
    """
    parts = (text_field(record, key, place) for key in ("name", "short_description"))
    plain = (html.unescape(_TAG.sub(" ", part)).strip() for part in parts)
    return "\n".join(part for part in plain if part)


def read_msrd(folder: Path, builder: Builder) -> None:
    """The Movie Search Ranking Dataset of Metarank: 9,750 films, 16,279 queries, judged by a crowd.

    Files: movies-corpus.jsonl (one JSON object a line) and movies-judgments.tsv (header query_id,
    query, doc_id, grade; grade 1 is relevant), each plain or .gz. The test split is a tenth of the
    queries, drawn with seed 0.
    """
    for place, record in json_records(need(folder, "movies-corpus.jsonl", MSRD)):
        id_, title = id_field(record, "id", place), text_field(record, "title", place)
        builder.item(place, id_, title, _film_text(record, place), record=record)
    columns = ("query_id", "query", "doc_id", "grade")
    for place, (query_id, query, item, grade) in table(
        need(folder, "movies-judgments.tsv", MSRD), columns
    ):
        if not builder.has_query(query_id):
            builder.query(place, query_id, query)
        builder.judgement(place, query_id, item, parse_number(grade, "grade", place))


def _film_text(record: Mapping[str, Any], place: Place) -> str:
    """What the film is about and who is in it, one kind of fact a line."""
    facts = [text_field(record, "overview", place)]
    facts += [_listed(record, key, place) for key in ("tags", "genres")]
    facts.append(text_field(record, "director", place))
    facts += [_listed(record, key, place) for key in ("actors", "characters")]
    return "\n".join(fact for fact in facts if fact)


def _listed(record: Mapping[str, Any], key: str, place: Place) -> str:
    values = record.get(key) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{place}: {key!r} is no list of strings; fetch the file again.")
    return ", ".join(values)


def read_nfcorpus(folder: Path, builder: Builder) -> None:
    """Medical articles, with relevance from hyperlinks (Boteva et al., ECIR 2016).

    Files: {train,dev,test}.titles.queries (id, text), {train,dev,test}.2-1-0.qrel (query, 0, item,
    level), {dev,test}.docs (id, text); tab separated, each plain or .gz. The universe is the union
    of the dev and test documents, 3,395 items; train judgements of the release's 238 other
    documents count as judgements of unknown items. Documents have no titles: the first eight words
    are the title, the rest is the text.
    """
    _read_articles(folder, builder)
    for split in SPLITS:
        for place, row in split_rows(need(folder, f"{split}.titles.queries", NFCORPUS)):
            check_columns(place, row, 2)
            builder.query(place, row[0], row[1], split=split)
    for split in SPLITS:
        for place, row in split_rows(need(folder, f"{split}.2-1-0.qrel", NFCORPUS)):
            check_columns(place, row, 4)
            query, _, item, level = row
            builder.judgement(place, query, item, parse_number(level, "level", place))


def _read_articles(folder: Path, builder: Builder) -> None:
    """Add the documents of dev.docs and, of test.docs, those that dev.docs does not have."""
    seen: set[str] = set()
    for name in ("dev.docs", "test.docs"):
        before = frozenset(seen)
        for place, row in split_rows(need(folder, name, NFCORPUS)):
            check_columns(place, row, 2)
            if row[0] not in before:
                words = row[1].split()
                title, text = words[:_TITLE_WORDS], words[_TITLE_WORDS:]
                builder.item(place, row[0], " ".join(title), " ".join(text))
                seen.add(row[0])


def read_wands(folder: Path, builder: Builder) -> None:
    """Products of Wayfair (Chen et al., ECIR 2022): 42,994 items, 480 queries, 233,448 judgements.

    Files, tab separated with a header: query.csv, product.csv, label.csv. Grades: Exact 2, Partial
    1, Irrelevant 0; 1 and more is relevant (paper, appendix A). An item is its title and
    description (paper, section 3.1). The test split is 50 of the 480 query ids, sorted as strings
    and drawn with seed 0; the paper has 430 / 50 too, but does not say which.
    """
    queries, products, labels = (
        need(folder, name, WANDS) for name in ("query.csv", "product.csv", "label.csv")
    )
    fields = builder.options.fields
    for place, row in table(
        products, ("product_id", "product_name", "product_description", *fields), QUOTED_TSV
    ):
        builder.item(place, row[0], row[1], row[2], record=dict(zip(fields, row[3:], strict=True)))
    rows = list(table(queries, ("query_id", "query"), QUOTED_TSV))
    test = seeded_part((id_ for _, (id_, _) in rows), _WANDS_TEST_SHARE, seed=0)
    for place, (id_, text) in rows:
        builder.query(place, id_, text, split="test" if id_ in test else "train")
    for place, (query, item, label) in table(
        labels, ("query_id", "product_id", "label"), QUOTED_TSV
    ):
        if label not in _GRADES:
            raise DataError(
                f"{place}: the label {label!r} is unknown; write one of {', '.join(_GRADES)}."
            )
        builder.judgement(place, query, item, _GRADES[label])


IRDS = "ir_datasets:"
_SPLIT_NAMES = {"train": "train", "dev": "dev", "valid": "dev", "validation": "dev", "test": "test"}
_TEXT_FIELDS = ("text", "body", "abstract")


def read_irds(name: str, builder: Builder) -> None:
    """Read the data set NAME.

    Raises:
        MissingExtraError: ir_datasets is not installed.
        SettingsError: it knows no data set of this name.
        DataError: the data set has no documents.
        ServiceError: the files can't be fetched.
    """
    parts = _parts(name)
    documents = next(part for part in parts.values())
    if not documents.has_docs():
        raise DataError(f"The data set {IRDS}{name} has no docs; choose one that has.")
    for place, doc in _records(documents.docs_iter, f"{IRDS}{name} docs"):
        record = doc._asdict() if builder.options.fields else None
        builder.item(place, doc.doc_id, *_title_and_text(doc), record=record)
    for part in parts.values():
        queries = part.queries_iter if part.has_queries() else tuple
        for place, query in _records(queries, f"{IRDS}{name} queries"):
            if not builder.has_query(query.query_id):
                builder.query(place, query.query_id, query.default_text())
    for split, part in parts.items():
        qrels = part.qrels_iter if part.has_qrels() else tuple
        for place, qrel in _records(qrels, f"{IRDS}{name} qrels"):
            if split:
                builder.assign(place, qrel.query_id, split)
            builder.judgement(place, qrel.query_id, qrel.doc_id, float(qrel.relevance))


def _parts(name: str) -> Mapping[str, Any]:
    """The data sets to read by split; the one key "" when there are no splits."""
    try:
        import ir_datasets
    except ImportError as error:
        raise MissingExtraError(f"The loader {IRDS}{name}", "datasets") from error
    known = _lookup(ir_datasets.load, name)
    parts = {
        split: part
        for end, split in _SPLIT_NAMES.items()
        if (part := _lookup(ir_datasets.load, f"{name}/{end}"))
    }
    labelled = {
        split: part for split, part in parts.items() if part.has_queries() and part.has_qrels()
    }
    if labelled:
        return labelled
    if known is None:
        raise SettingsError(
            f"The package ir_datasets knows no data set {name!r}; see https://ir-datasets.com "
            f"for their names and set dataset.loader to {IRDS}NAME."
        )
    return {_SPLIT_NAMES.get(name.rsplit("/", 1)[-1], ""): known}


def _lookup(load: Callable[[str], Any], name: str) -> Any:
    try:
        return load(name)
    except KeyError:
        return None


def _records(start: Callable[[], Iterable[Any]], source: str) -> Iterator[tuple[Place, Any]]:
    try:
        for number, record in enumerate(start(), start=1):
            yield Place(source, number, "record"), record
    # What ir_datasets raises when a download fails: errors of requests (OSErrors), or RuntimeError
    # after the last source.
    except (OSError, RuntimeError) as error:
        raise ServiceError(
            f"{source} can't be fetched ({error}); see that its host can be reached and try again."
        ) from error


def _title_and_text(doc: Any) -> tuple[str, str]:
    title = getattr(doc, "title", None) or ""
    named = next((name for name in _TEXT_FIELDS if hasattr(doc, name)), None)
    return title, (getattr(doc, named) or "") if named else doc.default_text()
