"""The data set `msrd`, the Movie Search Ranking Dataset of Metarank: 9,750 films, 16,279 queries,
judged by a crowd.

Files: movies-corpus.jsonl (one JSON object a line) and movies-judgments.tsv (header query_id,
    query, doc_id, grade;
grade 1 is relevant), each plain or .gz. The test split is fixed: a tenth of the queries, drawn with
seed 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cogr.datasets.building import Builder
from cogr.datasets.fields import id_field, parse_number, text_field
from cogr.datasets.loader import Loader
from cogr.datasets.reading import Place, json_records, need, table
from cogr.errors import DataError

FETCH = (
    "fetch movies-corpus.jsonl.gz and movies-judgments.tsv.gz from "
    "https://github.com/elastic/elasticsearch-labs (folder "
    "notebooks/search/sample_data/learning-to-rank) and put them there"
)


def read(folder: Path, builder: Builder) -> None:
    for place, record in json_records(need(folder, "movies-corpus.jsonl", FETCH)):
        id_, title = id_field(record, "id", place), text_field(record, "title", place)
        builder.item(place, id_, title, _text(record, place), record=record)
    columns = ("query_id", "query", "doc_id", "grade")
    for place, (query_id, query, item, grade) in table(
        need(folder, "movies-judgments.tsv", FETCH), columns
    ):
        if not builder.has_query(query_id):
            builder.query(place, query_id, query)
        builder.judgement(place, query_id, item, parse_number(grade, "grade", place))


def _text(record: Mapping[str, Any], place: Place) -> str:
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


LOADER = Loader("msrd", read, test_share=0.1, fetch=FETCH)
