"""The generator `openai`: a language model behind any OpenAI-compatible endpoint (vLLM, SGLang, a
gateway, OpenAI).

At most `concurrency` requests are in flight. The client library retries transient failures (429,
5xx, time-outs, lost connections) with growing, jittered pauses, and honours Retry-After. A prompt
that still fails is set aside; an endpoint that fails prompt after prompt ends the command, with its
own message. What the endpoint refuses is left out from then on, see `LEFT_OUT`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from cogr.errors import GeneratorError, ServiceError
from cogr.redaction import learn, masked
from cogr.settings.indexing import Sampling
from cogr.settings.table import http_url
from indexers.generators import (
    YES_AND_NO,
    Answer,
    Completion,
    Context,
    Failure,
    Generator,
    Options,
    Request,
    decided,
)
from indexers.generators.model_folders import first_line

log = logging.getLogger(__name__)

LEFT_OUT: Mapping[str, re.Pattern[str]] = {
    part: re.compile(words, re.IGNORECASE)
    for part, words in {
        "extra": r"top_?k\b|chat_template_kwargs|enable_thinking",
        "max_tokens": r"\bmax_?tokens\b",
        "top_p": r"\btop_?p\b",
        "temperature": r"\btemperature\b",
        "system": r"\bsystem\b|\broles?\b|developer instruction",
    }.items()
}
"""Parts of a request that some models refuse -> the words in which endpoints say so, in the order
in which they are left out: `top_k` and the switch that turns thinking off; `max_tokens`, for which
`max_completion_tokens` is sent; what a model draws by itself; the system message, whose text goes
into the user's.
"""
_UNNAMED = ("extra", "max_tokens")
"""Parts that are left out although the refusal names none."""
_LIKELIEST = 20
"""Tokens whose log-probabilities are asked for, the most that OpenAI's own endpoint gives."""
_ABOVE_ONE = 1.01
"""A probability may be so large by rounding."""
_UNDECIDED = "the answer has no log-probabilities, which a judge needs"
_FAILED_IN_A_ROW = 20
"""After so many failures the endpoint counts as unreachable."""
_MALFORMED = (AttributeError, TypeError, LookupError, ValueError, RecursionError)
_SAID = 300
_TOO_LONG = ("context length", "context_length", "too long", "too many tokens", "max_model_len")


class OpenAIOptions(Options):
    """Options of the kind `openai`.

    Attributes:
        api_key: sent as bearer token; never printed and no part of the fingerprint.
        yes_or_no: answer with one token; a completion's confidence is P(yes) of yes and no.
        timeout: seconds that one attempt may take.
    """

    base_url: str
    model: str
    api_key: SecretStr | None = None
    sampling: Sampling = Sampling()
    yes_or_no: bool = False
    concurrency: int = Field(default=32, ge=1)
    timeout: float = Field(default=120.0, gt=0.0)
    retries: int = Field(default=6, ge=0)

    def make(self, _: Context) -> Generator:
        return OpenAIGenerator(self)

    _is_url = field_validator("base_url")(http_url)


