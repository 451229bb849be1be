"""Settings of what is asked for: the tables `[keywords]` and `[prompts]`.

What they do is in `cogr.keywords` and `cogr.prompts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from cogr.prompts import ITEM_TEMPLATES, QUERY_TEMPLATES, ItemVariant, QueryVariant, Template
from cogr.records import Side
from cogr.settings.table import Table


class KeywordSettings(Table):
    """The budget of a keyword set, and whether its keywords are weighted."""

    k_max: int = Field(
        30, ge=1, description="K_max: most keywords an entity may have (paper, section 3.3)"
    )
    weights: bool = Field(
        True,
        description=(
            "A query's keywords count as much as its generator says, which changes the order of "
            "what they find and not the set; false: all weigh 1, as in the paper"
        ),
    )


Source = Literal["bm25", "statistical", "edits"]
_SOURCES: Mapping[str, Source] = {"proposals": "statistical", "edit": "edits"}


class PromptSettings(Table):
    """The paper's templates, their variants, or texts of your own."""

    item_variant: ItemVariant = Field(
        "full",
        description=(
            "full: title and description; title: the title alone; search: title, description and "
            "titles of the best other items by BM25; proposals: title, description and the item's "
            "keywords by the generator statistical, each with how sure it is, (0) to (9)"
        ),
    )
    query_variant: QueryVariant = Field(
        "plain",
        description=(
            "plain: the query alone; search: with titles of the best items by BM25; proposals: "
            "with keywords that the generator statistical proposes (out of fold for training "
            "queries), each with how sure it is, (0) to (9); edit: with the keywords that it "
            "writes, and candidates, each with the items that it finds, those that it alone finds, "
            "and the expected change of F1"
        ),
    )
    description_tokens: int = Field(
        512,
        ge=1,
        description=(
            "Token budget of a description, and of search results; longer ones are cut and counted"
        ),
    )
    search_results: int = Field(
        10,
        ge=1,
        description=(
            "Most results that the variants search and proposals put into a prompt, and most "
            "keywords and candidates that edit does; a query's whole set is shown always"
        ),
    )
    item_system: str | None = Field(None, description="System message of your own for items")
    item_user: str | None = Field(
        None,
        description=(
            "User message of your own for items, with {item} and maybe {description} and "
            "{search_results}, which are those of the variant, BM25's by default"
        ),
    )
    query_system: str | None = Field(None, description="System message of your own for queries")
    query_user: str | None = Field(
        None,
        description=(
            "User message of your own for queries, with {query} and maybe {search_results}, which "
            "are those of the variant, BM25's by default"
        ),
    )

    def source(self, side: Side) -> Source:
        """What {search_results} are on one side, where its text has them."""
        variant = self.item_variant if side == "item" else self.query_variant
        return _SOURCES.get(variant, "bm25")

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
