"""Settings of what is asked for: the tables `[keywords]` and `[prompts]`.

What they do is in `cogr.keywords` and `cogr.prompts`.
"""

from __future__ import annotations

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


SearchFrom = Literal["bm25", "statistical", "edits"]


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
        "plain",
        description=(
            "plain: the query alone; search: with search results; edit: with the keywords that "
            "statistical writes, to be edited (needs prompts.search_from edits)"
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
            "Most results that the variant search puts into a prompt, and most keywords and "
            "candidates that edit does; a query's whole set is shown always"
        ),
    )
    search_from: SearchFrom = Field(
        "bm25",
        description=(
            "bm25: titles of the best items; statistical: keywords that the generator of that name "
            "proposes (out of fold for training queries), each with how sure it is, (0) to (9); "
            "edits: the keywords that it writes for a query and candidates, each with the items "
            "that it finds, those that it alone finds, and the expected change of F1"
        ),
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
