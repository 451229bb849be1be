"""The model of `indexers.live` within the expander: it is loaded in the background when another
pair serves, and asked without blocking the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cogr.errors import CogrError
from cogr.snapshots import Row
from indexers.backends import Pair
from indexers.generators.openai_api import OpenAIGenerator
from indexers.live import MODEL_SECONDS, LiveModel, live_model
from indexers.workspace import Workspace
from ops.expander.upstream import MODEL_CONCURRENCY, Metrics, Upstream

log = logging.getLogger(__name__)


class LocalModel:
    """A generator in a thread of its own, so that numpy and LightGBM don't block the event loop."""

    def __init__(self, live: LiveModel) -> None:
        self._live = live
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def ask(self, text: str) -> Row | None:
        return await asyncio.wrap_future(self._thread.submit(self._live.answer, text))

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._live.generator.close()


class EndpointModel:
    """A language model behind an endpoint. One attempt a query."""

    def __init__(self, live: LiveModel, generator: OpenAIGenerator) -> None:
        self._live, self._generator = live, generator
        self._client = generator.client()
        self._turns = asyncio.Semaphore(MODEL_CONCURRENCY)

    async def ask(self, text: str) -> Row | None:
        async with self._turns:
            answer = await self._generator.ask(self._client, self._live.request(text))
        return self._live.row(answer, text)

    async def close(self) -> None:
        await self._client.close()


Model = LocalModel | EndpointModel
"""Writes keywords for one folded text; None means that it has none. Raises UnavailableError."""


class Models:
    """The model that belongs to the pair that serves. It changes with the pair."""

    def __init__(
        self,
        open_workspace: Callable[[], Workspace],
        metrics: Metrics,
        name: str | None = None,
    ) -> None:
        self._open, self._metrics, self._name = open_workspace, metrics, name
        self._upstream = Upstream("model", metrics)
        self._model: Model | None = None
        self._of: Pair | None = None
        self._loading: asyncio.Task[None] | None = None
        self.state = "none"

    async def ask(self, pair: Pair, text: str) -> Row | None:
        """Keywords for a folded text; None where no model belongs to the pair, or it has no
        keywords. Raises UnavailableError.
        """
        model = self._model
        if model is None or self._of != pair:
            return None
        self._metrics.asked.inc()
        return await self._upstream.call(lambda: model.ask(text), MODEL_SECONDS)

    async def follow(self, pair: Pair) -> None:
        """Begin to load the model of this pair in the background."""
        if self._loading is not None:
            self._loading.cancel()
        self._of, self.state = None, "loading"
        self._loading = asyncio.create_task(self._load(pair))
        self._loading.add_done_callback(self._loaded)

    async def close(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
        if self._model is not None:
            await self._model.close()

    def _loaded(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        self.state = "failed"
        if isinstance(error, CogrError):
            log.warning("No model answers unknown queries: %s", error)
        else:
            self._metrics.bugs.inc()
            log.error("The model could not be loaded.", exc_info=error)

    async def _load(self, pair: Pair) -> None:
        before, self._model = self._model, None
        if before is not None:
            await before.close()
        kind, self._model = await asyncio.to_thread(self._made, pair)
        self._of, self.state = pair, kind

    def _made(self, pair: Pair) -> tuple[str, Model | None]:
        live = live_model(self._open(), pair, self._name)
        if live is None:
            return "none", None
        if isinstance(live.generator, OpenAIGenerator):
            return live.kind, EndpointModel(live, live.generator)
        # The first answer opens the artefact, which the others then use.
        live.answer("a query")
        return live.kind, LocalModel(live)
