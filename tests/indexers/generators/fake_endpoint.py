"""A small OpenAI-compatible endpoint, which misbehaves as it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

from tests.web_server import Answer, Request, json_answer, serve

Misbehave = Callable[[int, dict[str, Any]], Answer | None]
"""(number of this request, its body) -> an answer instead of the usual one, or None.

May raise ConnectionError: the connection is closed without a word.
"""


class FakeEndpoint:
    """Answers in threads of its own, in a `with` block; writes a prompt's last five words. It waits
    `delay` seconds before, and refuses prompts of more than `context_words`. `bodies` has all
    requests as they came, and at most `most_at_once` were under way together.
    """

    def __init__(
        self,
        misbehave: Misbehave | None = None,
        *,
        delay: float = 0.0,
        context_words: int = 10_000_000,
    ) -> None:
        self._misbehave = misbehave or (lambda number, body: None)
        self._delay, self._context_words = delay, context_words
        self._running, self._lock, self._stack = 0, threading.Lock(), ExitStack()
        self.bodies: list[dict[str, Any]] = []
        self.most_at_once = 0

    def __enter__(self) -> Self:
        self.url = f"{self._stack.enter_context(serve(self._answer))}/v1"
        return self

    @property
    def settings(self) -> tuple[str, str]:
        """What has the generator `openai` ask it, as `key=value`."""
        return "generator.model=fake", f"generator.openai.base_url={self.url}"

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _answer(self, request: Request) -> Answer | None:
        body = json.loads(request.body)
        with self._lock:
            self.bodies.append(body)
            number = len(self.bodies)
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
        try:
            return self._respond(number, body)
        except ConnectionError:
            return None
        finally:
            with self._lock:
                self._running -= 1

    def _respond(self, number: int, body: dict[str, Any]) -> Answer:
        if (instead := self._misbehave(number, body)) is not None:
            return instead
        time.sleep(self._delay)
        words = body["messages"][-1]["content"].split()
        if len(words) > self._context_words:
            return refused(
                400,
                f"This model's maximum context length is {self._context_words} tokens, you asked "
                f"for {len(words)}.",
            )
        return json_answer(completion(", ".join(words[-5:])))


def refused(status: int, message: str) -> Answer:
    """An error as OpenAI's API spells it."""
    return json_answer({"error": {"message": message, "type": "BadRequestError"}}, status)


def completion(text: str | None, finish: str = "stop") -> dict[str, Any]:
    """A chat completion as OpenAI's API spells it."""
    words = len((text or "").split())
    message = {"role": "assistant", "content": text}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "fake",
        "choices": [{"index": 0, "finish_reason": finish, "message": message}],
        "usage": {"prompt_tokens": 1, "completion_tokens": words, "total_tokens": 1 + words},
    }
