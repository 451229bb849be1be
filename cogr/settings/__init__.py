"""Settings: one TOML file, then COGR_ environment variables, then flags. Unknown keys are errors
that name the nearest key.

Nested keys are spelled `[opensearch] url = ...` in the file, `COGR_OPENSEARCH__URL` in the
environment and `--set opensearch.url=...` on the command line. Paths in the file are relative to
the file.
"""

from __future__ import annotations

import copy
import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from cogr.errors import SettingsError
from cogr.item_fields import FieldType
from cogr.prompts import ITEM_TEMPLATES, QUERY_TEMPLATES, ItemVariant, QueryVariant, Template
from cogr.records import Side
from cogr.settings.columns import ColumnSettings
from cogr.settings.fleet import FleetSettings, RedisSettings
from cogr.settings.serving import ServingSettings
from cogr.settings.sources import FLAG, Layers, flag, known_fields, learn_secrets
from cogr.settings.table import LONGEST, Table, sound, usable_path
from cogr.settings.telemetry import LogSettings, MetricsSettings, TracesSettings
from cogr.settings.training import TrainingSettings
from cogr.settings.urls import check_url, http_url, store_url

DEFAULT_FILE = "cogr.toml"
URL_VARIABLE = "COGR_OPENSEARCH_URL"
"""Names a running cluster, where nothing else does."""
# Variables that start with COGR_ but are no settings: where data and caches lie on this machine,
# servers for tests.
OTHER_VARIABLES = frozenset(
    {"COGR_CONFIG", "COGR_DATA_DIR", "COGR_CACHE_DIR", URL_VARIABLE, "COGR_OPENSEARCH_HOME"}
)


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
        0.0, ge=0, lt=1, description="Share of the training queries set apart as dev, seeded"
    )
    test_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description=(
            "Share of the queries that become test where the data names no splits (0.1 unless set)"
        ),
    )
    seed: int = Field(0, description="Seed of these splits")
    max_unknown_share: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Refuse data in which a larger share of judgements names unknown items or queries",
    )
    strip_html: bool = Field(
        True, description="Take HTML out of titles and texts (jsonl, csv, parquet)"
    )
    columns: ColumnSettings = Field(default_factory=ColumnSettings)

    _is_path = field_validator("path")(usable_path)


class KeywordSettings(Table):
    """The budget of a keyword set."""

    k_max: int = Field(
        30, ge=1, description="K_max: most keywords an entity may have (paper, section 3.3)"
    )


SearchFrom = Literal["bm25", "statistical"]


class PromptSettings(Table):
    """The paper's templates, their variants, or texts of your own."""

    item_variant: ItemVariant = Field(
        "full",
        description=(
            "full: title and description; title: the title alone; search: title, description and "
            "search results"
        ),
    )
    query_variant: QueryVariant = Field(
        "plain", description="plain: the query alone; search: with search results"
    )
    description_tokens: int = Field(
        512,
        ge=1,
        description=(
            "Token budget of a description, and of search results; longer ones are cut and counted"
        ),
    )
    search_results: int = Field(
        10, ge=1, description="Most results that the variant search puts into a prompt"
    )
    search_from: SearchFrom = Field(
        "bm25",
        description="bm25: titles of the best items; statistical: keywords that the generator of that name proposes "
        "(out of fold for training queries)",
    )
    search_scores: bool = Field(
        False, description="Write after each result how sure its source is, (0) to (9)"
    )
    item_system: str | None = Field(None, description="System message of your own for items")
    item_user: str | None = Field(
        None,
        description=(
            "User message of your own for items, with {item} and maybe {description}, "
            "{search_results}"
        ),
    )
    query_system: str | None = Field(None, description="System message of your own for queries")
    query_user: str | None = Field(
        None,
        description="User message of your own for queries, with {query} and maybe {search_results}",
    )

    def template(self, side: Side) -> Template:
        """The template of one side, with the texts of your own put in."""
        base = (
            ITEM_TEMPLATES[self.item_variant]
            if side == "item"
            else QUERY_TEMPLATES[self.query_variant]
        )
        system = self.item_system if side == "item" else self.query_system
        user = self.item_user if side == "item" else self.query_user
        return Template(
            side, base.system if system is None else system, base.user if user is None else user
        )