class OpenAIGenerator(Generator):
    """Chat completions of an OpenAI-compatible endpoint. `ask` is for an event loop."""

    def __init__(self, options: OpenAIOptions) -> None:
        self.options = options
        if options.api_key:
            learn(options.api_key.get_secret_value())  # An endpoint may repeat what it was sent.
        # Kept from shard to shard, so that what was learned about the endpoint is not lost.
        self._left_out: frozenset[str] = frozenset()
        self._has_decided = False
        self._endpoint = without_credentials(options.base_url)

    @property
    def fingerprint(self) -> Mapping[str, object]:
        return {
            "kind": "openai",
            "endpoint": self._endpoint,
            "model": self.options.model,
            "sampling": self.options.sampling.model_dump(),
            **({"yes_or_no": True} if self.options.yes_or_no else {}),
        }

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Answers in the order in which the endpoint gives them.

        Raises:
            ServiceError: the endpoint can't be reached, refuses the key, or fails 20 times in a
                row.
            GeneratorError: the endpoint has no such model or path.
        """
        with asyncio.Runner() as runner:
            yield from self._pump(runner.get_loop(), iter(requests))

    def _pump(
        self, loop: asyncio.AbstractEventLoop, requests: Iterator[Request]
    ) -> Iterator[Answer]:
        client = self.client()
        running: set[asyncio.Task[Answer]] = set()
        failed = 0
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
                    yield answer
                    lasting = isinstance(answer, Completion) or answer.permanent
                    failed = 0 if lasting else failed + 1
                    if failed >= _FAILED_IN_A_ROW and isinstance(answer, Failure):
                        raise ServiceError(
                            f"The endpoint {self._endpoint} failed {failed} times in a row, most "
                            f"recently with: {answer.reason}; try again later, or check "
                            "generator.model and generator.openai."
                        )
        finally:
            loop.run_until_complete(_stop(client, running))

    def client(self) -> Any:
        """A client of the endpoint, for `ask`; close it (`await client.close()`)."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        key = self.options.api_key.get_secret_value() if self.options.api_key else "none"
        return AsyncOpenAI(
            base_url=self.options.base_url,
            api_key=key,
            timeout=self.options.timeout,
            max_retries=self.options.retries,
            # Prompts are for this host alone.
            http_client=DefaultAsyncHttpxClient(follow_redirects=False),
        )

    async def ask(self, client: Any, request: Request) -> Answer:
        """One answer. Raises ServiceError and GeneratorError as of `generate`."""
        import openai

        try:
            response = await self._response(client, request)
            if said := _error_in(response):
                reason = f"the answer is not a completion ({said})"
                return Failure(request.id, reason, permanent=False)
            if self.options.yes_or_no:
                return self._decision(request.id, response)
            choice = response.choices[0]
            tokens = int(response.usage.completion_tokens) if response.usage else 0
            text, cut = _text_of(choice.message.content), choice.finish_reason == "length"
            return Completion(request.id, text, tokens, cut)
        except openai.APITimeoutError:
            reason = f"no answer within {self.options.timeout:g} s"
            return Failure(request.id, reason, permanent=False)
        except openai.APIConnectionError as error:
            reason = _said_by(error.__cause__ or error)
            raise ServiceError(
                f"The endpoint {self._endpoint} can't be reached ({reason}); start it or check "
                "base_url, then run the same command again."
            ) from error
        except openai.APIStatusError as error:
            return self._refused_by(request, error)
        except (openai.OpenAIError, *_MALFORMED) as error:
            reason = f"the answer is not a completion ({_said_by(error)})"
            return Failure(request.id, reason, permanent=False)

    def _decision(self, id_: str, response: Any) -> Answer:
        try:
            tokens = response.choices[0].logprobs.content[0].top_logprobs
            listed = [(one.token.strip().casefold(), math.exp(one.logprob)) for one in tokens]
            least = min(p for _, p in listed)
            if not all(0 <= p <= _ABOVE_ONE for _, p in listed):
                raise ValueError
        except (*_MALFORMED, OverflowError):
            # Of a model that gives them to others, this pair alone lacks them for good.
            return Failure(id_, _UNDECIDED, permanent=self._has_decided)
        self._has_decided = True
        yes, no = (sum(p for token, p in listed if token == word) for word in YES_AND_NO)
        if not yes and not no:
            return Failure(id_, "neither yes nor no is among the likeliest answers")
        # Unlisted tokens are less likely than any listed one.
        return decided(id_, yes or least, no or least)

    async def _response(self, client: Any, request: Request) -> Any:
        import openai

        out, said = self._left_out, ""
        while True:
            try:
                response = await client.chat.completions.create(**self._body(request, out))
            except openai.APIStatusError as error:
                if (part := _refused_part(error, out)) is None:
                    raise
                out, said = out | self._left_out | {part}, _said_by(error)
                continue
            if out - self._left_out:
                self._left_out |= out
                log.warning(
                    "%s rejects some parameters (%s); they are left out from now on.",
                    *(self._endpoint, said),
                )
            return response

    def _body(self, request: Request, out: frozenset[str]) -> dict[str, Any]:
        sampling, prompt = self.options.sampling, request.prompt
        messages = prompt.merged if "system" in out else prompt.messages
        body: dict[str, Any] = {"model": self.options.model, "messages": messages}
        drawn = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        body |= {name: value for name, value in drawn.items() if name not in out}
        limit = "max_completion_tokens" if "max_tokens" in out else "max_tokens"
        body[limit] = sampling.max_tokens
        if self.options.yes_or_no:
            body |= {limit: 1, "logprobs": True, "top_logprobs": _LIKELIEST}
        beyond = {"top_k": sampling.top_k or -1, "chat_template_kwargs": {"enable_thinking": False}}
        return body if "extra" in out else body | {"extra_body": beyond}

    def _refused_by(self, request: Request, error: Any) -> Failure:
        status, said = error.status_code, _said_by(error)
        if status in (401, 403):
            raise ServiceError(
                f"The endpoint {self._endpoint} returned {status} ({said}); check "
                "generator.openai.api_key."
            ) from error
        if 300 <= status < 400:
            raise GeneratorError(
                f"The endpoint {self._endpoint} redirects to "
                f"{without_credentials(error.response.headers.get('location', '')) or 'no URL'}; "
                "set base_url to the address that answers."
            ) from error
        if status == 404:
            raise GeneratorError(
                f"The endpoint {self._endpoint} has no model {self.options.model!r} or no "
                f"/chat/completions ({said}); check base_url and model."
            ) from error
        if status == 413 or (status in (400, 422) and _is_too_long(error)):
            return Failure(request.id, f"the prompt is too long for the endpoint ({said})")
        return Failure(request.id, f"refused with {status} ({said})", permanent=False)


