"""The kind `openai` against a real HTTP endpoint that misbehaves: retries, give-ups, and what is
said of them.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cogr.errors import CogrError, GeneratorError, ServiceError, SettingsError
from cogr.prompts import PAPER, Prompter
from cogr.records import Query
from cogr.settings.indexing import GeneratorSettings
from indexers.generators import Completion, Failure, Request
from indexers.generators.openai_api import OpenAIGenerator, OpenAIOptions, without_credentials
from indexers.workspace import generator_options
from tests.indexers.generators.fake_endpoint import FakeEndpoint, completion, refused
from tests.web_server import Answer, json_answer, serve
from tests.web_server import Request as WebRequest


def requests(count: int) -> Iterator[Request]:
    prompter = Prompter(PAPER["query"])
    for n in range(count):
        query = Query(f"q{n}", f"sofa {n}")
        yield Request(query.id, query, prompter(query))


def generator(url: str, **options: Any) -> OpenAIGenerator:
    return OpenAIGenerator(
        OpenAIOptions.model_validate({"base_url": url, "model": "fake", **options})
    )


def content(parts: object) -> dict[str, Any]:
    """A completion whose content is this."""
    found = completion("x")
    found["choices"][0]["message"]["content"] = parts
    found["usage"] = None
    return found


def failing_choice(message: str) -> dict[str, Any]:
    """An answer that ends in an error, as gateways pass it on."""
    found = completion("sofa, half a")
    found["choices"][0] |= {"finish_reason": "error", "error": {"message": message, "code": 502}}
    return found


PARTS = [
    ([{"type": "reasoning", "text": "hm, well"}, {"type": "output_text", "text": "sofa"}], "sofa"),
    ([{"type": "text", "text": "sofa,"}, {"type": "text", "text": "couch"}], "sofa,\ncouch"),
    ([{"type": "refusal", "refusal": "no, never"}, None, "loose"], ""),
    ({"sofa": "couch"}, ""),
]


def test_429_and_a_lost_connection_are_asked_again() -> None:
    def busy(number: int, body: dict[str, Any]) -> Answer | None:
        if number == 2:
            raise ConnectionError
        return refused(429, "later") if number == 1 else None

    with FakeEndpoint(busy) as endpoint:
        found = list(generator(endpoint.url, retries=2).generate(requests(1)))
    assert isinstance(found[0], Completion)
    first, _, sent = endpoint.bodies
    assert first == sent
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert sent["messages"][1]["content"].endswith("User query: sofa 0")
    drawn = [sent[name] for name in ("temperature", "top_p", "top_k", "max_tokens")]
    assert drawn == [0.7, 0.8, 20, 512]


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ((200, b"{oops"), "the answer is not a completion"),
        ((200, b"[" * 100_000), "the answer is not a completion"),
        (
            json_answer({**completion("x"), "choices": None}),
            "the answer is not a completion (it has no choices)",
        ),
        *(
            (json_answer(body), "the answer is not a completion (too many requests)")
            for body in (
                {**completion("x"), "choices": None, "error": {"message": "too many requests"}},
                {"object": "error", "message": "too many\nrequests", "code": 50},
                "too many requests",
                failing_choice("too many requests"),
            )
        ),
        (refused(400, "content filter"), "refused with 400 (content filter)"),
        (json_answer(completion(None)), Completion("q1", "")),
        *((json_answer(content(parts)), Completion("q1", wanted)) for parts, wanted in PARTS),
        (json_answer(completion("a, b", "length")), Completion("q1", "a, b", 2, truncated=True)),
    ],
)
def test_one_bad_answer_fails_for_now_and_alone(answer: Answer, wanted: Completion | str) -> None:
    def misbehave(number: int, body: dict[str, Any]) -> Answer | None:
        return answer if body["messages"][-1]["content"].endswith("sofa 1") else None

    with FakeEndpoint(misbehave) as endpoint:
        found = {one.id: one for one in generator(endpoint.url, retries=2).generate(requests(3))}
    odd = found.pop("q1")
    if isinstance(wanted, str):
        assert isinstance(odd, Failure)
        assert not odd.permanent
        assert odd.reason.startswith(wanted)
    else:
        assert odd == wanted
    assert all(isinstance(one, Completion) for one in found.values())


BOTH = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."


@pytest.mark.parametrize(
    ("refusals", "left_out"),
    [
        ({"top_p": BOTH}, "top_p"),
        (
            {
                "top_k": "Unrecognized request argument supplied: top_k",
                "max_tokens": "Use 'max_completion_tokens' in place of 'max_tokens'.",
                "temperature": "temperature: only 1 is allowed",
                "top_p": 'Unknown name "topP"',
            },
            "top_k max_tokens temperature top_p",
        ),
    ],
)
def test_what_an_endpoint_refuses_is_left_out_remembered_and_said_once(
    caplog: pytest.LogCaptureFixture, refusals: dict[str, str], left_out: str
) -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer | None:
        return next((refused(400, said) for name, said in refusals.items() if name in body), None)

    with FakeEndpoint(answer) as endpoint:
        asked = generator(endpoint.url, concurrency=4)
        found = list(asked.generate(requests(20)))
        refused_ones = len(endpoint.bodies) - 20
        # Only those that were under way together; the next call knows.
        assert len(refusals) <= refused_ones <= 4 * len(refusals)
        found += asked.generate(requests(5))
    assert len(endpoint.bodies) == 25 + refused_ones
    assert all(isinstance(one, Completion) for one in found)
    drawn = {"temperature", "top_p", "top_k", "max_tokens"} - endpoint.bodies[-1].keys()
    assert drawn == {*left_out.split()}
    (said,) = [one.message for one in caplog.records if "rejects some parameters" in one.message]
    assert [*refusals.values()][-1] in said


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "Developer instruction is not enabled for this model"),
        (422, "messages.0.role: Input should be 'user' or 'assistant'"),
        (500, "Jinja Exception: System role not supported"),
    ],
)
def test_a_system_message_that_is_refused_goes_into_the_users(status: int, said: str) -> None:
    def refuse(number: int, body: dict[str, Any]) -> Answer | None:
        return refused(status, said) if len(body["messages"]) > 1 else None

    prompts = [*requests(3)]
    with FakeEndpoint(refuse) as endpoint:
        found = list(generator(endpoint.url, concurrency=1, retries=0).generate(prompts))
    assert all(isinstance(one, Completion) for one in found)
    assert len(endpoint.bodies) == 4
    (message,) = endpoint.bodies[-1]["messages"]
    asked = prompts[-1].prompt
    assert message == {"role": "user", "content": f"{asked.system}\n\n{asked.user}"}
    assert endpoint.bodies[-1]["temperature"] == 0.7


@pytest.mark.parametrize(
    ("status", "says", "most"),
    [
        (402, r"20 times in a row.*refused with 402 \(no credit\)", 20),
        (404, "no model 'fake'", 1),
        (401, r"returned 401 \(no credit\).*api_key", 1),
    ],
)
def test_what_is_refused_for_all_is_told_in_the_endpoints_words(
    status: int, says: str, most: int
) -> None:
    with (
        FakeEndpoint(lambda number, body: refused(status, "no credit")) as endpoint,
        pytest.raises(CogrError, match=says),
    ):
        list(generator(endpoint.url, concurrency=1).generate(requests(50)))
    assert len(endpoint.bodies) <= most


def test_a_prompt_is_not_taken_to_another_host() -> None:
    with FakeEndpoint() as other:
        place = other.url.replace("http://", "http://me:secret@")

        def away(_: WebRequest) -> Answer:
            return 307, b"moved"

        with serve(away, headers={"location": f"{place}/chat/completions"}) as url:
            with pytest.raises(GeneratorError, match=f"redirects to {other.url}") as raised:
                list(generator(f"{url}/v1", retries=0).generate(requests(2)))
    assert "secret" not in str(raised.value)
    assert other.bodies == []


def test_requests_go_in_parallel_up_to_the_bound() -> None:
    with FakeEndpoint(delay=0.05) as endpoint:
        found = list(generator(endpoint.url, concurrency=5).generate(requests(20)))
    assert len(found) == 20
    assert endpoint.most_at_once == 5


def test_a_time_out_fails_for_now() -> None:
    with FakeEndpoint(delay=5.0) as endpoint:
        started = time.monotonic()
        found = list(generator(endpoint.url, timeout=0.2, retries=0).generate(requests(1)))
    assert found == [Failure("q0", "no answer within 0.2 s", permanent=False)]
    assert time.monotonic() - started < 4


def test_the_variables_of_openais_clients_count_where_the_settings_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(**settings: Any) -> OpenAIOptions:
        named = {"name": "openai", "model": "m", "openai": settings}
        options = generator_options(GeneratorSettings.model_validate(named))
        options.pop("kind")
        return OpenAIOptions.model_validate(options)

    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(SettingsError, match="OPENAI_BASE_URL"):
        made()
    monkeypatch.setenv("OPENAI_BASE_URL", "http://from-the-environment/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-environment")
    options = made()
    assert options.base_url == "http://from-the-environment/v1"
    assert options.api_key.get_secret_value() == "key-of-the-environment"
    assert "key-of-the-environment" not in repr(options)
    options = made(base_url="http://set/v1", api_key="set")
    assert (options.base_url, options.api_key.get_secret_value()) == ("http://set/v1", "set")


def test_nobody_at_home() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://user:secret@127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(ServiceError, match="base_url") as raised:
            list(generator(url, retries=0).generate(requests(3)))
    assert "secret" not in str(raised.value)
    assert raised.value.exit_status == 3


def test_urls_are_printed_without_secrets() -> None:
    made = generator("https://me:pass@host:8000/v1/?key=1", api_key="sk-secret")
    assert "sk-secret" not in json.dumps(made.fingerprint) + repr(made.options)
    assert made.fingerprint["endpoint"] == "https://host:8000/v1"
    assert without_credentials("http://u:p@[::1]:80/v1#y") == "http://[::1]:80/v1"
    assert without_credentials("http://u:p@[::1/v1") == ""
