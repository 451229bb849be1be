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
    cache_timeout: float = Field(
        0.02, gt=0, le=LONGEST, description="Seconds that an answer of Redis may take"
    )
    index_timeout: float = Field(
        0.5,
        gt=0,
        le=LONGEST,
        description="Seconds that a look into the query index may take, beyond the deadline if need be",
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
    model_concurrency: int = Field(
        32, ge=1, description="Queries that a model is asked at once; more wait their turn"
    )
    follow_seconds: float = Field(
        1.0,
        gt=0,
        le=LONGEST,
        description="How often to look which pair of snapshots serves (cogr-index publish switches it)",
    )
    cache_seconds: int = Field(86_400, ge=1, description="Life of a cached answer in Redis")
    hot_queries: int = Field(
        10_000,
        ge=0,
        description=(
            "Answers that each process keeps itself, those asked for last; 0 asks Redis every time"
        ),
    )
    hot_seconds: float = Field(
        60.0, gt=0, le=LONGEST, description="Life of an answer that a process keeps itself"
    )
    hash_key: SecretStr | None = Field(
        None,
        description="Redis keys hold a keyed hash (BLAKE2b) of a query instead of its text; never printed",
    )
    backlog: int = Field(
        10_000,
        ge=0,
        description="Unanswered queries kept in Redis for cogr-ops backlog, as text; 0 keeps none",
    )
    read_timeout: float = Field(
        5.0,
        gt=0,
        le=60,
        description=(
            "Seconds that a request's head may take to arrive, and then its body; an idle "
            "connection is closed after as long"
        ),
    )
    max_requests: int = Field(
        256,
        ge=1,
        description="Requests looked up at once; more are answered at once with the bare query",
    )
    max_flights: int = Field(
        256, ge=1, description="Unknown queries looked up at once, beyond their deadlines too"
    )
    max_body_bytes: int = Field(
        65_536, ge=64, description="Largest request body; a larger one is refused with 413"
    )
    max_batch: int = Field(
        64, ge=1, description="Most queries of a request; more are refused with 422"
    )
    max_query_chars: int = Field(
        1024, ge=1, description="Longest query in characters; a longer one is refused with 422"
    )
    breaker_failures: int = Field(
        5, ge=1, description="Failures in a row after which an upstream is left alone"
    )
    breaker_seconds: float = Field(
        2.0, gt=0, le=LONGEST, description="How long it is left alone before it is tried again"
    )
    token: SecretStr | None = Field(
        None, description="Bearer token that POST /expand asks for; never printed"
    )
    rate_limit: str | None = Field(
        None,
        description="Most requests of one client address, such as 50/second or 1000/minute; over it 429",
    )
    log_queries: bool = Field(
        False, description="Log each query's text with its source (with -v); off, for privacy"
    )
