"""The generator `openai`: a language model behind any OpenAI-compatible endpoint (vLLM, SGLang, a
gateway, OpenAI).

At most `concurrency` requests are in flight. The client library retries transient failures (429,
5xx, time-outs, lost connections) with growing, jittered pauses, and honours Retry-After. An error
that concerns one prompt is a failure of that prompt; an error that concerns every prompt ends the
command at once, with the endpoint's message. Parameters that the endpoint refuses are left out, see
`FORMS`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field, SecretStr, field_validator

from cogr.errors import GeneratorError, MissingExtraError, ServiceError
from cogr.settings.indexing import Sampling
from cogr.settings.table import check_url
from indexers.generators import Answer, Completion, Context, Failure, Generator, Options, Request
from indexers.generators.model_folders import first_line

log = logging.getLogger(__name__)

FORMS: Sequence[tuple[str, bool, str]] = (
    ("max_tokens", True, ""),
    ("max_tokens", False, "top_k and chat_template_kwargs"),
    ("max_completion_tokens", False, "max_tokens"),
)
"""Ways to ask, tried in this order: the parameter that bounds an answer's length, whether `top_k`
and the switch that turns thinking off are sent, and what is new. Endpoints disagree: OpenAI refuses
top_k, its newer models `max_tokens` too, others do not know `max_completion_tokens`.
"""
_TRANSIENT = (408, 409, 425, 429)
_REFUSED_AT_ONCE = 3
"""After so many refused prompts and no answer, the cause is the settings, not the prompts."""
_FAILED_IN_A_ROW = 20
"""After so many failures the endpoint counts as unreachable."""
_SAID = 300
_TOO_LONG = (
    "context length",
    "context_length",
    "maximum context",
    "too long",
    "too many tokens",
    "max_model_len",
)


class OpenAIOptions(Options):
    """Options of the kind `openai`.

    Attributes:
        api_key: sent as bearer token; never printed and no part of the fingerprint.
        timeout: seconds that one attempt may take.
    """

    base_url: str
    model: str
    api_key: SecretStr | None = None
    sampling: Sampling = Sampling()
    concurrency: int = Field(default=32, ge=1)
    timeout: float = Field(default=120.0, gt=0.0)
    retries: int = Field(default=6, ge=0)

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        check_url(url, ("http", "https"), "http://host:port/v1")
        return url


class OpenAIGenerator(Generator):
    """Chat completions of an OpenAI-compatible endpoint.

    Raises:
        MissingExtraError: the package openai is not installed.
    """

    def __init__(self, options: OpenAIOptions) -> None:
        if importlib.util.find_spec("openai") is None:
            raise MissingExtraError("The generator openai", "openai")
        self.options = options
        # Kept from shard to shard, so that what was learned about the endpoint is not lost.
        self._forms = FORMS
        self._answered = False
        self._refused = 0

    @property
    def fingerprint(self) -> Mapping[str, object]:
        return {
            "kind": "openai",
            "endpoint": without_credentials(self.options.base_url),
            "model": self.options.model,
            "sampling": self.options.sampling.model_dump(),
        }

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Answers in the order in which the endpoint gives them.

        Raises:
            ServiceError: the endpoint can't be reached, refuses the key, or fails 20 times in a
                row.
            GeneratorError: the endpoint has no such model or path, or refuses whatever it is asked.
        """
        with asyncio.Runner() as runner:
            yield from self._pump(runner.get_loop(), iter(requests))

    def _pump(
        self, loop: asyncio.AbstractEventLoop, requests: Iterator[Request]
    ) -> Iterator[Answer]:
        client = self.client()
        running: set[asyncio.Task[Answer]] = set()
        failures: list[str] = []
        try:
            while True:
                while (
                    len(running) < self.options.concurrency
                    and (request := next(requests, None)) is not None
                ):
                    running.add(loop.create_task(self.ask(client, request)))
                if not running:
                    return
                waiting = asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                done, running = loop.run_until_complete(waiting)
                # Answers that arrived are yielded before an error is raised.
                for task in sorted(done, key=lambda task: task.exception() is not None):
                    answer = task.result()
                    if isinstance(answer, Failure) and not answer.permanent:
                        failures.append(answer.reason)
                    else:
                        failures.clear()
                    yield answer
                if len(failures) >= _FAILED_IN_A_ROW:
                    raise ServiceError(
                        f"{self._where} failed {len(failures)} times in a row, the last time with: "
                        f"{failures[-1]}; try again later."
                    )
        finally:
            loop.run_until_complete(_stop(client, running))

    def client(self) -> Any:
        """A client of the endpoint, for `ask`; close it (`await client.close()`)."""
        from openai import AsyncOpenAI

        key = self.options.api_key.get_secret_value() if self.options.api_key else "none"
        return AsyncOpenAI(
            base_url=self.options.base_url,
            api_key=key,
            timeout=self.options.timeout,
            max_retries=self.options.retries,
        )

    @property
    def _where(self) -> str:
        return f"The endpoint {without_credentials(self.options.base_url)}"

    async def ask(self, client: Any, request: Request) -> Answer:
        """One answer. Raises ServiceError and GeneratorError as of `generate`."""
        import openai

        try:
            response = await self._response(client, request)
        except openai.APITimeoutError:
            reason = f"no answer within {self.options.timeout:g} s"
            return Failure(request.id, reason, permanent=False)
        except openai.APIConnectionError as error:
            reason = _said_by(error.__cause__ or error)
            raise ServiceError(
                f"{self._where} can't be reached ({reason}); start it or check base_url, then "
                "run the same command again."
            ) from error
        except openai.APIStatusError as error:
            return self._refused_by(request, error)
        except ValueError as error:
            response = error
        self._answered = True
        return _completion(request.id, response)

    async def _response(self, client: Any, request: Request) -> Any:
        import openai

        forms, said = self._forms, ""
        while True:
            try:
                found = await client.chat.completions.create(**self._body(request, forms[0]))
                break
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                settled = self._answered and len(forms) <= len(self._forms)
                if len(forms) == 1 or settled or _is_too_long(error):
                    raise
                forms, said = forms[1:], self._said(error)
        if len(forms) < len(self._forms):
            left_out = " and ".join(new for *_, new in self._forms[1 : 1 - len(forms) or None])
            log.warning(
                "%s does not take %s (%s); requests leave it out from now on.",
                *(self._where, left_out, said),
            )
            self._forms = forms
        return found

    def _body(self, request: Request, form: tuple[str, bool, str]) -> dict[str, Any]:
        sampling, (limit, extra, _) = self.options.sampling, form
        body: dict[str, Any] = {"model": self.options.model, "messages": request.prompt.messages}
        body |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
        body[limit] = sampling.max_tokens
        beyond = {"top_k": sampling.top_k or -1, "chat_template_kwargs": {"enable_thinking": False}}
        return body | {"extra_body": beyond} if extra else body

    def _said(self, error: Exception) -> str:
        key = self.options.api_key.get_secret_value() if self.options.api_key else ""
        return _said_by(error).replace(key, "***") if key else _said_by(error)

    def _refused_by(self, request: Request, error: Any) -> Answer:
        status, said = error.status_code, self._said(error)
        if status in (401, 403):
            raise ServiceError(
                f"{self._where} refuses us with {status} ({said}); check the generator's api_key."
            ) from error
        if status == 404:
            raise GeneratorError(
                f"{self._where} has no model {self.options.model!r} or no /chat/completions "
                f"({said}); check base_url and model."
            ) from error
        if status == 413 or (status in (400, 422) and _is_too_long(error)):
            return Failure(request.id, f"the prompt is too long for the endpoint ({said})")
        # The client library has retried already where that could help.
        if status < 500 and status not in _TRANSIENT:
            self._refused += 1
            if not self._answered and (
                status not in (400, 422) or self._refused >= _REFUSED_AT_ONCE
            ):
                raise GeneratorError(
                    f"{self._where} refuses what it is asked with {status} ({said}); change the "
                    "settings generator.* accordingly."
                ) from error
        return Failure(request.id, f"refused with {status} ({said})", permanent=False)


