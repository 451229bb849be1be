"""The format `beir`: corpus.jsonl (_id, title, text), queries.jsonl (_id, text),
qrels/{train,dev,test}.tsv.

The qrels have a header line `query-id corpus-id score`. Each file plain or .gz. The corpus is all
that it takes; queries without qrels get keywords, but nothing can be trained or evaluated on them.
"""

from __future__ import annotations

from pathlib import Path

from cogr.datasets.building import Builder
from cogr.datasets.fields import id_field, parse_number, text_field
from cogr.datasets.jsonl import add_item
from cogr.datasets.loader import Loader
from cogr.datasets.reading import find, json_records, need, table
from cogr.records import SPLITS

_COLUMNS = ("query-id", "corpus-id", "score")


def read(folder: Path, builder: Builder) -> None:
    for place, record in json_records(
        need(folder, "corpus.jsonl", "write one item a line, with _id, title and text")
    ):
        add_item(builder, place, record, id_key="_id")
    found = {split: path for split in SPLITS if (path := find(folder / "qrels", f"{split}.tsv"))}
    queries = find(folder, "queries.jsonl")
    if found and queries is None:
        need(
            folder, "queries.jsonl", "qrels need queries: write one query a line, with _id and text"
        )
    for place, record in json_records(queries) if queries else ():
        builder.query(place, id_field(record, "_id", place), text_field(record, "text", place))
    for split, path in found.items():
        for place, (query, item, score) in table(path, _COLUMNS):
            builder.assign(place, query, split)
            builder.judgement(place, query, item, parse_number(score, "score", place))


LOADER = Loader("beir", read)
