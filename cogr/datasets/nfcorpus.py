"""The data set `nfcorpus` as it is published (Boteva et al., ECIR 2016): medical articles,
relevance from hyperlinks.

Files: {train,dev,test}.titles.queries (id, text), {train,dev,test}.2-1-0.qrel (query, 0, item,
    level), {dev,test}.docs
(id, text); tab separated, each plain or .gz. The universe is the union of the dev and test
documents, 3,395 items; train judgements of the release's 238 other documents count as judgements of
unknown items. Documents have no titles: the first eight words are the title, the rest is the text.
"""

from __future__ import annotations

from pathlib import Path

from cogr.datasets.building import Builder
from cogr.datasets.fields import parse_number
from cogr.datasets.loader import Loader
from cogr.datasets.reading import check_columns, need, split_rows
from cogr.records import SPLITS

TITLE_WORDS = 8
FETCH = (
    "fetch nfcorpus.tar.gz from https://www.cl.uni-heidelberg.de/statnlpgroup/nfcorpus/ and put "
    "its "
    "{train,dev,test}.titles.queries, {train,dev,test}.2-1-0.qrel, dev.docs and test.docs there"
)


def read(folder: Path, builder: Builder) -> None:
    _read_items(folder, builder)
    for split in SPLITS:
        for place, row in split_rows(need(folder, f"{split}.titles.queries", FETCH)):
            check_columns(place, row, 2)
            builder.query(place, row[0], row[1], split=split)
    for split in SPLITS:
        for place, row in split_rows(need(folder, f"{split}.2-1-0.qrel", FETCH)):
            check_columns(place, row, 4)
            query, _, item, level = row
            builder.judgement(place, query, item, parse_number(level, "level", place))


def _read_items(folder: Path, builder: Builder) -> None:
    """Add the documents of dev.docs and, of test.docs, those that dev.docs does not have."""
    seen: set[str] = set()
    for name in ("dev.docs", "test.docs"):
        before = frozenset(seen)
        for place, row in split_rows(need(folder, name, FETCH)):
            check_columns(place, row, 2)
            if row[0] not in before:
                builder.item(place, row[0], *first_words(row[1]))
                seen.add(row[0])


def first_words(text: str) -> tuple[str, str]:
    """A title of the first eight words, and the rest."""
    words = text.split()
    return " ".join(words[:TITLE_WORDS]), " ".join(words[TITLE_WORDS:])


LOADER = Loader("nfcorpus", read, fetch=FETCH)
