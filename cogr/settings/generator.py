"""Settings of what is asked for, the tables `[keywords]` and `[prompts]`, and of what writes it,
the tables below `[generator]`.

What they do is in `cogr.keywords`, `cogr.prompts` and `indexers.generators`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, SecretStr, field_validator

from cogr.prompts import ItemVariant, QueryVariant, Template, read_templates
from cogr.records import Side
from cogr.settings.table import Table, http_url


class KeywordSettings(Table):
    """The budget of a keyword set, and whether its keywords are weighted."""

    k_max: int = Field(
        30, ge=1, description="K_max: most keywords of an item or a query (paper, section 3.3)"
    )
    weights: bool = Field(
        True,
        description=(
            "A query's keywords have the weights that its generator gives, which change the "
            "order of the results but not the set; false: all weights are 1, as in the paper"
        ),
    )


Source = Literal["bm25", "statistical"]


class PromptSettings(Table):
    """The texts that a language model is asked with."""

    item_variant: ItemVariant = Field(
        "full",
        description=(
            "full: title and description; title: the title alone; search: title, description and "
            "titles of the best other items by BM25; proposals: title, description and the "
            "item's keywords by the generator statistical, each with its confidence, (0) to (9)"
        ),
    )
    query_variant: QueryVariant = Field(
        "plain",
        description=(
            "plain: the query alone; search: with titles of the best items by BM25; proposals: "
            "with keywords proposed by the generator statistical (out of fold for training "
            "queries), each with its confidence, (0) to (9)"
        ),
    )
    templates: str = Field(
        "paper",
        description=(
            "paper; bare (the texts alone, for very small models); or a TOML file of your own with "
            "system and user for [item] and [query], and in user {item}, {query}, {description} "
            "or {search_results}"
        ),
    )

    def source(self, side: Side) -> Source:
        """What {search_results} are on one side, where its text has them."""
        variant = self.item_variant if side == "item" else self.query_variant
        return "statistical" if variant == "proposals" else "bm25"

    def template(self, side: Side) -> Template:
        """The template of one side, in its variant. Raises SettingsError for a bad file."""
        variant = self.item_variant if side == "item" else self.query_variant
        return read_templates(self.templates)[side].varied(variant)


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

    @field_validator("top_k", mode="before")
    @classmethod
    def _off(cls, top_k: object) -> object:
        # The paper and vLLM spell it -1 (table "sampling").
        return 0 if top_k == -1 else top_k


class EndpointSettings(Table):
    """An OpenAI-compatible endpoint, for `generator.name = "openai"`."""

    base_url: str | None = Field(None, description="For example http://localhost:8000/v1")
    api_key: SecretStr | None = Field(None, description="Sent as the bearer token; never printed")

    _is_url = field_validator("base_url")(http_url)


class StatisticalSettings(Table):
    """The generator that learns a ranker from labels and writes keywords that retrieve what it
    ranks as relevant: `generator.name = "statistical"`, and everywhere else that uses it.
    """

    language: str = Field(
        "auto",
        description=(
            "Language of stems and stop words, by its Snowball name, such as german; auto: that of "
            "the items' texts"
        ),
    )
    signals: tuple[str, ...] = Field(
        (),
        description=(
            "Numeric fields of items that the ranker learns from, such as popularity, price or "
            "margin; each also in publish.fields"
        ),
    )
    pair_signals: tuple[str, ...] = Field(
        (),
        description=(
            "Columns with numbers about a query and an item that the ranker learns from, such as "
            "clicks, purchases or seconds, in the files labels.* or pairs.* (jsonl, csv, parquet)"
        ),
    )
    encoder: str | None = Field(
        None,
        description=(
            "Encoder in sentence-transformers' layout that the ranker learns from: a folder, a "
            "name on the Hugging Face hub, or `minilm`"
        ),
    )


class SideGenerator(Table):
    """Settings of one side alone: after training, each side has a model of its own."""

    name: GeneratorName | None = Field(None, description="Generator of this side")
    model: str | None = Field(None, description="Model of this side")


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
        None,
        description=(
            "Folder of a model or of a LoRA adapter, Hugging Face name, or smollm2; the model's "
            "name for openai"
        ),
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Number format of vllm and transformers"
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Longest prompt plus completion; the model's own by default"
    )
    constrained: bool = Field(
        False,
        description=(
            "Queries may only use the item snapshot's keywords and titles (vllm, transformers); "
            "rollouts are not constrained"
        ),
    )
    vllm: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "Arguments of vLLM's engine, passed as they are, such as gpu_memory_utilization or "
            "tensor_parallel_size"
        ),
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
