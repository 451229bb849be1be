"""Settings of what keywords are made of, and by: the tables `[dataset]`, `[keywords]`, `[prompts]`,
`[generator]`, `[rebuild]` and `[redis]`.

What they do is in `cogr.datasets`, `cogr.keywords`, `cogr.prompts`, `indexers.generators`,
`indexers.rebuild` and `indexers.rebuild.fleet`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, Self
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

from pydantic import ConfigDict, Field, SecretStr, field_validator, model_validator

from cogr.errors import GeneratorError, SettingsError
from cogr.prompts import Template, read_templates
from cogr.records import Side
from cogr.settings.table import SettingsTable, check_url, http_url, usable_path


class ColumnSettings(SettingsTable):
    """Names of the items' fields or columns, for the loaders jsonl, csv and parquet."""

    id: str = Field("id", min_length=1, description="Field or column of an item's id")
    title: str = Field("title", min_length=1, description="Field of its title")
    text: tuple[str, ...] = Field(
        ("text",), min_length=1, description="Fields of its text; several are joined, one a line"
    )
    fields: dict[str, str] = Field(
        default_factory=dict, description="Names in the data of publish.fields, where they differ"
    )

    @field_validator("text", mode="before")
    @classmethod
    def _one(cls, text: Any) -> Any:
        return (text,) if isinstance(text, str) and not text.lstrip().startswith("[") else text


class DatasetSettings(SettingsTable):
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
    split_by: Literal["shuffle", "cluster"] = Field(
        "shuffle",
        description=(
            "How queries are split if the data name no splits: shuffle (with seed 0) or cluster "
            "(by a hash of the stems)"
        ),
    )
    columns: ColumnSettings = Field(default_factory=ColumnSettings)
    encoding: str = Field(
        "",
        description="Encoding of text files other than JSON, such as cp1250; if empty, UTF-8 or "
        "cp1252 is detected",
    )

    _is_path = field_validator("path")(usable_path)


class KeywordSettings(SettingsTable):
    """The budget of a keyword set, and whether its keywords are weighted."""

    k_max: int = Field(
        30, ge=1, description="K_max: most keywords of an item or a query (paper, section 3.3)"
    )
    weights: bool = Field(
        True,
        description="Weights of a query's keywords order the results; false: all are 1 (the paper)",
    )


class PromptSettings(SettingsTable):
    """The texts that a language model is asked with."""

    templates: str = Field(
        "paper",
        description=(
            "paper; bare (the texts alone, for very small models); or a TOML file of your own "
            "(docs/generators.md)"
        ),
    )

    def template(self, side: Side) -> Template:
        """The template of one side. Raises SettingsError for a bad file."""
        return read_templates(self.templates)[side]


@dataclass(frozen=True)
class Kind:
    """A kind of generator: what makes it, and what it needs.

    Attributes:
        module, options: its module in `indexers.generators`, and its class of options there.
        model: where its language model runs. "process": in this one, which takes half a minute to
            load, so that it answers no single query. "endpoint": behind the `base_url` of its own
            table of `[generator]`. "": it has none, and answers a query in milliseconds.
        reads_data: whether it is made from the data set.
        packages, extra: what has to be installed, and the extra that brings it.
    """

    module: str
    options: str
    model: Literal["process", "endpoint", ""] = ""
    reads_data: bool = False
    packages: tuple[str, ...] = ()
    extra: str = ""

    @property
    def is_live(self) -> bool:
        """Whether it can answer one query while a shopper waits."""
        return self.model != "process"

    @property
    def is_installed(self) -> bool:
        return all(map(find_spec, self.packages))


KINDS: Mapping[str, Kind] = {
    "statistical": Kind(
        *("statistical.generator", "StatisticalOptions"),
        reads_data=True,
        packages=("lightgbm", "scipy"),
        extra="statistical",
    ),
    "extractive": Kind("extractive", "ExtractiveOptions", reads_data=True),
    "vllm": Kind("vllm_lm", "VllmOptions", "process", packages=("vllm",), extra="vllm"),
    "transformers": Kind(
        *("transformers_lm", "TransformersOptions", "process"),
        packages=("torch", "transformers"),
        extra="train",
    ),
    "openai": Kind("openai_api", "OpenAIOptions", "endpoint", packages=("openai",), extra="openai"),
    "scripted": Kind("extractive", "ScriptedOptions"),
}
"""Every kind of generator. Its own settings are the table of its name in `GeneratorSettings`."""

# Their choices follow from KINDS, which a test checks; types can't be computed.
GeneratorName = Literal[
    "auto", "statistical", "extractive", "vllm", "transformers", "openai", "scripted"
]
JudgeName = Literal["vllm", "transformers", "openai"]
LiveName = Literal["auto", "statistical", "extractive", "openai", "none"]


def kind_of(name: str) -> Kind:
    """The kind of that name. Raises GeneratorError."""
    if name not in KINDS:
        raise GeneratorError(
            f"The generator {name} is unknown; take one of {', '.join(KINDS)}, or a version of "
            "CoGR that has it."
        )
    return KINDS[name]


