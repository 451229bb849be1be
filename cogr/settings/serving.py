"""Settings of the query expander (`cogr-ops serve`).

What they do is in `ops.expander`; why the defaults are as they are: docs/serving.md.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from cogr.settings.table import LONGEST, Table

Live = Literal["auto", "statistical", "extractive", "openai", "none"]


class ServingSettings(Table):
    """The query expander: queries in, keywords and an OpenSearch clause out, within a deadline."""

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all")
    port: int = Field(8600, ge=0, le=65535, description="Port to listen on; 0 takes any free one")
    deadline: float = Field(
        0.15,
        gt=0,
        le=LONGEST,
        description="Seconds after which a query is answered with whatever keywords there are",
    )
    model_timeout: float = Field(
        10.0,
        gt=0,
        le=LONGEST,
        description=(
            "Seconds that a model may take; what comes after the deadline is cached for the next "
            "time"
        ),
    )
    live: Live = Field(
        "auto",
        description=(
            "What answers unknown queries. auto: what wrote the serving query side, unless that "
            "is a language model in process"
        ),
    )
    model: str | None = Field(
        None,
        description=(
            "Name of the model at generator.openai.base_url; {round} stands for the round that "
            "serves. generator.model by default"
        ),
    )
    cache_seconds: int = Field(86_400, ge=1, description="Life of a cached answer in Redis")
    hot_queries: int = Field(
        10_000,
        ge=0,
        description=(
            "Answers that each process keeps itself, those asked for last; 0 asks Redis every time"
        ),
    )
    hash_key: SecretStr | None = Field(
        None,
        description=(
            "Redis keys hold a keyed hash (BLAKE2b) of a query instead of its text; never printed"
        ),
    )
    backlog: int = Field(
        10_000,
        ge=0,
        description="Unanswered queries kept in Redis for cogr-ops backlog, as text; 0 keeps none",
    )
    token: SecretStr | None = Field(
        None, description="Bearer token that POST /expand asks for; never printed"
    )
    rate_limit: str | None = Field(
        None,
        description=(
            "Most requests of one client address, such as 50/second or 1000/minute; over it 429"
        ),
    )

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
