"""A small OpenAI-compatible endpoint on a free port of this machine, which misbehaves as it is
told.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from aiohttp import web

Misbehave = Callable[[int, dict[str, Any]], "web.StreamResponse | None"]
"""(number of this request, its body) -> a response instead of the usual one, or None.

May raise ConnectionError.
"""


class FakeEndpoint:
    """Runs in a thread of its own, in a `with` block.

    Args:
        misbehave: see `Misbehave`.
        delay: seconds before every answer.
        context_words: prompts with more words are refused as too long.
        key: bearer token that is demanded.

    Attributes:
        bodies: bodies of all requests, as they came.
        times: monotonic time of each request.
        running: requests under way now.
        most_at_once: most requests that were under way together.
    """

    def __init__(
        self,
        misbehave: Misbehave | None = None,
        *,
        delay: float = 0.0,
        context_words: int = 10_000_000,
        key: str | None = None,
    ) -> None:
        self._misbehave = misbehave or (lambda number, body: None)
        self._delay = delay
        self._context_words = context_words
        self._key = key
        self.running = 0
        self.bodies: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.most_at_once = 0
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.port: int = runner.addresses[0][1]
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            return await self._respond(request)
        finally:
            self.running -= 1

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.times.append(time.monotonic())
        if self._key is not None and request.headers.get("Authorization") != f"Bearer {self._key}":
            return web.json_response({"error": {"message": "wrong key"}}, status=401)
        try:
            instead = self._misbehave(len(self.bodies), body)
        except ConnectionError:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if instead is not None:
            return instead
        await asyncio.sleep(self._delay)
        words = body["messages"][-1]["content"].split()
        if len(words) > self._context_words:
            message = (
                f"This model's maximum context length is {self._context_words} tokens, you asked "
                f"for {len(words)}."
            )
            return web.json_response(
                {"error": {"message": message, "type": "BadRequestError"}}, status=400
            )
        return web.json_response(completion(", ".join(words[-5:])))


def completion(text: str | None, finish: str = "stop") -> dict[str, Any]:
    """A chat completion as OpenAI's API spells it."""
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "fake",
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
        ],
        "usage": {
            "prompt_tokens": 1,
            "completion_tokens": len((text or "").split()),
            "total_tokens": 2,
        },
    }
