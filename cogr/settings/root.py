"""All tables of settings together, and the keys of former versions with what holds now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from cogr.settings.dataset import DatasetSettings
from cogr.settings.fleet import FleetSettings, RebuildSettings, RedisSettings
from cogr.settings.generator import GeneratorSettings, KeywordSettings, PromptSettings
from cogr.settings.serving import OpenSearchSettings, PublishSettings, ServingSettings
from cogr.settings.table import sound, store_url, usable_path
from cogr.settings.telemetry import LogSettings, MetricsSettings
from cogr.settings.training import CompareSettings, TrainingSettings


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
        ".cogr", description="Place of snapshots, runs and caches: a folder or an fsspec URL"
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
    compare: CompareSettings = Field(default_factory=CompareSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)

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


_ADAPTER = "generator.model may be an adapter's folder, which names its base itself"
GONE: Mapping[str, str] = {
    "compare.depth": "rankings have 1,000 items at most",
    "compare.hour_price": "an hour of the machine costs 0.1",
    "dataset.seed": "splits are drawn with seed 0",
    "dataset.test_share": (
        "a tenth of the queries is test where the data names no splits; name another split in "
        "the queries' field dataset.columns.queries.split"
    ),
    "fleet.attempts": "an entity alone in its shard may take down 3 workers",
    "fleet.first_items": "the first shards have 64 entities",
    "fleet.heartbeat_seconds": "a worker beats nine times in fleet.lost_seconds",
    "fleet.lease_seconds": "fleet.lost_seconds holds for coordinators too",
    "fleet.patience_seconds": "the coordinator waits ten minutes for a broker that is away",
    "fleet.poll_seconds": "the coordinator looks every second",
    "fleet.setbacks": "20 failed attempts in a row stop a rebuild",
    "fleet.shard_seconds": "a worker has three minutes to do with a shard",
    "fleet.stuck_seconds": "half an hour without an answer ends a worker",
    "fleet.visibility_seconds": (
        "a lost message is sent again after 6 hours; the coordinator finds lost shards before"
    ),
    "generator.adapter": _ADAPTER,
    "generator.item.adapter": _ADAPTER,
    "generator.query.adapter": _ADAPTER,
    "generator.openai.give_up_after": "20 failures in a row mean that the endpoint is away",
    "generator.openai.least_concurrency": (
        "the fewest requests at once are one, generator.openai.concurrency the most"
    ),
    "generator.openai.retries": "a request that may pass later is tried 6 times more",
    "generator.openai.server": "what an endpoint refuses to know is left out from then on",
    "generator.openai.target_seconds": (
        "fewer requests are sent where answers take half of generator.openai.timeout"
    ),
    "generator.statistical.edits": "query keywords are edited where that pays out of fold",
    "generator.statistical.evidence_share": (
        "a fifth of the training queries says whether evidence gains, where the data have no dev "
        "queries"
    ),
    "generator.scripted.accidents": "faults are for tests",
    "generator.scripted.away_after": "faults are for tests",
    "generator.scripted.fail_every": "faults are for tests; a script may name entities that fail",
    "generator.scripted.delay": "answers come at once; slow ones are for tests",
    "generator.scripted.rule": (
        "an entity gets its own first ten words; a script gives it any text"
    ),
    "generator.scripted.words": "an entity that the script does not name gets its first ten words",
    "metrics.linger_seconds": "metrics.pushgateway is where a job's last figures go",
    "opensearch.bulk_documents": (
        "a bulk request has at most 2,000 documents and 4 MiB, and fewer where that is refused"
    ),
    "opensearch.search_template": (
        "the template is stored wherever the cluster and the user's rights allow it"
    ),
    "prompts.search_from": (
        "the variants say it: search shows titles by bm25, proposals keywords by statistical, edit "
        "what may be edited"
    ),
    "prompts.search_scores": (
        "keywords that statistical proposes have their score behind them, titles by bm25 none"
    ),
    "publish.empty_growth": "publish.growth holds for every share that may grow",
    "publish.min_vocabulary": (
        "a side may lose half of its distinct keywords; publish --no-gate overrules it"
    ),
    "publish.over_budget_growth": "publish.growth holds for every share that may grow",
    "publish.split": "F1 is measured on dev queries, else on test queries",
    "publish.unreached_growth": "publish.growth holds for every share that may grow",
    "publish.warm_up_queries": "50 searches warm a snapshot up",
    "rebuild.flush_answers": "answers are written at least every 20 seconds, or 20,000 at once",
    "rebuild.flush_seconds": "answers are written at least every 20 seconds",
    "rebuild.verify_queries": "100 live queries are compared after a push",
    "serving.breaker_failures": "an upstream is left alone after 5 failures in a row",
    "serving.breaker_seconds": "an upstream is left alone for 2 seconds",
    "serving.cache_timeout": "Redis has two fifteenths of serving.deadline",
    "serving.follow_seconds": "the expander looks every second",
    "serving.hot_seconds": "an answer is kept for 60 seconds; serving.hot_queries = 0 keeps none",
    "serving.index_timeout": (
        "a look takes half a second at most, or serving.deadline where that is longer"
    ),
    "serving.log_queries": "queries are never logged",
    "serving.max_batch": "a request has at most 64 queries",
    "serving.max_body_bytes": "a request body has at most 64 KiB",
    "serving.max_flights": "256 unknown queries may be in flight",
    "serving.max_query_chars": "a query has at most 1,024 characters",
    "serving.max_requests": "256 requests are looked up at once",
    "serving.model_concurrency": "a model is asked 32 queries at once",
    "serving.model_timeout": "a model may take 10 seconds",
    "serving.read_timeout": "a head and a body have 5 seconds each to arrive",
    "traces.endpoint": "the environment variable OTEL_EXPORTER_OTLP_ENDPOINT names the collector",
    "training.accept": 'training.rules = "paper" takes every new item set',
    "training.frozen_items": 'training.variant = "frozen-items" says so',
    "training.gate.dev_share": (
        "a fifth of the training queries is set apart as dev where the data have none; "
        "dataset.dev_share sets any other share apart"
    ),
    "training.gate.tolerance": "publish.tolerance holds for rounds too",
    "training.gradient_checkpointing": "it is on for every model but tiny",
    "training.index_by": "the index builds are written by vLLM where training.rollouts.by is",
    "training.invented_weight": "an invented query counts 0.3 of a training query",
    "training.item.keyword_price": "a reward of your own may take one (training.item.reward)",
    "training.log_completions": 'training.report_to = ["completions"] writes them',
    "training.lora.alpha": "the scale of an adapter is 32, divided by its rank",
    "training.lora.learning_rate_times": (
        "adapters take ten times the learning rates of training.sft, query and item; set those"
    ),
    "training.plain_prompts": "a model without a chat template is trained on plain text prompts",
    "training.query.keyword_price": "a reward of your own may take one (training.query.reward)",
    "training.rollouts.unfinished_is_over_budget": (
        'a completion that was cut is over the budget, and with training.rules = "paper" it is not'
    ),
    "training.sft.first_items": 'training.start = "source" begins with the items of the targets',
    "training.sft.on": 'training.variant = "no-sft" leaves it out',
    "training.shared": 'training.variant = "shared" says so',
    "training.tensorboard": 'training.report_to = ["tensorboard"] writes these events',
    "training.tiny.context": "tiny reads 512 tokens",
    "training.tiny.heads": "tiny has 4 heads",
    "training.tiny.spread": "first weights have a standard deviation of 0.1",
    "training.tiny.vocabulary": "the tokenizer has the words that occur twice, 8,000 at most",
    "training.watch.patience": "a collapse of 30 steps stops the stage",
    "training.watch.share": "a collapse is 95 % of the completions",
    "training.watch.steps": "a collapse is named after 10 steps",
}
"""Key -> what to know about it."""


def what_now(key: str, value: Any = None) -> str | None:
    """One clause for a key that is gone, such as `the key a.b is gone: it is always 5`, or for the
    first key of a table that has one; None for any other.
    """
    if isinstance(value, Mapping):
        inner = (what_now(f"{key}.{name}", inside) for name, inside in value.items())
        return next((one for one in inner if one), None)
    return f"the key {key} is gone: {GONE[key]}" if key in GONE else None


def without_gone(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted keys, as a former version may have written them, without what is gone."""
    return {key: value for key, value in values.items() if key not in GONE}
