"""Data sets of the package ir_datasets, which downloads them: the loader `ir_datasets:NAME`.

NAME has its own queries and judgements, or its parts NAME/train, NAME/dev and NAME/test have them.
A NAME that ends in a split's name is all in that split; any other one without parts is split by a
seeded shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cogr.datasets.builder import Builder
from cogr.datasets.reading import Place
from cogr.errors import DataError, MissingExtraError, ServiceError, SettingsError

PREFIX = "ir_datasets:"
_SPLIT_NAMES = {"train": "train", "dev": "dev", "valid": "dev", "validation": "dev", "test": "test"}
_TEXT_FIELDS = ("text", "body", "abstract")


def read(name: str, builder: Builder) -> None:
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
        raise DataError(f"The data set {PREFIX}{name} has no docs; choose one that has.")
    for place, doc in _records(documents.docs_iter, f"{PREFIX}{name} docs"):
        record = doc._asdict() if builder.options.fields else None
        builder.item(place, doc.doc_id, *_title_and_text(doc), record=record)
    for part in parts.values():
        queries = part.queries_iter if part.has_queries() else tuple
        for place, query in _records(queries, f"{PREFIX}{name} queries"):
            if not builder.has_query(query.query_id):
                builder.query(place, query.query_id, query.default_text())
    for split, part in parts.items():
        qrels = part.qrels_iter if part.has_qrels() else tuple
        for place, qrel in _records(qrels, f"{PREFIX}{name} qrels"):
            if split:
                builder.assign(place, qrel.query_id, split)
            builder.judgement(place, qrel.query_id, qrel.doc_id, float(qrel.relevance))


def _parts(name: str) -> Mapping[str, Any]:
    """The data sets to read by split; the one key "" when there are no splits."""
    try:
        import ir_datasets
    except ImportError as error:
        raise MissingExtraError(f"The loader {PREFIX}{name}", "datasets") from error
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
            f"for their names and set dataset.loader to {PREFIX}NAME."
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