def _refused_part(error: Any, out: frozenset[str]) -> str | None:
    """The part of the request to leave out after this refusal; None where none will help."""
    # A server that fails to apply a chat template answers 500.
    if error.status_code not in (400, 422, 500) or _is_too_long(error):
        return None
    named = [part for part, words in LEFT_OUT.items() if words.search(str(error))]
    unnamed = () if error.status_code == 500 else _UNNAMED
    return next((part for part in (*named, *unnamed) if part not in out), None)


def _text_of(content: object) -> str:
    """The text of a message: of a list of parts that of its text parts, without the thinking."""
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else {} for part in content]
        texts = [part.get("text") for part in parts if part.get("type") in ("text", "output_text")]
        return "\n".join(text for text in texts if isinstance(text, str))
    # A refusal and an empty answer have no content; the rebuild sets empty answers aside.
    return content if isinstance(content, str) else ""


def _error_in(response: Any) -> str:
    """What a body with status 200 says of an error, as gateways do; "" where it has a choice."""
    choices = getattr(response, "choices", None) or ()
    extras = [getattr(one, "model_extra", None) or {} for one in (*choices, response)]
    if errors := [extra["error"] for extra in extras if extra.get("error")]:
        return _message(errors[0]) or "it gives no reason"
    return "" if choices else _message(extras[-1]) or _message(response) or "it has no choices"


def _is_too_long(error: Exception) -> bool:
    text = str(error).lower()
    return any(sign in text for sign in _TOO_LONG)


def _said_by(error: BaseException) -> str:
    return _message(getattr(error, "body", None)) or first_line(error)[:_SAID]


def _message(body: object) -> str:
    """The words of an error in one line; "" where it has none."""
    if isinstance(body, dict):
        body = next((body[key] for key in ("message", "detail", "error") if body.get(key)), None)
        return _message(body)
    return masked(" ".join(body.split()))[:_SAID] if isinstance(body, str) else ""


async def _stop(client: Any, running: set[asyncio.Task[Answer]]) -> None:
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await client.close()


def without_credentials(url: str) -> str:
    """The URL without user, password, query and fragment, so that it may be printed and stored; ""
    where it can't be read.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
