"""How an OpenAI-compatible endpoint is asked: a client that sends every try, retries included,
through a gate (`pacing`), and the forms of a request.

Endpoints disagree: OpenAI refuses top_k, its newer models `max_tokens` too, others know no
`max_completion_tokens`. The forms are tried from the one with the most parameters on; a form that
is refused for a parameter is followed by the next one. Imports openai when a client is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cogr.settings import Sampling
from indexers.generators.model_folders import first_line
from indexers.generators.pacing import Gate, Outcome


def paced_http_client(gate: Gate) -> Any:
    """The HTTP client for `openai.AsyncOpenAI`: its own one, proxies of the environment included,
    behind the gate.
    """
    from openai import DefaultAsyncHttpxClient

    http = _library_of(DefaultAsyncHttpxClient)

    class Paced(DefaultAsyncHttpxClient):  # type: ignore[misc]
        async def send(self, request: Any, **options: Any) -> Any:
            async with gate.passing() as passage:
                try:
                    response = await super().send(request, **options)
                except http.TimeoutException:
                    passage.outcome = "timeout"
                    raise
                except http.TransportError:
                    passage.outcome = "lost"
                    raise
                passage.outcome = outcome_of(response.status_code)
                return response

    return Paced(limits=http.Limits(max_connections=None, max_keepalive_connections=None))


def _library_of(client: type) -> Any:
    """The HTTP library that openai's client is made with: httpx, since openai 3 httpx2, and only
    that one is installed with it.
    """
    made_with = next(one for one in client.__mro__ if one.__name__ == "AsyncClient")
    return importlib.import_module(made_with.__module__.partition(".")[0])


def outcome_of(status: int) -> Outcome:
    """What a status says of the endpoint."""
    if status < 400:
        return "answered"
    if status == 429:
        return "limited"
    return "unavailable" if status >= 500 else "refused"


_SAID = 300
_TOO_LONG = (
    "context length",
    "context_length",
    "maximum context",
    "too long",
    "too many tokens",
    "max_model_len",
)
_EXTRA = ("top_k", "chat_template_kwargs", "enable_thinking")
# Of servers that refuse what they don't know without naming it.
_UNNAMED = (
    "unrecognized",
    "unknown",
    "unexpected",
    "unsupported",
    "not permitted",
    "extra",
    "additional propert",
)


@dataclass(frozen=True)
class Form:
    """One way to ask.

    Attributes:
        limit: the parameter that bounds the answer's length.
        extra: whether top_k and thinking off are sent, which are not of OpenAI's API.
        without: what this form leaves out or spells otherwise, compared with the one before it.
    """

    limit: Literal["max_tokens", "max_completion_tokens"]
    extra: bool
    without: str

    def body(
        self, model: str, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> dict[str, Any]:
        """The arguments of openai's `chat.completions.create`."""
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self.limit: sampling.max_tokens,
        }
        beyond = {"top_k": sampling.top_k or -1, "chat_template_kwargs": {"enable_thinking": False}}
        return body | {"extra_body": beyond} if self.extra else body

    def is_blamed(self, error: Exception) -> bool:
        """Whether a refusal is of what this form holds and the next one does not."""
        text = str(error).lower()
        if is_too_long(error) and self.limit not in text:
            return False
        if self.extra:
            return any(word in text for word in (*_EXTRA, *_UNNAMED, self.limit))
        return self.limit in text


_FULL = Form("max_tokens", extra=True, without="")
_PLAIN = Form("max_tokens", extra=False, without="top_k and chat_template_kwargs")
_NEWEST = Form("max_completion_tokens", extra=False, without="max_tokens")
_OLDER = Form("max_tokens", extra=False, without="max_completion_tokens")


def forms_for(server: Literal["vllm", "openai"]) -> Sequence[Form]:
    """The forms to try, in this order."""
    return (_FULL, _PLAIN, _NEWEST) if server == "vllm" else (_NEWEST, _OLDER)


def is_too_long(error: Exception) -> bool:
    """Whether a refusal says that the prompt does not fit."""
    text = str(error).lower()
    return any(sign in text for sign in _TOO_LONG)


def said_by(error: BaseException) -> str:
    """What an endpoint says in a refusal, without the JSON around it; else the error's own first
    line. At most 300 characters.
    """
    body = getattr(error, "body", None)
    message = body.get("message") or body.get("detail") if isinstance(body, dict) else None
    words = " ".join(message.split()) if isinstance(message, str) else first_line(error)
    return words[:_SAID]
