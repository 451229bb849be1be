"""All tables of settings together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from cogr.errors import learn, learn_address
from cogr.settings.dataset import DatasetSettings
from cogr.settings.fleet import RebuildSettings, RedisSettings
from cogr.settings.generator import GeneratorSettings, KeywordSettings, PromptSettings
from cogr.settings.serving import (
    LogSettings,
    MetricsSettings,
    OpenSearchSettings,
    PublishSettings,
    ServingSettings,
)
from cogr.settings.table import sound, store_url, usable_path
from cogr.settings.training import CompareSettings, TrainingSettings

PREFIX = "COGR_"


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        env_prefix=PREFIX,
        env_nested_delimiter="__",
    )

    dataset: DatasetSettings
    store: str = Field(
        ".cogr", description="Place of snapshots, runs and caches: a folder or an fsspec URL"
    )
    backend: Literal["auto", "memory", "opensearch"] = Field(
        "auto", description="auto: opensearch when opensearch.url is set, else memory"
    )
    keywords: KeywordSettings = Field(default_factory=KeywordSettings)
    prompts: PromptSettings = Field(default_factory=PromptSettings)
    generator: GeneratorSettings = Field(default_factory=GeneratorSettings)
    rebuild: RebuildSettings = Field(default_factory=RebuildSettings)
    redis: RedisSettings = Field(default_factory=RedisSettings)
    publish: PublishSettings = Field(default_factory=PublishSettings)
    opensearch: OpenSearchSettings = Field(default_factory=OpenSearchSettings)
    serving: ServingSettings = Field(default_factory=ServingSettings)
    training: TrainingSettings = Field(default_factory=TrainingSettings)
    compare: CompareSettings = Field(default_factory=CompareSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)

    _sound = field_validator("store")(sound)
    _is_path = field_validator("store")(usable_path)
    _is_store = field_validator("store")(store_url)

    @model_validator(mode="before")
    @classmethod
    def _secrets_are_masked(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            learn_secrets(values)
        return values

    @model_validator(mode="after")
    def _backend_has_url(self) -> Settings:
        if self.backend == "opensearch" and not self.opensearch.url:
            raise ValueError("backend is opensearch, but opensearch.url is not set")
        return self

    @property
    def backend_name(self) -> Literal["memory", "opensearch"]:
        if self.backend == "auto":
            return "opensearch" if self.opensearch.url else "memory"
        return self.backend


def known_fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that can be set, dotted, and its type."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from known_fields(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, inner


def known_keys() -> Iterator[str]:
    """Every key that can be set, dotted."""
    return (key for key, _ in known_fields(Settings))


def secret_keys() -> Iterator[str]:
    """Every key that holds a secret, dotted."""
    return (key for key, kind in known_fields(Settings) if SecretStr in get_args(kind))


def learn_secrets(values: Mapping[str, Any]) -> None:
    """Keep secret values out of every sentence: those of secret keys, users and passwords of
    URLs.
    """
    secret = set(secret_keys())
    for path, value in leaves(values):
        if isinstance(value, str):
            learn_address(value)
            if ".".join(path) in secret:
                learn(value)


def leaves(
    values: Mapping[str, Any], at: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that is not a table, and empty tables, with their paths."""
    for name, value in values.items():
        path = (*at, str(name))
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path, value
