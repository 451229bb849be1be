"""Prompts and keyword sets as training needs them: spelled exactly as an index build
spells them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cogr.keywords import parse, self_keyword
from cogr.prompts import Prompt
from cogr.records import Entity, Side, self_text
from indexers.generators.model_folders import encode
from indexers.workspace import Workspace


def prompts_of(workspace: Workspace, side: Side, entities: Sequence[Entity]) -> list[Prompt]:
    """The prompt of each entity, with search results where the prompt variant has them."""
    prompter, results = workspace.prompter(side), workspace.search_results(side, entities)
    return [prompter(entity, results(entity) if results else ()) for entity in entities]


def keywords_of(completion: str, own: str) -> tuple[str, ...]:
    """The keyword set of a completion without the entity's own text, before any budget."""
    return tuple(word for word in parse(completion) if word != own)


def own_keyword(entity: Entity) -> str:
    """The entity's own text as a keyword."""
    return self_keyword(self_text(entity))


def spell(keywords: Sequence[str]) -> str:
    """Keywords as the prompt asks for them."""
    return ", ".join(keywords)


def sft_example(
    prompt: Prompt, keywords: Sequence[str], tokenizer: Any, context: int
) -> Mapping[str, list[int]] | None:
    """Token ids of prompt and answer, and a mask that is 1 on the answer, end included.

    None when it is too long.
    """
    asked = encode(prompt, tokenizer)
    answer = tokenizer(spell(keywords), add_special_tokens=False)["input_ids"] + [
        tokenizer.eos_token_id
    ]
    if len(asked) + len(answer) > context:
        return None
    return {"input_ids": asked + answer, "completion_mask": [0] * len(asked) + [1] * len(answer)}


def rollout_prompt(prompt: Prompt, tokenizer: Any) -> str | list[dict[str, str]]:
    """The prompt as TRL takes it: chat messages where there is a template, else plain text."""
    return prompt.messages if tokenizer.chat_template else prompt.text