def _is_too_long(error: Exception) -> bool:
    text = str(error).lower()
    return any(sign in text for sign in _TOO_LONG)


def _said_by(error: BaseException) -> str:
    body = getattr(error, "body", None)
    message = body.get("message") or body.get("detail") if isinstance(body, dict) else None
    words = " ".join(message.split()) if isinstance(message, str) else first_line(error)
    return words[:_SAID]


def _completion(id_: str, response: Any) -> Answer:
    try:
        choice = response.choices[0]
        tokens = int(response.usage.completion_tokens) if response.usage else 0
        # A refusal and an empty answer have no content; the rebuild sets empty answers aside.
        text, cut = str(choice.message.content or ""), choice.finish_reason == "length"
    except (AttributeError, TypeError, LookupError) as error:
        wrong = response if isinstance(response, ValueError) else error
        reason = f"the answer is not a completion ({_said_by(wrong)})"
        return Failure(id_, reason, permanent=False)
    return Completion(id_, text, tokens, cut)


async def _stop(client: Any, running: set[asyncio.Task[Answer]]) -> None:
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await client.close()


def without_credentials(url: str) -> str:
    """The URL without user, password, query and fragment, so that it may be printed and stored."""
    parts = urlsplit(url)
    host = (
        f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or ""
    )
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit((parts.scheme, host + port, parts.path.rstrip("/"), "", ""))


def make(options: OpenAIOptions, _: Context) -> OpenAIGenerator:
    """The registry's entry."""
    return OpenAIGenerator(options)