class Sampling(SettingsTable):
    """How an LLM draws the next token.

    The defaults are the paper's for initialisation, evaluation and indexing (table "sampling").
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(0.7, ge=0, le=2, description="0 takes the most probable token")
    top_p: float = Field(0.8, gt=0, le=1, description="Nucleus mass; 1 is off")
    top_k: int = Field(
        20, ge=0, description="Most probable tokens to draw from; 0 is off (the paper: -1)"
    )
    max_tokens: int = Field(
        512, ge=1, description="Longest completion (paper, max_response_length)"
    )


class EndpointSettings(SettingsTable):
    """An OpenAI-compatible endpoint, for `generator.name = "openai"`."""

    base_url: str | None = Field(None, description="For example http://localhost:8000/v1")
    api_key: SecretStr | None = Field(None, description="Sent as the bearer token; never printed")

    _is_url = field_validator("base_url")(http_url)


class StatisticalSettings(SettingsTable):
    """The generator that learns a ranker from labels and writes keywords that retrieve what it
    ranks as relevant: `generator.name = "statistical"`, and everywhere else that uses it.
    """

    language: str = Field(
        "auto",
        description="Snowball's name for the language of stems, such as german; auto: the texts'",
    )
    pair_signals: tuple[str, ...] = Field(
        (),
        description="Columns of labels.* or pairs.* with numbers of a pair, such as clicks",
    )
    encoder: str = Field(
        "auto",
        description=(
            "Encoder that the ranker learns from: a folder, or a name on the Hugging Face hub; "
            "auto: a MiniLM, if it can be fetched; none"
        ),
    )
    judge: JudgeName | None = Field(
        None,
        description=(
            "Generator that runs generator.model as a judge: it is asked whether items near the "
            "ranker's cut answer the query"
        ),
    )


class SideGenerator(SettingsTable):
    """Settings of one side alone: after training, each side has a model of its own."""

    name: GeneratorName | None = Field(None, description="Generator of this side")
    model: str | None = Field(None, description="Model of this side")


class GeneratorSettings(SettingsTable):
    """What writes the keywords of items and queries."""

    name: GeneratorName = Field(
        "auto",
        description=(
            "auto: statistical where training queries have labels (refused without its extra), "
            "else extractive"
        ),
    )
    model: str | None = Field(
        None,
        description="Folder of a model or of a LoRA adapter, or its name (Hugging Face, openai)",
    )
    vllm: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments of vLLM's engine as they are, such as tensor_parallel_size",
    )
    sampling: Sampling = Field(default_factory=Sampling)
    openai: EndpointSettings = Field(default_factory=EndpointSettings)
    statistical: StatisticalSettings = Field(default_factory=StatisticalSettings)
    item: SideGenerator = Field(default_factory=SideGenerator)
    query: SideGenerator = Field(default_factory=SideGenerator)

    def of(self, side: Side) -> GeneratorSettings:
        """These settings with one side's own values put in."""
        own = (self.item if side == "item" else self.query).model_dump(exclude_none=True)
        return self.model_copy(update=own)


class RebuildSettings(SettingsTable):
    """Where a rebuild generates keywords, and how many may fail."""

    workers: Literal["local", "celery"] = Field(
        "local", description="local: in this process; celery: by cogr-ops worker, over redis.url"
    )
    max_failure_share: float = Field(
        0.02,
        ge=0,
        le=1,
        description="Nothing is published if a larger share of items or queries was set aside",
    )


_REDIS = "redis://host:6379/0, rediss://host?ssl_ca_certs=/FILE or unix:///path?db=0"
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_OPTIONS = {"redis": (), "rediss": _TLS, "unix": ("db",)}


KEY_PREFIX = "cogr"
"""All keys in Redis begin with it."""


class RedisSettings(SettingsTable):
    """Redis or Valkey: the broker of task messages between the coordinator and its workers, and the
    cache of the expander.
    """

    url: str | None = Field(
        None,
        description=(
            "redis://user:password@host:6379/0; rediss:// for TLS; unix:///path?db=0. With a "
            "password it is a secret: set COGR_REDIS__URL. Each catalogue needs its own database"
        ),
    )
    password: SecretStr | None = Field(
        None, description="For a URL without one: COGR_REDIS__PASSWORD; never printed"
    )

    @property
    def address(self) -> str:
        """The URL with its password. Raises SettingsError when there is none."""
        if not self.url:
            raise SettingsError(
                "Workers need a broker, and redis.url is not set: run cogr-ops redis start, then "
                "set redis.url or COGR_REDIS__URL."
            )
        if not self.password:
            return self.url
        parts = urlsplit(self.url)
        user, _, host = parts.netloc.rpartition("@")
        secret = quote(self.password.get_secret_value(), safe="")
        return urlunsplit(parts._replace(netloc=f"{user}:{secret}@{host}"))

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url:
            parts = check_url(url, _OPTIONS, _REDIS, host=False)
            known = _OPTIONS[parts.scheme.lower()]
            if odd := [name for name in parse_qs(parts.query) if name not in known]:
                raise ValueError(f"its option {odd[0]} is unknown; use {_REDIS}")
            if parts.scheme != "unix" and not re.fullmatch(r"/?\d{0,4}", parts.path):
                raise ValueError(f"the part after the host is not a database number; use {_REDIS}")
        return url

    @model_validator(mode="after")
    def _has_one_password(self) -> Self:
        if self.url and self.password and urlsplit(self.url).password:
            raise ValueError("redis.url has a password, and redis.password is set; leave one out")
        return self
