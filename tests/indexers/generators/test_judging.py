"""A judge: yes or no by one token's probabilities, by each kind of generator."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from cogr.records import Item, Query
from cogr.store import Store
from indexers.generators import Completion, Failure, make_generator
from indexers.generators.judging import YES_OR_NO, QueryItem, YesOrNo
from tests.indexers.generators.fake_endpoint import FakeEndpoint, completion
from tests.indexers.generators.test_generator_contract import IN_CHILD, tiny_adapter
from tests.web_server import Answer, json_answer

ITEMS = [
    Item(f"i{n}", f"{colour} sofa", f"A {colour} velvet sofa for the {room}")
    for n, (colour, room) in enumerate([("green", "office"), ("red", "hall"), ("blue", "attic")])
]
QUERIES = [Query(f"q{n}", text) for n, text in enumerate(["green sofa", "a couch", "lamp, brass"])]
PAIRS = [QueryItem(query, item) for item in ITEMS for query in QUERIES]


def listed(tokens: dict[str, float]) -> Answer:
    """A completion with these tokens' probabilities."""
    found: dict[str, Any] = completion("Yes")
    likeliest = [{"token": t, "logprob": math.log(p), "bytes": None} for t, p in tokens.items()]
    found["choices"][0]["logprobs"] = {"content": [{**likeliest[0], "top_logprobs": likeliest}]}
    return json_answer(found)


def test_an_endpoint_is_asked_for_one_token_and_each_pair_once(tmp_path: Path) -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        user = body["messages"][-1]["content"]
        if "attic" in user:
            return listed({"Maybe": 0.9, "I": 0.05})
        if "lamp" in user:
            return listed({"No": 0.9, "The": 0.04})
        return listed({"Yes": 0.5, " yes": 0.1, "No": 0.2, "It": 0.1})

    with FakeEndpoint(answer) as endpoint:
        options = {"kind": "openai", "model": "fake", "base_url": endpoint.url}
        judge = YesOrNo(options, Store(tmp_path))
        first = judge.logits(PAIRS)
        assert judge.asked == len(PAIRS) == len(endpoint.bodies)
        again = YesOrNo(options, Store(tmp_path))
        assert again.logits(PAIRS[::-1])[::-1].tolist()[:6] == first.tolist()[:6]
        assert again.asked == 0
    assert first[:2] == pytest.approx([math.log(0.6 / 0.2)] * 2)
    assert first[2] == pytest.approx(
        math.log(0.04 / 0.9)
    )  # Yes is less likely than what is listed.
    assert all(map(math.isnan, first[6:]))
    body = endpoint.bodies[0]
    assert (body["max_tokens"], body["logprobs"], body["top_logprobs"]) == (1, True, 20)


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {"content": [{"token": "Yes", "logprob": 0.0, "bytes": None, "top_logprobs": []}]},
        *(
            {"content": [{"top_logprobs": [{"token": "Yes", "logprob": odd}]}]}
            for odd in (1e4, math.nan, None)
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize(("room", "asked_again"), [("hall", 0), ("attic", 3)])
def test_one_answer_without_log_probabilities_is_a_failure_of_that_pair(
    tmp_path: Path, logprobs: object, room: str, asked_again: int
) -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        if room not in body["messages"][-1]["content"]:
            return listed({"Yes": 0.8, "No": 0.2})
        odd: dict[str, Any] = completion("Yes")
        odd["choices"][0]["logprobs"] = logprobs
        return json_answer(odd)

    with FakeEndpoint(answer) as endpoint:
        options = {"kind": "openai", "model": "m", "base_url": endpoint.url, "concurrency": 1}
        first = YesOrNo(options, Store(tmp_path))
        found = first.logits(PAIRS)
        # A later run goes on where this one ended.
        again = YesOrNo(options, Store(tmp_path))
        assert again.logits(PAIRS) == pytest.approx(found, nan_ok=True)
    assert [math.isnan(one) for one in found] == [room in p.item.text for p in PAIRS]
    # Until the model has shown that it gives them, the lack may be for now.
    assert (first.unanswered, again.unanswered, again.asked) == (3, 3, asked_again)


def by_whole_prompts(tiny: Path) -> list[float]:
    """P(yes) by one forward pass of every whole prompt."""
    import torch
    from transformers import AutoModelForCausalLM

    from indexers.generators.model_folders import encode, load_tokenizer

    tokenizer = load_tokenizer(tiny)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    ids = [
        [tokenizer(text, add_special_tokens=False)["input_ids"][0] for text in texts]
        for texts in (("yes", "Yes", " yes", " Yes"), ("no", "No", " no", " No"))
    ]
    found = []
    for pair in PAIRS:
        prompt = encode(pair.request(YES_OR_NO).prompt, tokenizer)
        with torch.inference_mode():
            logits = model(torch.tensor([prompt])).logits[0, -1].double()
        yes, no = (
            logits[sorted({*some} - {*others})].logsumexp(0) for some, others in (ids, ids[::-1])
        )
        found.append(float((yes - no).sigmoid()))
    return found


@pytest.mark.model
def test_an_item_is_read_once_and_answers_are_those_of_whole_prompts(tiny: Path) -> None:
    options = {"kind": IN_CHILD or "transformers", "model": str(tiny), "yes_or_no": True}
    with make_generator(options, "query") as judge:
        vars(judge)["_batch"] = 2
        long = QueryItem(QUERIES[0], Item("long", "sofa " * 600))
        asked = [pair.request(YES_OR_NO) for pair in [*PAIRS, long]]
        found = {answer.id: answer for answer in judge.generate(asked)}
    assert isinstance(found.pop(long.id), Failure)
    answers = [found[pair.id] for pair in PAIRS]
    assert all(isinstance(one, Completion) for one in answers)
    p = [one.confidence for one in answers if isinstance(one, Completion)]
    assert p == pytest.approx(by_whole_prompts(tiny), abs=1e-4 if IN_CHILD else 1e-5)
    assert len({round(one, 6) for one in p if one is not None}) == len(PAIRS)


@pytest.mark.model
def test_a_pair_is_judged_by_an_adapter_that_has_not_seen_it(tiny: Path, tmp_path: Path) -> None:
    names = ["0", "1", "2", "all"]
    for seed, name in enumerate(names):
        tiny_adapter(tiny, tmp_path / "judge" / name, seed=seed)
    parts = {"queries": {"q0": "0", "q1": "1"}, "items": {"i0": "0", "i1": "2"}}
    (tmp_path / "judge" / "judge.json").write_text(json.dumps(parts))
    store, options = Store(tmp_path / "store"), {"kind": "transformers"}
    pairs = [QueryItem(query, item) for query in QUERIES for item in ITEMS]

    def by(adapter: Path) -> list[float]:
        judge = YesOrNo({**options, "model": str(tiny), "adapter": adapter}, store)
        return judge.logits(pairs).tolist()

    alone = {name: by(tmp_path / "judge" / name) for name in names}
    judge = YesOrNo({**options, "model": str(tmp_path / "judge")}, store)
    # The third query and the third item were not learned from.
    seen, unseen = "0 0 all 1 1 all all all all", "0 - all - - all all all all"
    for new, asked in ((False, seen), (True, unseen)):
        named = [*enumerate(asked.split())]
        wanted = [math.nan if part == "-" else alone[part][at] for at, part in named]
        assert judge.logits(pairs, new=new) == pytest.approx(wanted, nan_ok=True)
    assert judge.asked == 0
    assert len({tuple(found) for found in alone.values()}) == len(names)
