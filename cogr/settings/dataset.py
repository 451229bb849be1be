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
    text: str = Field("text", min_length=1, description="Field of its text")
    weight: str = Field("weight", description="Field of its weight, if there is one")
    split: str = Field("split", description="Field of its split, if there is one")
    updated: str = Field(
        "updated",
        description="Field of its time of last change, if there is one; empty to ignore it",
    )


class LabelColumnSettings(Table):
    """Names of a judgement's fields."""

    query: str = Field("query", min_length=1, description="Field or column of the query's id")
    item: str = Field("item", min_length=1, description="Field of the item's id")
    grade: str = Field("grade", description="Field of the grade, if there is one")


class ColumnSettings(Table):
    """Names of the fields or columns in the files, for the loaders jsonl, csv and parquet."""

    id: str = Field("id", min_length=1, description="Field or column of an item's id")
    title: str = Field("title", min_length=1, description="Field of its title")
    text: tuple[str, ...] = Field(
        ("text",), min_length=1, description="Fields of its text; several are joined, one a line"
    )
    updated: str = Field(
        "updated",
        description="Field of its time of last change, if there is one; empty to ignore it",
    )
    fields: dict[str, str] = Field(
        default_factory=dict,
        description=("Names in the data of those publish.fields that have other names there"),
    )
    queries: QueryColumnSettings = Field(default_factory=QueryColumnSettings)
    labels: LabelColumnSettings = Field(default_factory=LabelColumnSettings)

    @field_validator("text", mode="before")
    @classmethod
    def _one(cls, text: Any) -> Any:
        """One name needs no list."""
        return (text,) if isinstance(text, str) and not text.lstrip().startswith("[") else text


class DatasetSettings(Table):
    """The data to index. A data set of your own needs only `loader` and `path`."""

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
        True, description="Remove HTML from titles and texts (jsonl, csv, parquet)"
    )
    split_by: Literal["shuffle", "query", "cluster", "time"] = Field(
        "shuffle",
        description=(
            "How queries are split if the data name no splits: shuffle (with seed 0); query or "
            "cluster (by a hash of the text or of its stems, so that new queries change "
            "nothing); time (the newest are test)"
        ),
    )
    columns: ColumnSettings = Field(default_factory=ColumnSettings)

    _is_path = field_validator("path")(usable_path)