GeneratorName = Literal[
    "auto", "statistical", "extractive", "vllm", "transformers", "openai", "scripted"
]


class Sampling(Table):
    """How an LLM draws the next token.

    The defaults are the paper's for initialisation, evaluation and indexing (table "sampling").
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(0.7, ge=0, le=2, description="0 takes the most probable token")
    top_p: float = Field(0.8, gt=0, le=1, description="Nucleus mass; 1 is off")
    top_k: int = Field(
        20, ge=0, description="Most probable tokens to draw from; 0 is off, and so is -1"
    )
    max_tokens: int = Field(
        512, ge=1, description="Longest completion (paper, max_response_length)"
    )
    seed: int = Field(
        0,
        ge=0,
        description=(
            "Seeds the engine. The draw also depends on what else is in a batch; snapshots "
            "freeze it"
        ),
    )

    @field_validator("top_k", mode="before")
    @classmethod
    def _off(cls, top_k: object) -> object:
        """The paper and vLLM spell it -1 (table "sampling")."""
        return 0 if top_k == -1 else top_k


class EndpointSettings(Table):
    """An OpenAI-compatible endpoint, for `generator.name = "openai"`."""

    base_url: str | None = Field(None, description="For example http://localhost:8000/v1")
    api_key: SecretStr | None = Field(None, description="Sent as the bearer token; never printed")
    server: Literal["vllm", "openai"] = Field(
        "vllm",
        description="vllm: top_k and thinking off are sent too; openai: standard fields alone",
    )
    concurrency: int = Field(
        32,
        ge=1,
        description="Most requests under way at once; how many, the endpoint's answers decide",
    )
    least_concurrency: int = Field(
        1, ge=1, description="Fewest; the same as concurrency turns adapting off"
    )
    target_seconds: float | None = Field(
        None,
        gt=0,
        le=LONGEST,
        description=(
            "Ask for less at once where answers take longer on average; half of timeout unless set"
        ),
    )
    timeout: float = Field(120.0, gt=0, le=LONGEST, description="Seconds a request may take")
    retries: int = Field(
        6, ge=0, description="Tries more after 429, 5xx, time-outs and lost connections"
    )
    give_up_after: int = Field(
        20, ge=1, description="Entities in a row that may fail before the endpoint counts as away"
    )

    _is_url = field_validator("base_url")(http_url)


class ScriptedSettings(Table):
    """Answers without a model, for tests and rehearsals: `generator.name = "scripted"`."""

    script: str | None = Field(
        None,
        description='jsonl file of answers: {"id": ..., "text": ...} or {"id": ..., "failure": ...}',
    )
    rule: Literal["words", "rubbish", "empty"] = Field(
        "words", description="What entities that the script does not name get"
    )
    words: int = Field(10, ge=0, description="Most words that the rule gives")
    delay: float = Field(0.0, ge=0, le=LONGEST, description="Seconds to wait before each answer")
    fail_every: int = Field(0, ge=0, description="One of so many entities fails; 0 is never")
    away_after: int | None = Field(
        None, ge=0, description="After so many answers the service is away"
    )
    accidents: dict[str, Literal["kill", "error", "hang"]] = Field(
        default_factory=dict,
        description="Entities that kill the process that generates, raise an error in it, or never end",
    )

    _is_path = field_validator("script")(usable_path)


class StatisticalSettings(Table):
    """The ranker that is told as keywords: `generator.name = "statistical"`, and wherever else it
    is asked.
    """

    language: str = Field("english", description="Of stems and stop words, by its Snowball name")
    anchors: bool = Field(
        True,
        description="Items also get the texts of training queries that they are relevant to. Off for training against them: "
        "a training query's own text would find its labels",
    )


class SideGenerator(Table):
    """What one side does differently: after training, the two sides have models of their own."""

    name: GeneratorName | None = Field(None, description="Generator of this side")
    model: str | None = Field(None, description="Model of this side")
    adapter: str | None = Field(None, description="LoRA adapter of this side")


class GeneratorSettings(Table):
    """What writes the keywords."""

    name: GeneratorName = Field(
        "auto",
        description=(
            "auto: statistical where training queries have labels (refused without its extra), "
            "else extractive"
        ),
    )
    model: str | None = Field(
        None, description="Model folder, Hugging Face name, or smollm2; the model's name for openai"
    )
    adapter: str | None = Field(None, description="Folder of a LoRA adapter (vllm, transformers)")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Number format of vllm and transformers"
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Longest prompt plus completion; the model's own by default"
    )
    constrained: bool = Field(
        False,
        description=(
            "Queries are written in the item snapshot's keywords and titles alone (vllm, "
            "transformers); rollouts are free"
        ),
    )
    batch_size: int = Field(32, ge=1, description="Prompts a batch of transformers")
    gpu_memory_utilization: float = Field(
        0.9, gt=0, le=1, description="Share of GPU memory that vllm takes"
    )
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs that share one vllm engine")
    sampling: Sampling = Field(default_factory=Sampling)
    openai: EndpointSettings = Field(default_factory=EndpointSettings)
    scripted: ScriptedSettings = Field(default_factory=ScriptedSettings)
    statistical: StatisticalSettings = Field(default_factory=StatisticalSettings)
    item: SideGenerator = Field(default_factory=SideGenerator)
    query: SideGenerator = Field(default_factory=SideGenerator)

    def of(self, side: Side) -> GeneratorSettings:
        """These settings with one side's own values put in."""
        own = (self.item if side == "item" else self.query).model_dump(exclude_none=True)
        return self.model_copy(update=own)


