"""The generator `openai`: a language model behind any OpenAI-compatible endpoint (vLLM, SGLang, a
gateway, OpenAI).

Requests are in flight in parallel, as many as the endpoint can answer, up to a bound.
The client library retries transient failures (429, 5xx, time-outs, lost connections) with growing,
jittered pauses, and honours Retry-After. An error that concerns one prompt is a failure of that
prompt; an error that concerns every prompt ends the command at once, with the endpoint's message.
Parameters that the endpoint refuses are left out, see `openai_client.Form`.
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
from cogr.records import Dataset, Side
from cogr.settings import Sampling
from cogr.settings.table import check_url
from cogr.store import Store
from indexers.generators import Answer, Completion, Failure, GeneratorBase, Options, Request
from indexers.generators.openai_client import (
    FORMS,
    Form,
    Gate,
    Limit,
    is_too_long,
    limited_http_client,
    said_by,
)

log = logging.getLogger(__name__)

_TRANSIENT = (408, 409, 425, 429)
_REFUSED_AT_ONCE = 3
"""After so many refused prompts and no answer, the cause is the settings, not the prompts."""


class OpenAIOptions(Options):
    """Options of the kind `openai`.

    Attributes:
        base_url: the endpoint up to and with /v1, e.g. http://localhost:8000/v1.
        model: the model's name as the endpoint knows it.
        api_key: sent as bearer token; never printed and no part of the fingerprint.
        sampling: see `Sampling`; its seed is not sent, because a seed per request crashes vLLM on
            the CPU.
        concurrency: most requests under way at once.
        least_concurrency: fewest requests under way, however overloaded the endpoint is; equal to
            `concurrency`, the number is fixed.
        target_seconds: where answers take longer on average, fewer are asked for at once; half of
            `timeout` unless set.
        timeout: seconds that one attempt may take.
        retries: further attempts after 429, 5xx, time-outs, lost connections and malformed answers.
        give_up_after: failures in a row after which the endpoint counts as unreachable.
    """

    base_url: str
    model: str
    api_key: SecretStr | None = None
    sampling: Sampling = Sampling()
    concurrency: int = Field(default=32, ge=1)
    least_concurrency: int = Field(default=1, ge=1)
    target_seconds: float | None = Field(default=None, gt=0.0)
    timeout: float = Field(default=120.0, gt=0.0)
    retries: int = Field(default=6, ge=0)
    give_up_after: int = Field(default=20, ge=1)

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        check_url(url, ("http", "https"), "http://host:port/v1")
        return url

    @property
    def limit(self) -> Limit:
        """The limit of requests under way, at its first value."""
        least = min(self.least_concurrency, self.concurrency)
        return Limit(least, self.concurrency, self.target_seconds or self.timeout / 2)


class OpenAIGenerator(GeneratorBase):
    """Chat completions of an OpenAI-compatible endpoint.

    Raises:
        MissingExtraError: the package openai is not installed.
    """

    def __init__(self, options: OpenAIOptions) -> None:
        if importlib.util.find_spec("openai") is None:
            raise MissingExtraError("The generator openai", "openai")
        self.options = options
        # Kept from shard to shard, so that what was learned about the endpoint is not lost.
        self._limit = options.limit
        self._forms = FORMS
        self._answered = False
        self._refused = 0

    @property
    def fingerprint(self) -> Mapping[str, object]:
        return {
            "kind": "openai",
            "endpoint": without_credentials(self.options.base_url),
            "model": self.options.model,
            "server": "vllm",  # A setting of former versions, part of their answers' cache keys.
            "sampling": self.options.sampling.model_dump(exclude={"seed"}),
        }

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Answers in the order in which the endpoint gives them.

        Raises:
            ServiceError: the endpoint can't be reached, refuses the key, or fails `give_up_after`
                times in a row.
            GeneratorError: the endpoint has no such model or path, or refuses whatever it is asked.
        """
        with asyncio.Runner() as runner:
            yield from self._pump(runner.get_loop(), iter(requests))

    def _pump(
        self, loop: asyncio.AbstractEventLoop, requests: Iterator[Request]
    ) -> Iterator[Answer]:
        """Keep `concurrency` requests under way; yield answers as they arrive.

        The loop runs only while we wait.
        """
        client = self.client()
        running: set[asyncio.Task[Answer]] = set()
        failed_in_a_row, reason = 0, ""
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
                errors = [error for task in done if (error := task.exception()) is not None]
                for answer in [task.result() for task in done if task.exception() is None]:
                    passing = isinstance(answer, Failure) and not answer.permanent
                    failed_in_a_row = failed_in_a_row + 1 if passing else 0
                    reason = answer.reason if isinstance(answer, Failure) else reason
                    yield answer
                if errors:
                    raise errors[0]
                if failed_in_a_row >= self.options.give_up_after:
                    raise ServiceError(
                        f"{self._where} failed {failed_in_a_row} times in a row, the last time "
                        f"so: {reason}; try again later."
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
            http_client=limited_http_client(Gate(self._limit)),
        )

    @property
    def _where(self) -> str:
        return f"The endpoint {without_credentials(self.options.base_url)}"

    async def ask(self, client: Any, request: Request) -> Answer:
        """One answer. Raises ServiceError and GeneratorError as of `generate`."""
        import openai

        try:
            answer = await self._ask_in_a_form_it_takes(client, request)
        except openai.APITimeoutError:
            return Failure(
                request.id, f"no answer within {self.options.timeout:g} s", permanent=False
            )
        except openai.APIConnectionError as error:
            reason = said_by(error.__cause__ or error)
            raise ServiceError(
                f"{self._where} can't be reached ({reason}); start it or check base_url, then "
                "run the same command again."
            ) from error
        except openai.APIStatusError as error:
            return self._refused_by(request, error)
        self._answered = True
        return answer

    async def _ask_in_a_form_it_takes(self, client: Any, request: Request) -> Answer:
        """Ask without the parameters that the endpoint refuses. The form that it accepts is
        remembered, and logged once.
        """
        import openai

        forms, said = self._forms, ""
        while True:
            try:
                answer = await self._ask_until_sound(client, request, forms[0])
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if len(forms) == 1 or not forms[0].is_blamed(error):
                    raise
                forms, said = forms[1:], self._said(error)
                continue
            self._keep(forms, said)
            return answer

    def _keep(self, forms: Sequence[Form], said: str) -> None:
        """Begin with these forms from now on, and log it once."""
        given_up = len(self._forms) - len(forms)
        if given_up > 0:
            without = " and ".join(form.without for form in self._forms[1 : given_up + 1])
            self._forms = forms
            log.warning(
                "%s does not take %s (%s); it is asked without from now on.",
                self._where,
                without,
                said,
            )

    async def _ask_until_sound(self, client: Any, request: Request, form: Form) -> Answer:
        """Ask again when the answer is no completion; the library itself retries all other
        transient failures.
        """
        reason, body = (
            "",
            form.body(self.options.model, request.prompt.messages, self.options.sampling),
        )
        for _ in range(self.options.retries + 1):
            try:
                return _completion(request.id, await client.chat.completions.create(**body))
            except (ValueError, AttributeError, TypeError) as error:
                reason = f"the answer is no completion ({said_by(error)})"
        return Failure(request.id, reason, permanent=False)

    def _said(self, error: Exception) -> str:
        """The endpoint's message, without the key."""
        key = self.options.api_key.get_secret_value() if self.options.api_key else ""
        return said_by(error).replace(key, "***") if key else said_by(error)

    def _refused_by(self, request: Request, error: Any) -> Answer:
        """What a refusal means: a permanent or transient failure of this prompt, or an error that
        concerns every prompt.
        """
        status, said = error.status_code, self._said(error)
        if status in (401, 403):
            raise ServiceError(
                f"{self._where} refuses us with {status} ({said}); check the generator's api_key."
            ) from error
        if status == 404:
            raise GeneratorError(
                f"{self._where} has no model {self.options.model!r} or no /chat/completions "
                f"({said}); check base_url "
                "and model."
            ) from error
        if status == 413 or (status in (400, 422) and is_too_long(error)):
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


def _completion(id_: str, response: Any) -> Completion:
    """The first choice. Raises ValueError, AttributeError or TypeError when the
    response is none.
    """
    if not response.choices:
        raise ValueError("no choices")
    choice = response.choices[0]
    tokens = response.usage.completion_tokens if response.usage else 0
    # A refusal and an empty answer have no content; the rebuild sets empty answers aside.
    return Completion(
        id_, str(choice.message.content or ""), int(tokens), choice.finish_reason == "length"
    )


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


def make(
    options: OpenAIOptions,
    side: Side,  # noqa: ARG001
    dataset: Dataset | None,  # noqa: ARG001
    store: Store | None,  # noqa: ARG001
) -> OpenAIGenerator:
    """The registry's entry."""
    return OpenAIGenerator(options)
