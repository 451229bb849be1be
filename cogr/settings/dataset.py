"""Settings of the data set: the tables `[dataset]` and `[dataset.columns]`.

What they do is in `cogr.datasets`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from cogr.settings.table import Table, usable_path


class QueryColumnSettings(Table):
    """Names of a query's fields."""

    id: str = Field("id", min_length=1, description="Field or column of a query's id")
    text: str = Field("text", min_length=1, description="Of its text")
    weight: str = Field("weight", description="Of its weight, if there is one")
    split: str = Field("split", description="Of its split, if there is one")
    updated: str = Field(
        "updated", description="Of when it last changed, if there is one; empty to not read it"
    )


class LabelColumnSettings(Table):
    """Names of a judgement's fields."""

    query: str = Field("query", min_length=1, description="Field or column of the query's id")
    item: str = Field("item", min_length=1, description="Of the item's id")
    grade: str = Field("grade", description="Of the grade, if there is one")


class ColumnSettings(Table):
    """What the fields of the files are called, for the loaders jsonl, csv and parquet."""

    id: str = Field("id", min_length=1, description="Field or column of an item's id")
    title: str = Field("title", min_length=1, description="Of its title")
    text: tuple[str, ...] = Field(
        ("text",), min_length=1, description="Of its text; several are joined, a line each"
    )
    updated: str = Field(
        "updated", description="Of when it last changed, if there is one; empty to not read it"
    )
    fields: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Names in the data of fields in publish.fields, where they are called otherwise"
        ),
    )
    queries: QueryColumnSettings = Field(default_factory=QueryColumnSettings)
    labels: LabelColumnSettings = Field(default_factory=LabelColumnSettings)

    @field_validator("text", mode="before")
    @classmethod
    def _one(cls, text: Any) -> Any:
        """One name needs no list."""
        return (text,) if isinstance(text, str) and not text.lstrip().startswith("[") else text


class DatasetSettings(Table):
    """What is indexed. `loader` and `path` are all that a data set of your own needs."""

    loader: str = Field(
        description="jsonl, csv, parquet, beir, wands, nfcorpus, msrd, chorus or ir_datasets:NAME"
    )
    path: str | None = Field(
        None, description="Folder of the data; the named data sets default to $COGR_DATA_DIR/NAME"
    )
    threshold: float | None = Field(
        None, description="Lowest grade that counts as relevant; each loader has its own default"
    )
    dev_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the training queries set apart as dev, drawn with seed 0",
    )
    max_unknown_share: float = Field(
        0.05,
        ge=0,
        le=1,
        description=(
            "Refuse data in which a larger share of judgements names unknown items or queries"
        ),
    )
    strip_html: bool = Field(
        True, description="Take HTML out of titles and texts (jsonl, csv, parquet)"
    )
    split_by: Literal["shuffle", "query", "cluster", "time"] = Field(
        "shuffle",
        description=(
            "How queries are split where the data names no splits: a shuffle with seed 0; by a "
            "hash of the text (query) or of its stems (cluster), which new queries don't change; "
            "or the newest as test (time)"
        ),
    )
    columns: ColumnSettings = Field(default_factory=ColumnSettings)

    _is_path = field_validator("path")(usable_path)
