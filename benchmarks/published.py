"""Loaders of published benchmark data sets, by their names in the setting `dataset.loader`.

The constants in capitals tell what to fetch for each, and which files its folder needs. Their
evaluation splits are fixed, so that figures can be compared. docs/datasets.md names them.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cogr.datasets import Loader
from cogr.datasets.builder import Builder, seeded_part
from cogr.datasets.fields import id_field, number_field, text_field
from cogr.datasets.judgements import read_judgements
from cogr.datasets.reading import (
    Place,
    Sheet,
    json_object,
    json_records,
    json_whole,
    lines,
    need,
)
from cogr.errors import DataError, ServiceError, SettingsError, require
from cogr.records import SPLITS

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

IRDS = "ir_datasets:"
DATA_DIR_VARIABLE = "COGR_DATA_DIR"
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_TITLE_WORDS = 8
_GRADES = {"Exact": 2.0, "Partial": 1.0, "Irrelevant": 0.0}
_WANDS_TEST_SHARE = 50 / 480


def _tab_rows(path: Path, count: int) -> Iterator[tuple[Place, list[str]]]:
    """Lines cut at tabs; empty ones are skipped. Raises DataError for another number of columns."""
    for number, line in lines(path):
        row, place = line.split("\t"), Place(path, number)
        if line and len(row) != count:
            raise DataError(
                f"{place}: the row has {len(row)} columns, not {count}; fetch it again."
            )
        if line:
            yield place, row


def _cells(path: Path, names: Sequence[str]) -> Iterator[tuple[Place, dict[str, str]]]:
    for place, record in Sheet.of(path, *names).records():
        yield place, {name: record.get(name, "") for name in names}


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
        for number, value in enumerate(json_whole(path), start=1):
            place = Place(path, number, "record")
            record = json_object(value, place)
            id_, title = id_field(record, "id", place), text_field(record, "title", place)
            builder.item(place, id_, title, _product_text(record, place), record=record)
    tables = sorted(folder.glob("*.csv"))
    rated = tables[0] if len(tables) == 1 else need(folder, "Broad_Query_Set_rated.csv", CHORUS)
    for one in read_judgements(rated, "quepid"):
        if one.query not in builder.queries:
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
    rows = _tab_rows(need(folder, "movies-judgments.tsv", MSRD), 4)
    place, header = next(rows)
    if header != ["query_id", "query", "doc_id", "grade"]:
        raise DataError(f"{place}: the header is not that of the release: {MSRD}.")
    for place, (query_id, query, item, grade) in rows:
        if query_id not in builder.queries:
            builder.query(place, query_id, query)
        builder.judgement(place, query_id, item, number_field({"grade": grade}, "grade", place, 0))


def _film_text(record: Mapping[str, Any], place: Place) -> str:
    """The film's plot and cast, one kind of fact a line."""
    facts = [text_field(record, "overview", place)]
    facts += [_listed(record, key, place) for key in ("tags", "genres")]
    facts.append(text_field(record, "director", place))
    facts += [_listed(record, key, place) for key in ("actors", "characters")]
    return "\n".join(fact for fact in facts if fact)


def _listed(record: Mapping[str, Any], key: str, place: Place) -> str:
    values = record.get(key) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{place}: {key!r} is not a list of strings; fetch the file again.")
    return ", ".join(values)


def read_nfcorpus(folder: Path, builder: Builder) -> None:
    """Medical articles, with relevance from hyperlinks (Boteva et al., ECIR 2016).

    Files: {train,dev,test}.titles.queries (id, text), {train,dev,test}.2-1-0.qrel (query, 0, item,
    level), {dev,test}.docs (id, text); tab separated, each plain or .gz. The universe is the union
    of the dev and test documents, 3,395 items; train judgements of the release's 238 other
    documents count as judgements of unknown items. Documents have no titles: the first eight words
    are the title, the rest is the text.
    """
    seen: set[str] = set()
    for name in ("dev.docs", "test.docs"):
        before = frozenset(seen)
        for place, (id_, text) in _tab_rows(need(folder, name, NFCORPUS), 2):
            if id_ not in before:
                words = text.split()
                title, rest = words[:_TITLE_WORDS], words[_TITLE_WORDS:]
                builder.item(place, id_, " ".join(title), " ".join(rest))
                seen.add(id_)
    for split in SPLITS:
        for place, (id_, text) in _tab_rows(need(folder, f"{split}.titles.queries", NFCORPUS), 2):
            builder.query(place, id_, text, split=split)
    for split in SPLITS:
        judged = _tab_rows(need(folder, f"{split}.2-1-0.qrel", NFCORPUS), 4)
        for place, (query, _, item, level) in judged:
            builder.judgement(place, query, item, number_field({"level": level}, "level", place, 0))


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
    named = ("product_id", "product_name", "product_description")
    for place, row in _cells(products, named):
        id_, title, text = (row[name] for name in named)
        builder.item(place, id_, title, text, record=row)
    rows = list(_cells(queries, ("query_id", "query")))
    test = seeded_part((row["query_id"] for _, row in rows), _WANDS_TEST_SHARE)
    for place, row in rows:
        id_ = row["query_id"]
        builder.query(place, id_, row["query"], split="test" if id_ in test else "train")
    for place, row in _cells(labels, ("query_id", "product_id", "label")):
        grade = _GRADES.get(row["label"])
        if grade is None:
            raise DataError(
                f"{place}: the label {row['label']!r} is unknown; write one of "
                f"{', '.join(_GRADES)}."
            )
        builder.judgement(place, row["query_id"], row["product_id"], grade)


