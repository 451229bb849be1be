"""Prompts: the paper's two templates (figure "prompts", appendix B.1), and a data set's own.

A prompt is a list of chat messages. `render` applies a model's chat template.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cogr.errors import GeneratorError, SettingsError
from cogr.records import SIDES, Entity, Side, self_text

_PLACEHOLDER = re.compile(r"\{(query|item|description)\}")
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_ALLOWED: dict[Side, set[str]] = {"query": {"query"}, "item": {"item", "description"}}
DESCRIPTION_TOKENS = 512
"""Token budget of a description (the paper's)."""


@dataclass(frozen=True, slots=True)
class Template:
    """A system and a user message with placeholders: {query} on the query side, {item} and
    {description} on the item side.
    """

    side: Side
    system: str
    user: str

    def __post_init__(self) -> None:
        names = set(_PLACEHOLDER.findall(self.user))
        if wrong := names - _ALLOWED[self.side]:
            raise SettingsError(
                f"The {self.side} prompt has the placeholder {{{min(wrong)}}}, which only the "
                "other side has; remove it."
            )
        if self.side not in names:
            raise SettingsError(
                f"The {self.side} prompt lacks the placeholder {{{self.side}}}; add it to the "
                f"user message of [{self.side}] in the file of prompts.templates."
            )

    @property
    def hash(self) -> str:
        """First 16 hex digits of a sha256 of side, system and user text; part of every manifest."""
        text = json.dumps([self.side, self.system, self.user], ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


PAPER: Mapping[Side, Template] = {
    "query": Template(
        "query",
        "You expand user search queries into matching keywords.",
        "List keywords (synonyms, related terms, item categories) that the query should match "
        "against. Output only a comma-separated list of keywords, no explanation.\n"
        "User query: {query}",
    ),
    "item": Template(
        "item",
        "You extract search keywords from item titles and descriptions.",
        "List keywords for lexical search matching. "
        "Output only a comma-separated list of keywords, no explanation.\n"
        "Item title: {item}\n"
        "Item Description: {description}",
    ),
}
TEMPLATES: Mapping[str, Mapping[Side, Template]] = {
    "paper": PAPER,
    "bare": {
        "query": Template("query", "", "{query}"),
        "item": Template("item", "", "{item}\n{description}"),
    },
}
"""By name: the paper's, and the texts alone, since instructions distract a very small model."""


def read_templates(name: str) -> Mapping[Side, Template]:
    """Templates of `TEMPLATES`, or of a TOML file with `system` and `user` in `[item]` and
    `[query]`; what it leaves out is the paper's. Raises SettingsError.
    """
    if name in TEMPLATES:
        return TEMPLATES[name]
    where = f"The file of prompts.templates, {name},"
    try:
        with Path(name).open("rb") as file:
            given = tomllib.load(file)
    except OSError as error:
        raise SettingsError(
            f"{where} can't be read ({error.strerror}); name a TOML file, or one of "
            f"{', '.join(TEMPLATES)}."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where} is not valid TOML: {error}.") from error
    templates: dict[Side, Template] = dict(PAPER)
    for name, texts in given.items():
        side = next((one for one in SIDES if one == name), None)
        known = isinstance(texts, dict) and texts.keys() <= {"system", "user"}
        if not (side and known and all(isinstance(text, str) for text in texts.values())):
            raise SettingsError(
                f"{where} may contain only the texts `system` and `user`, in [item] and [query]; "
                f"correct {name:.40}."
            )
        templates[side] = replace(PAPER[side], **texts)
    return templates


@dataclass(frozen=True, slots=True)
class Prompt:
    """One filled template.

    `cut` says that the description was shortened to the token budget.
    """

    system: str
    user: str
    cut: bool = False

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages as every chat API takes them."""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]

    @property
    def merged(self) -> list[dict[str, str]]:
        """One message of the user, for models that know no system message."""
        both = f"{self.system}\n\n{self.user}" if self.system else self.user
        return [{"role": "user", "content": both}]

    @property
    def text(self) -> str:
        """The prompt as one string: for the cache's key, and for models without a chat template."""
        return f"{self.system}\n\n{self.user}\n"


def render(prompt: Prompt, tokenizer: Any) -> str:
    """The prompt as the model reads it: by its chat template (thinking off), or as plain text where
    it has none.
    """
    return _spelled(prompt, tokenizer)[1]


def chat(prompt: Prompt, tokenizer: Any) -> str | list[dict[str, str]]:
    """The prompt for a trainer, which applies the chat template itself: the messages of `render`,
    or the plain text where there is no template.
    """
    return _spelled(prompt, tokenizer)[0]


def _spelled(prompt: Prompt, tokenizer: Any) -> tuple[str | list[dict[str, str]], str]:
    if not tokenizer.chat_template:
        return prompt.text, prompt.text
    from jinja2 import TemplateError  # the tokenizer needs it to apply any template

    damaged = TemplateError, TypeError, ValueError
    try:
        return prompt.messages, _spell(prompt.messages, tokenizer)
    except damaged:
        pass  # Some templates (Gemma 2, early Mistral) refuse a system message.
    try:
        return prompt.merged, _spell(prompt.merged, tokenizer)
    except damaged as error:
        raise GeneratorError(
            f"The chat template in {tokenizer.name_or_path} can't be used "
            f"({str(error).splitlines()[0]}); copy it again."
        ) from error


def _spell(messages: list[dict[str, str]], tokenizer: Any) -> str:
    # Paper, section 4.3: keywords are generated without chain of thought; templates without such a
    # switch ignore it.
    return str(
        tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
    )


Cut = Callable[[str, int], str]
"""Shortens a text to a number of tokens: (text, tokens) -> text."""

# White space belongs to the word after it, as in the vocabularies of language models.
_TOKENISH = re.compile(r"\s{0,8}(?:[a-zA-Z]{1,6}|[0-9]{1,3}|[^\sa-zA-Z0-9])|\s{1,8}", re.DOTALL)


def cut_by_estimate(text: str, tokens: int) -> str:
    """Shorten without a tokenizer: six letters, three digits or one other character count as a
    token.

    For English this overestimates a tokenizer's count; for Chinese it is about right. It reads only
    the part of the text that it keeps.
    """
    if len(text) <= tokens:
        return text
    for count, match in enumerate(_TOKENISH.finditer(text)):
        if count == tokens:
            return text[: match.start()].rstrip()
    return text


def cut_by_tokenizer(tokenizer: Any) -> Cut:
    """A cut by a model's own (fast) tokenizer: the longest beginning of the text with so many
    tokens.
    """

    def cut(text: str, tokens: int) -> str:
        # No vocabulary has more than 16 characters in the average token, so the text beyond need
        # not be read.
        head = text[: 16 * tokens]
        spans = tokenizer(
            head, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )["offset_mapping"]
        if len(spans) <= tokens:
            return head if len(head) == len(text) else head.rstrip()
        return head[: spans[tokens - 1][1]].rstrip()

    return cut


@dataclass(frozen=True)
class Prompter:
    """Fills one side's template.

    Args:
        description_tokens: token budget of {description}.
    """

    template: Template
    description_tokens: int = DESCRIPTION_TOKENS
    cut: Cut = cut_by_estimate

    def __call__(self, entity: Entity) -> Prompt:
        """The prompt of one item or query, its description cut to `description_tokens`."""
        filled, cut = _PLACEHOLDER.split(self.template.user), False
        for place in range(1, len(filled), 2):
            name = filled[place]
            if name == "item":
                text = self_text(entity)
            elif name == "query":
                text = entity.text
            else:
                text = self.cut(entity.text, self.description_tokens)
                cut = len(text) < len(entity.text)
            filled[place] = _readable(text)
        return Prompt(self.template.system, "".join(filled), cut)


def _readable(text: str) -> str:
    return text if text.isprintable() else _UNREADABLE.sub(" ", text)
