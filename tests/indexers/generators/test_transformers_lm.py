"""`transformers`: what prompts begin with is read once, and answers are those of whole prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cogr.prompts import Prompt
from cogr.records import Item, Query
from indexers.generators import Completion, Request
from indexers.generators.judging import YES_OR_NO, QueryItem
from indexers.generators.model_folders import LocalModelOptions, encode
from indexers.generators.transformers_lm import TransformersGenerator

pytestmark = pytest.mark.model

INSTRUCTION = "List keywords for lexical search matching, comma-separated, no explanation. " * 4
TEXTS = ["green velvet sofa", "lamp", "a lamp of brass for the hall", "", "lamp"]
ALIKE = [Prompt("You are brief.", f"{INSTRUCTION}\nQuery: {text}") for text in TEXTS]


@pytest.fixture
def greedy(tiny: Path) -> TransformersGenerator:
    sampling = {"temperature": 0, "max_tokens": 12}
    options = LocalModelOptions.model_validate({"model": str(tiny), "sampling": sampling})
    found = TransformersGenerator(options)
    vars(found)["_batch"] = 2
    return found


FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("gemma3_text", {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 64}),
    ("gemma3_text", {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 999}),
    ("bloom", {"n_layer": 2, "n_head": 2}),
    ("mamba", {"state_size": 4}),
    ("lfm2", {"num_key_value_heads": 1, "layer_types": ["conv", "full_attention"]}),
]
"""Kinds of models of which each remembers a text in its own way."""


def of_family(family: str, own: dict[str, Any], tiny: Path, folder: Path) -> Path:
    """A random model of a family, with the tokenizer of another."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 1024}
    sizes |= {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **sizes, **own)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("family", "own"), FAMILIES)
def test_models_that_read_in_their_own_way_write_as_they_do_alone(
    family: str, own: dict[str, Any], tiny: Path, tmp_path: Path
) -> None:
    sampling = {"temperature": 0, "max_tokens": 12}
    model = str(of_family(family, own, tiny, tmp_path / family))
    writer = TransformersGenerator(
        LocalModelOptions.model_validate({"model": model, "sampling": sampling})
    )
    check_whole(writer, ALIKE)


def whole(generator: TransformersGenerator, prompt: Prompt) -> str:
    """What the model writes to one prompt alone, read as it is."""
    import torch

    ids = torch.tensor([encode(prompt, generator.tokenizer)])
    with torch.inference_mode():
        written = generator._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
        )
    text: str = generator.tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)
    return text


def check_whole(generator: TransformersGenerator, prompts: Sequence[Prompt]) -> None:
    """Each prompt gets what the model writes to it alone."""
    asked = [Request(f"q{n}", Query(f"q{n}", "x"), one) for n, one in enumerate(prompts)]
    found = {one.id: one for one in generator.generate(asked)}
    for request in asked:
        answer = found[request.id]
        assert isinstance(answer, Completion)
        assert answer.text == whole(generator, request.prompt)


@contextmanager
def tokens_read(generator: TransformersGenerator) -> Iterator[list[int]]:
    """Tokens of each step in which the model reads more than one token of a row."""
    read: list[int] = []

    def note(_module: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        ids = args[0] if args else kwargs["input_ids"]
        read.extend([ids.numel()] if ids.shape[1] > 1 else [])

    hook = generator._model.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    yield read
    hook.remove()


@pytest.mark.parametrize(
    "prompts",
    [ALIKE, ALIKE[:1], [Prompt("", text or "a") for text in TEXTS], [ALIKE[0]] * 3],
    ids=["alike", "one", "unlike", "equal"],
)
def test_texts_are_those_of_whole_prompts(
    greedy: TransformersGenerator, prompts: Sequence[Prompt]
) -> None:
    check_whole(greedy, prompts)


def test_the_instruction_is_read_once(greedy: TransformersGenerator) -> None:
    sizes = [len(encode(one, greedy.tokenizer)) for one in ALIKE]
    asked = [Request(f"q{n}", Query(f"q{n}", "x"), one) for n, one in enumerate(ALIKE)]
    with tokens_read(greedy) as read:
        list(greedy.generate(asked))
    assert max(sizes) < sum(read) < sum(sizes) / 2


def test_items_of_one_query_are_judged_at_once_and_long_queries_do_not_pad_short_ones(
    greedy: TransformersGenerator,
) -> None:
    judge = TransformersGenerator(greedy.options.model_copy(update={"yes_or_no": True}))
    items = [Item(f"i{n}", "sofa", "velvet " * (n % 5)) for n in range(20)]
    queries = [Query(f"q{n}", "couch " * (60 if n % 2 else 1)) for n in range(200)]
    of_items, of_queries = (
        [pair.request(YES_OR_NO) for pair in pairs]
        for pairs in (
            [QueryItem(Query("q", "couch"), item) for item in items],
            [QueryItem(query, items[1]) for query in queries],
        )
    )
    with tokens_read(judge) as read:
        assert len([*judge.generate(of_items)]) == 20
        assert len(read) == 2, "the instruction, and all items"
        read.clear()
        assert len([*judge.generate(of_queries)]) == 200
    sizes = [len(encode(one.prompt, judge.tokenizer)) for one in of_queries]
    assert sum(read) < 3 / 4 * len(sizes) * (max(sizes) - min(sizes))