_SPLIT_NAMES = {"train": "train", "dev": "dev", "valid": "dev", "validation": "dev", "test": "test"}
_TEXT_FIELDS = ("text", "body", "abstract")


def irds_loader(loader: str) -> Loader:
    """The loader of `ir_datasets:NAME`. Raises SettingsError without a name."""
    name = loader.removeprefix(IRDS)
    if not name:
        raise SettingsError(
            f"The loader {loader} names no data set; write {IRDS}NAME, e.g. {IRDS}beir/scifact."
        )

    def read(path: Path | None, builder: Builder) -> None:
        if path is not None:
            raise SettingsError(f"The loader {loader} keeps its own files; remove dataset.path.")
        read_irds(name, builder)

    return Loader(read)


def read_irds(name: str, builder: Builder) -> None:
    """Any data set of the package ir_datasets, which downloads it.

    NAME has its own queries and judgements, or its parts NAME/train, NAME/dev and NAME/test have
    them. All queries of a NAME that ends in a split's name are in that split; any other NAME
    without parts is split by a seeded shuffle.

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
            if query.query_id not in builder.queries:
                builder.query(place, query.query_id, query.default_text())
    for split, part in parts.items():
        qrels = part.qrels_iter if part.has_qrels() else tuple
        for place, qrel in _records(qrels, f"{IRDS}{name} qrels"):
            if split:
                builder.assign(place, qrel.query_id, split)
            builder.judgement(place, qrel.query_id, qrel.doc_id, float(qrel.relevance))


def _parts(name: str) -> Mapping[str, Any]:
    """The data sets to read by split; the one key "" when there are no splits."""
    require(f"The loader {IRDS}{name}", "datasets", "ir_datasets")
    import ir_datasets

    def look_up(name: str) -> Any:
        try:
            return ir_datasets.load(name)
        except KeyError:
            return None

    known = look_up(name)
    parts = {
        split: part for end, split in _SPLIT_NAMES.items() if (part := look_up(f"{name}/{end}"))
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


def _records(start: Callable[[], Iterable[Any]], source: str) -> Iterator[tuple[Place, Any]]:
    try:
        for number, record in enumerate(start(), start=1):
            yield Place(source, number, "record"), record
    # What ir_datasets raises when a download fails: errors of requests (OSErrors), or RuntimeError
    # after the last source.
    except (OSError, RuntimeError) as error:
        raise ServiceError(
            f"{source} can't be fetched ({error}); check that its host can be reached, and try "
            "again."
        ) from error


def _title_and_text(doc: Any) -> tuple[str, str]:
    title = getattr(doc, "title", None) or ""
    named = next((name for name in _TEXT_FIELDS if hasattr(doc, name)), None)
    return title, (getattr(doc, named) or "") if named else doc.default_text()


def _loader(
    name: str,
    read: Callable[[Path, Builder], None],
    fetch: str,
    threshold: float = 1.0,
    test_share: float | None = None,
) -> Loader:
    """A loader whose folder is $COGR_DATA_DIR/<name> by default.

    Args:
        fetch: how to get the data.
        test_share: the fixed share of test queries where the data has no splits of its own, drawn
            with seed 0.
    """

    def whole(path: Path | None, builder: Builder) -> None:
        home = os.environ.get(DATA_DIR_VARIABLE)
        if path is None and not home:
            raise SettingsError(
                f"The data set {name} has no folder: set dataset.path, or set {DATA_DIR_VARIABLE} "
                f"to the folder that holds {name}/; to have the data, {fetch}."
            )
        folder = Path(f"{home}/{name}").expanduser() if path is None else path
        if not folder.is_dir():
            what = "is not a folder" if folder.exists() else "does not exist"
            raise DataError(f"The folder {folder} {what}: {fetch}.")
        builder.test_share = test_share
        read(folder, builder)

    return Loader(whole, threshold)


LOADERS = {
    "nfcorpus": _loader("nfcorpus", read_nfcorpus, NFCORPUS),
    "msrd": _loader("msrd", read_msrd, MSRD, test_share=0.1),
    "chorus": _loader("chorus", read_chorus, CHORUS, threshold=2.0, test_share=0.2),
    "wands": _loader("wands", read_wands, WANDS),
}
"""By name."""


def loader_of(setting: str) -> Loader:
    """The loader of a setting, as `cogr.datasets.load_dataset` asks for it by an entry point."""
    return LOADERS.get(setting) or irds_loader(setting)
