"""Settings of what serves: the tables `[publish]` and `[opensearch]`.

What they do is in `indexers.release` and `indexers.backends`.
"""

from __future__ import annotations

import re

from pydantic import Field, SecretStr, field_validator, model_validator

from cogr.item_fields import FieldType
from cogr.settings.table import LONGEST, Table, check_url, usable_path

_OWN_FIELDS = ("item_id", "keywords", "text")
_FIELD_NAME = re.compile(r"""[^_.,*"'\\\x00-\x1f][^.,*"'\\\x00-\x1f]*""")


class PublishSettings(Table):
    """The gate: what a pair of snapshots must not lose against the pair that serves.

    `publish --no-gate` overrules it.
    """

    gate: bool = Field(True, description="Compare with what serves before anything is published")
    tolerance: float = Field(
        0.01,
        ge=0,
        le=1,
        description="F1 that may be lost, on dev queries where there are any, else on test queries",
    )
    growth: float = Field(
        0.05,
        ge=0,
        le=1,
        description=(
            "How much these shares may grow: empty keyword sets and sets cut to keywords.k_max, of "
            "each side, and items that no keyword of any query reaches"
        ),
    )
    min_vocabulary: float = Field(
        0.5,
        ge=0,
        description=(
            "Least number of distinct keywords of a side, as a share of the serving snapshot's"
        ),
    )
    fields: tuple[str, ...] = Field(
        (),
        description=(
            "Fields of the items that go along, by name, such as price, for filters, facets and "
            "sorting"
        ),
    )
    field_types: dict[str, FieldType] = Field(
        default_factory=dict,
        description=(
            "Types of some of these: boolean, long, double, date or keyword; of the others by "
            "their values"
        ),
    )

    @field_validator("fields")
    @classmethod
    def _names(cls, fields: tuple[str, ...]) -> tuple[str, ...]:
        for name in fields:
            if name in _OWN_FIELDS or name != name.strip() or not _FIELD_NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} can't be the name of a field: it is one of the index's own "
                    f"({', '.join(_OWN_FIELDS)}), empty, "
                    "begins with an underscore, or has a dot, comma, star or quote in it; rename "
                    "it in the data"
                )
        return fields

    @model_validator(mode="after")
    def _types_of_fields(self) -> PublishSettings:
        for name in self.field_types.keys() - set(self.fields):
            raise ValueError(
                f"field_types names {name!r}, which is not in publish.fields; add it there"
            )
        return self


class OpenSearchSettings(Table):
    """The cluster. Set `url` and every command uses it."""

    url: str | None = Field(None, description="https://host:9200; several, comma-separated")
    prefix: str = Field(
        "cogr",
        pattern=r"^[a-z0-9][a-z0-9_-]*$",
        description="Names of indexes and aliases begin with it",
    )
    shards: int = Field(1, ge=1, description="Primary shards of an index")
    replicas: int = Field(0, ge=0, description="Replicas, added after the merge")
    username: str | None = Field(None, description="Basic authentication")
    password: SecretStr | None = Field(None, description="Basic authentication; never printed")
    ca_file: str | None = Field(None, description="CA certificates of the cluster, PEM")
    verify_certs: bool = Field(True, description="Off only for experiments")
    aws_region: str | None = Field(
        None, description="Sign requests by AWS SigV4 for this region (extra s3)"
    )
    timeout: float = Field(60.0, gt=0, le=LONGEST, description="Seconds a request may take")
    search_template: bool = Field(
        True,
        description=(
            "cogr-index publish also stores the search template <prefix>-search, for clients in "
            "any language"
        ),
    )
    bulk_documents: int = Field(2000, ge=1, description="Documents a bulk request")
    bulk_threads: int = Field(2, ge=1, le=1000, description="Bulk requests under way at once")

    _is_path = field_validator("ca_file")(usable_path)

    @field_validator("url")
    @classmethod
    def _are_urls(cls, url: str | None) -> str | None:
        for one in filter(None, (part.strip() for part in (url or "").split(","))):
            if check_url(one, ("http", "https"), "https://host:9200").username is not None:
                raise ValueError(
                    "it has credentials in it; put them in opensearch.username and "
                    "opensearch.password"
                )
        return url
