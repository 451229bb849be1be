"""All tables of settings together."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from cogr.settings.dataset import DatasetSettings
from cogr.settings.fleet import FleetSettings, RebuildSettings, RedisSettings
from cogr.settings.generator import GeneratorSettings
from cogr.settings.prompts import KeywordSettings, PromptSettings
from cogr.settings.publish import OpenSearchSettings, PublishSettings
from cogr.settings.serving import ServingSettings
from cogr.settings.table import sound, store_url, usable_path
from cogr.settings.telemetry import LogSettings, MetricsSettings, TracesSettings
from cogr.settings.training import TrainingSettings


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        env_prefix="COGR_",
        env_nested_delimiter="__",
    )

    dataset: DatasetSettings
    store: str = Field(
        ".cogr", description="Where snapshots, runs and caches lie: a folder or an fsspec URL"
    )
    backend: Literal["auto", "memory", "opensearch"] = Field(
        "auto", description="auto: opensearch when opensearch.url is set, else memory"
    )
    keywords: KeywordSettings = Field(default_factory=KeywordSettings)
    prompts: PromptSettings = Field(default_factory=PromptSettings)
    generator: GeneratorSettings = Field(default_factory=GeneratorSettings)
    rebuild: RebuildSettings = Field(default_factory=RebuildSettings)
    fleet: FleetSettings = Field(default_factory=FleetSettings)
    redis: RedisSettings = Field(default_factory=RedisSettings)
    publish: PublishSettings = Field(default_factory=PublishSettings)
    opensearch: OpenSearchSettings = Field(default_factory=OpenSearchSettings)
    serving: ServingSettings = Field(default_factory=ServingSettings)
    training: TrainingSettings = Field(default_factory=TrainingSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)
    traces: TracesSettings = Field(default_factory=TracesSettings)

    _sound = field_validator("store")(sound)
    _is_path = field_validator("store")(usable_path)
    _is_store = field_validator("store")(store_url)

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
