"""Settings of what serves: the tables `[publish]`, `[opensearch]` and `[serving]`, the query
expander's, with `[serving.into]`, an index that the user owns; and of what processes say, `[log]`
and `[metrics]`.

What they do is in `indexers.release`, `indexers.backends`, `ops.expander` and `indexers.telemetry`;
why the expander's defaults are as they are: docs/serving.md.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from cogr.settings.indexing import LiveName
from cogr.settings.table import MAX_SECONDS, SettingsTable, check_url, http_url, usable_path

_OWN_FIELDS = ("item_id", "keywords", "text", "whole_text", "literal", "part_numbers")
_FIELD_NAME = re.compile(r"""[^_.,*"'\\\x00-\x1f][^.,*"'\\\x00-\x1f]*""")


class PublishSettings(SettingsTable):
    """The gate: how much worse than the serving pair, and than text search, a new pair may be.
    `publish --no-gate` overrules it.
    """

    tolerance: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Largest accepted loss of F1, beside what serves and beside text search, on "
        "dev queries (else test queries); 1: no gate",
    )
    rules: str | None = Field(
        None,
        description="CSV file of a merchant's decisions, such as pins (docs/publishing.md)",
    )
    fields: tuple[str, ...] = Field(
        (), description="Items' fields to publish, such as price, for filters, facets and sorting"
    )
    search_text: bool = Field(
        True, description="Search the items' whole texts for what follows the set; false: titles"
    )

    _is_path = field_validator("rules")(usable_path)

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


class OpenSearchSettings(SettingsTable):
    """The cluster. Set `url` and every command uses it."""

    url: str | None = Field(None, description="https://host:9200; several, comma-separated")
    prefix: str = Field(
        "cogr",
        pattern=r"^[a-z0-9][a-z0-9_-]*$",
        description="Prefix of the names of indexes and aliases",
    )
    shards: int = Field(1, ge=1, description="Primary shards of an index")
    replicas: int = Field(0, ge=0, description="Replicas, added after the merge")
    username: str | None = Field(None, description="Basic authentication")
    password: SecretStr | None = Field(None, description="Basic authentication; never printed")
    ca_file: str | None = Field(None, description="CA certificates of the cluster, PEM")
    client_cert: str | None = Field(
        None, description="Certificate that we show to the cluster, PEM; its key may follow it"
    )
    client_key: str | None = Field(None, description="The certificate's key, PEM, without password")
    aws_region: str | None = Field(
        None, description="Sign requests by AWS SigV4 for this region (extra s3)"
    )
    text_analyzer: str = Field(
        "auto",
        pattern=r"^\S+$",
        description="Language of the items' texts for text search (german, english+french, ...), "
        "or an analyser of the cluster (standard); auto: the texts'",
    )

    _is_path = field_validator("ca_file", "client_cert", "client_key")(usable_path)

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


class IntoSettings(SettingsTable):
    """An index that you own, where the items' keywords serve as a field, instead of CoGR's own."""

    index: str = Field(
        "",
        pattern=r"^[^\s,*?/]*$",
        description="The index, or an alias of it; every command then means what serves there",
    )
    field: str = Field(
        "cogr_keywords",
        pattern=r"^[a-z][a-z0-9_]*$",
        description="Name of the keyword field, an alias; each snapshot has a field "
        "FIELD_rNNN_HASH",
    )
    id_field: str = Field(
        "_id", min_length=1, description="The documents' field that holds the item's id: sku"
    )
    text_fields: tuple[str, ...] = Field(
        (), description="Fields in which a query's text is searched beside its keywords: title^2"
    )


class ServingSettings(SettingsTable):
    """The query expander: queries in, keywords and an OpenSearch clause out, within a deadline."""

    deadline: float = Field(
        0.15,
        gt=0,
        le=MAX_SECONDS,
        description="Seconds after which a query is answered with what was found so far",
    )
    live: LiveName = Field(
        "auto",
        description=(
            "Generator for unknown queries. auto: the one that wrote the serving query snapshot, "
            "unless that is a language model in this process"
        ),
    )
    into: IntoSettings = Field(default_factory=IntoSettings)
    token: SecretStr | None = Field(
        None, description="Bearer token that POST /expand requires; never printed"
    )
    blend: Literal["auto"] | float = Field(
        "auto",
        description=(
            "Weight of the text's score beside the keywords'. auto: 0.2 beside weighted keywords, "
            "1 beside others"
        ),
    )

    @field_validator("blend")
    @classmethod
    def _above_nothing(cls, blend: float | Literal["auto"]) -> float | Literal["auto"]:
        if blend != "auto" and not 0 < blend <= 100:
            raise ValueError(f"a weight is above 0 and at most 100, not {blend:g}; or auto")
        return blend

    @property
    def cache_timeout(self) -> float:
        """Seconds that an answer of Redis may take.

        20 ms of the default's 150: Redis answers in less than one, and the index still has time.
        """
        return self.deadline * 2 / 15

    @property
    def index_timeout(self) -> float:
        """Seconds that a look into the query index may take.

        Beyond a short deadline, so that a slow answer is cached for who asks next.
        """
        return max(0.5, self.deadline)


class LogSettings(SettingsTable):
    """Logs on standard error: warnings, and with -v the steps too. Texts of items and queries are
    never logged.
    """

    format: Literal["text", "json"] = Field(
        "text", description="text: for people; json: one JSON object a line"
    )


class MetricsSettings(SettingsTable):
    """Prometheus metrics of this process. See docs/observability.md for every one of them."""

    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port for scrapes, on all addresses; 0 takes a free one and prints it",
    )
    pushgateway: str | None = Field(
        None,
        description="Pushgateway for the last figures of a command: http://pushgateway:9091",
    )

    _is_url = field_validator("pushgateway")(http_url)
