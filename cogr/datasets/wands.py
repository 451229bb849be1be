"""The data set `wands` of Wayfair (Chen et al., ECIR 2022): 42,994 products, 480 queries, 233,448
judgements.

Files, tab separated with a header: query.csv, product.csv, label.csv. Grades: Exact 2, Partial 1,
Irrelevant 0; 1 and more is relevant (paper, appendix A). An item is its title and description
(paper, section 3.1). The test split is fixed: 50 of the 480 query ids, sorted as strings and drawn
with seed 0; the paper has 430 / 50 too, but does not say which.
"""

from __future__ import annotations

from pathlib import Path

from cogr.datasets.building import Builder, seeded_part
from cogr.datasets.loader import Loader
from cogr.datasets.reading import QUOTED_TSV, need, table
from cogr.errors import DataError

FETCH = (
    "fetch the folder dataset of https://github.com/wayfair/WANDS and put its query.csv, "
    "product.csv and label.csv there"
)
GRADES = {"Exact": 2.0, "Partial": 1.0, "Irrelevant": 0.0}
TEST_SHARE = 50 / 480


def read(folder: Path, builder: Builder) -> None:
    queries, products, labels = (
        need(folder, name, FETCH) for name in ("query.csv", "product.csv", "label.csv")
    )
    fields = builder.options.fields
    for place, row in table(
        products, ("product_id", "product_name", "product_description", *fields), QUOTED_TSV
    ):
        builder.item(place, row[0], row[1], row[2], record=dict(zip(fields, row[3:], strict=True)))
    rows = list(table(queries, ("query_id", "query"), QUOTED_TSV))
    test = seeded_part((id_ for _, (id_, _) in rows), TEST_SHARE, seed=0)
    for place, (id_, text) in rows:
        builder.query(place, id_, text, split="test" if id_ in test else "train")
    for place, (query, item, label) in table(
        labels, ("query_id", "product_id", "label"), QUOTED_TSV
    ):
        if label not in GRADES:
            raise DataError(
                f"{place}: the label {label!r} is unknown; write one of {', '.join(GRADES)}."
            )
        builder.judgement(place, query, item, GRADES[label])


LOADER = Loader("wands", read, fetch=FETCH)