class RebuildSettings(Table):
    """How a rebuild works through its entities."""

    workers: Literal["local", "celery"] = Field(
        "local",
        description="local: in this process; celery: on workers (cogr-ops worker) by way of redis.url",
    )
    flush_answers: int = Field(
        512, ge=1, description="Answers kept in memory before they are written to the cache"
    )
    flush_seconds: float = Field(
        20.0, gt=0, le=LONGEST, description="Longest time between two writes; what a kill can cost"
    )
    max_failure_share: float = Field(
        0.02, ge=0, le=1, description="Above this share of set-aside entities nothing is published"
    )
    verify_queries: int = Field(
        100, ge=0, description="Live queries compared with the mirror before publishing"
    )


_OWN_FIELDS = ("item_id", "keywords", "text")
_FIELD_NAME = re.compile(r"""[^_.,*"'\\\x00-\x1f][^.,*"'\\\x00-\x1f]*""")


class PublishSettings(Table):
    """The gate: what a pair of snapshots must not lose against the pair that serves.

    `publish --no-gate` overrules it.
    """

    gate: bool = Field(True, description="Compare with what serves before anything is published")
    split: Literal["auto", "train", "dev", "test"] = Field(
        "auto",
        description="Queries that F1 is measured on; auto: dev where there is one, else test",
    )
    tolerance: float = Field(0.01, ge=0, le=1, description="F1 that may be lost")
    empty_growth: float = Field(
        0.05, ge=0, le=1, description="How much the share of empty keyword sets of a side may grow"
    )
    over_budget_growth: float = Field(
        0.05,
        ge=0,
        le=1,
        description="How much the share of sets that had to be cut to keywords.k_max may grow, each side",
    )
    unreached_growth: float = Field(
        0.05,
        ge=0,
        le=1,
        description="How much the share of items that no keyword of any query reaches may grow",
    )
    min_vocabulary: float = Field(
        0.5,
        ge=0,
        description="Least number of distinct keywords of a side, as a share of the serving snapshot's",
    )
    warm_up_queries: int = Field(
        50, ge=0, description="Searches on a snapshot just before it serves"
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


def load_settings(
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    otherwise: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings of a TOML file, the environment and `key=value` overrides, in this order of growing
    weight.

    Args:
        file: the TOML file; ./cogr.toml when None.
        overrides: `--set` values such as "opensearch.url=http://localhost:9200"; read as TOML where
            they parse, else as text.
        otherwise: stands for the file where none is named and there is no ./cogr.toml.

    Raises:
        SettingsError: a missing or broken file, an unknown key, a value of the wrong kind.
    """
    named = file or os.environ.get("COGR_CONFIG")
    path = Path(named or DEFAULT_FILE)
    absent = otherwise is not None and named is None and not path.exists()
    layers = Layers(copy.deepcopy(dict(otherwise or {})) if absent else _read_toml(path), str(path))
    _check_variables()
    _relative_to(path.resolve().parent, layers.values)
    layers.add_variables(Settings)
    for override in overrides:
        layers.add(flag(override), FLAG)
    _add_cluster(layers)
    settings: Settings = _validated(Settings, layers)
    return settings


def table_of_environment(name: Literal["opensearch", "redis"]) -> Any:
    """One table as the environment alone says it; None where it names no URL.

    Raises SettingsError.
    """
    layers = Layers({}, "the environment")
    layers.add_variables(Settings)
    _add_cluster(layers)
    if not layers.values.get(name, {}).get("url"):
        return None
    return _validated(Settings.model_fields[name].annotation, layers, name)


def _add_cluster(layers: Layers) -> None:
    if url := os.environ.get(URL_VARIABLE):
        layers.add_default(("opensearch", "url"), url, f"the environment variable {URL_VARIABLE}")


def _validated(model: Any, layers: Layers, table: str = "") -> Any:
    learn_secrets(layers.values, set(secret_keys()))
    try:
        return model.model_validate(layers.values[table] if table else layers.values)
    except ValidationError as error:
        sentence = layers.explain(
            error, list(known_keys()), set(secret_keys()), (table,) if table else ()
        )
        # Not from the library's error, which quotes what was given.
        raise SettingsError(sentence) from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        # Editors on Windows begin a file with a byte order mark.
        return tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError as error:
        raise SettingsError(
            f'There is no configuration {path}: write one with [dataset] loader = "beir" and '
            'path = "DIR", or name one with -c.'
        ) from error
    except IsADirectoryError as error:
        raise SettingsError(
            f"The configuration {path} is a folder; name a TOML file with -c."
        ) from error
    except OSError as error:
        raise SettingsError(
            f"The configuration {path} can't be read ({error.strerror}); name a TOML file with -c."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The configuration {path} is no valid TOML: {error}.") from error
    except RecursionError as error:
        raise SettingsError(
            f"The configuration {path} is no valid TOML: it is nested too deeply."
        ) from error


def _relative_to(folder: Path, values: dict[str, Any]) -> None:
    """Make the paths of the file absolute, so that it means the same from every working
    directory.
    """
    keys = (
        "store",
        "dataset.path",
        "generator.model",
        "generator.adapter",
        "generator.scripted.script",
        "opensearch.ca_file",
        "redis.ca_file",
        "redis.cert_file",
        "redis.key_file",
        "metrics.file",
        "training.model",
    )
    values.setdefault("store", ".cogr")
    for key in keys:
        table: Any = values
        *parents, last = key.split(".")
        for parent in parents:
            table = table.get(parent, {}) if isinstance(table, dict) else {}
        text = table.get(last) if isinstance(table, dict) else None
        if not isinstance(text, str) or "://" in text or not text:
            continue
        # A model may also be a name on a hub: only a folder that is there is a path.
        if (candidate := _path(folder, text)) and (
            not key.startswith(("generator.", "training.")) or _there(candidate)
        ):
            table[last] = str(candidate)


def _path(folder: Path, text: str) -> Path | None:
    """None for the home of nobody."""
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        return None


def _there(path: Path) -> bool:
    """A name that no disk can have is not there."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def known_keys(model: type[BaseModel] = Settings) -> Iterator[str]:
    """Every key that can be set, dotted."""
    return (key for key, _ in known_fields(model))


def secret_keys() -> Iterator[str]:
    """Every key that holds a secret, dotted."""
    return (key for key, kind in known_fields(Settings) if SecretStr in get_args(kind))


def _check_variables() -> None:
    known = {f"COGR_{key.replace('.', '__')}".upper() for key in known_keys()}
    tables = {f"COGR_{name}".upper() for name in Settings.model_fields}
    for name in os.environ:
        if name.startswith("COGR_") and name.upper() not in known | tables | OTHER_VARIABLES:
            near = difflib.get_close_matches(
                name.upper(), known | OTHER_VARIABLES, n=1, cutoff=0.0
            )[0]
            raise SettingsError(
                f"The environment variable {name} is no setting; the nearest one is {near}."
            )
