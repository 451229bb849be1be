"""Prompts: the paper's texts to the letter, placeholders, cuts, chat templates."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import SettingsError
from cogr.prompts import (
    PAPER,
    Prompt,
    Prompter,
    Template,
    chat,
    cut_by_estimate,
    cut_by_tokenizer,
    read_templates,
    render,
)
from cogr.records import Item, Query

SOFA = Item("1", "Velvet sofa", "Green, three seats")


def test_the_papers_prompts_are_those_of_every_manifest_and_cache() -> None:
    assert PAPER["query"].hash == "07c86b96cb4bcd71"
    assert PAPER["item"].hash == "977b04248e924182"


def test_placeholders_in_the_data_are_data() -> None:
    item = Item("1", "{description} {item}", "{query} {0} {}")
    assert Prompter(PAPER["item"])(item).user.endswith(
        "Item title: {description} {item}\nItem Description: {query} {0} {}"
    )


def test_what_no_tokenizer_takes_is_left_out() -> None:
    prompt = Prompter(PAPER["item"])(Item("1", "a\ud800b", "c\x00d\te\nf\x1b g"))
    prompt.text.encode("utf-8")
    assert prompt.user.endswith("Item title: a b\nItem Description: c d\te\nf  g")


TOML = """
[item]
system = "Du schreibst Stichwörter."
user = "{item}\\n{description}"
"""


def test_templates_of_your_own(tmp_path: Path) -> None:
    file = tmp_path / "prompts.toml"
    file.write_text(TOML, "utf-8")
    found = read_templates(str(file))
    assert found["query"] == PAPER["query"]
    assert found["item"].hash != PAPER["item"].hash
    assert found["item"] == Template("item", "Du schreibst Stichwörter.", "{item}\n{description}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "can't be read .No such file.*or one of paper, bare"),
        ("[item", "is not valid TOML"),
        ("[item]\nuser = 3", "correct item"),
        ("[item]\nuser = 'Words.'", r"lacks the placeholder \{item\}"),
        ("[query]\nuser = '{query} {item}'", r"has the placeholder \{item\}, which only the"),
    ],
)
def test_a_bad_file_of_templates_is_one_sentence(
    tmp_path: Path, text: str | None, said: str
) -> None:
    file = tmp_path / "prompts.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingsError, match=said):
        read_templates(str(file))


# cuts


def test_long_descriptions_are_cut_and_say_so() -> None:
    long = Item("1", "Sofa", "plush " * 200_000)
    prompt = Prompter(PAPER["item"], 100)(long)
    assert (prompt.cut, prompt.user.count("plush")) == (True, 100)
    assert not Prompter(PAPER["item"], 100)(SOFA).cut
    assert not Prompter(Template("item", "", "{item}"), 100)(long).cut
    assert not Prompter(PAPER["query"], 10)(Query("q", "couch " * 100)).cut


@pytest.mark.parametrize(
    ("text", "tokens", "short"),
    [
        ("one two three four", 2, "one two"),
        ("internationalisation", 2, "internationa"),
        ("无线耳机降噪", 3, "无线耳"),
        ("a" + " " * 1000 + "b", 2, "a"),
        ("short", 2, "short"),
        ("", 1, ""),
    ],
)
def test_estimated_cuts(text: str, tokens: int, short: str) -> None:
    assert cut_by_estimate(text, tokens) == short


class Words:
    """A tokenizer of white-space words, as far as `cut_by_tokenizer` looks."""

    def __call__(self, text: str, **kwargs: object) -> dict[str, list[tuple[int, int]]]:
        return {"offset_mapping": [match.span() for match in re.finditer(r"\S+", text)]}


def test_a_cut_by_a_tokenizer() -> None:
    cut = cut_by_tokenizer(Words())
    assert cut("one two three", 2) == "one two"
    assert cut("one two ", 2) == "one two "
    assert cut("one " * 100_000, 3) == "one one one"
    assert Prompter(PAPER["item"], 2, cut)(SOFA).user.endswith("Item Description: Green, three")


# chat templates


@dataclass
class Chat:
    """A tokenizer as far as `render` looks. `refuses_system` stands for Gemma 2."""

    chat_template: str | None = "t"
    refuses_system: bool = False

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: object) -> str:
        from jinja2 import TemplateError

        asked = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
        assert kwargs == asked
        if self.refuses_system and conversation[0]["role"] == "system":
            raise TemplateError("System role not supported")
        return "|".join(f"{message['role']}: {message['content']}" for message in conversation)


@pytest.mark.parametrize("tokenizer", [Chat(), Chat(refuses_system=True), Chat(None)])
def test_a_trainer_gets_the_messages_that_the_prompt_is_spelled_by(tokenizer: Chat) -> None:
    prompt, both = Prompt("Be brief.", "Sofa?"), "Be brief.\n\nSofa?"
    expected: tuple[Any, str] = (prompt.messages, "system: Be brief.|user: Sofa?")
    if tokenizer.refuses_system:
        expected = ([{"role": "user", "content": both}], f"user: {both}")
    elif not tokenizer.chat_template:
        expected = (f"{both}\n", f"{both}\n")
    assert (chat(prompt, tokenizer), render(prompt, tokenizer)) == expected
