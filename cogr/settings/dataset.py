"""Settings of the data set: the tables `[dataset]` and `[dataset.columns]`.

What they do is in `cogr.datasets`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from cogr.settings.table import Table, usable_path


class ColumnSettings(Table):
    """Names of the items' fields or columns, for the loaders jsonl, csv and parquet."""

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

    @field_validator("text", mode="before")
    @classmethod
    def _one(cls, text: Any) -> Any:
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
