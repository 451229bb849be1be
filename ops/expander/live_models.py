"""Models that answer queries which no query snapshot has: a generator in this process, or an
OpenAI-compatible endpoint.

A model answers only for the pair that it belongs to. In process, its fingerprint must be that in
the manifest of the serving pair. At an endpoint, its name tells the round where it contains
{round}; otherwise the operator is responsible.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cogr.errors import CogrError, SettingsError
from cogr.prompts import Prompter
from cogr.records import Query
from cogr.settings.indexing import kind_of
from cogr.settings.serving import ServingSettings
from cogr.snapshots import Manifest, Row, read_manifest
from indexers.backends import Pair
from indexers.generators import (
    Answer,
    Completion,
    EndpointGenerator,
    Generator,
    Request,
    fingerprint_hash,
    make_generator,
    query_row,
)
from indexers.generators.statistical.generator import Statistical
from indexers.workspace import Workspace, generator_options
from ops.expander.upstream import MODEL_CONCURRENCY, BadAnswerError, Metrics, Upstream

log = logging.getLogger(__name__)

MODEL_SECONDS = 10.0
"""What a model may take for an answer: language models need seconds, and what comes after the
deadline is cached for who asks next.
"""


class LocalModel:
    """A generator in a thread of its own, so that numpy and LightGBM don't block the event loop."""

    def __init__(self, generator: Generator, prompter: Prompter, k_max: int) -> None:
        self._generator, self._prompter, self._k_max = generator, prompter, k_max
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def ask(self, text: str) -> Row | None:
        return await asyncio.wrap_future(self._thread.submit(self.answer, text))

    def answer(self, text: str) -> Row | None:
        """Keywords for one text, in the calling thread."""
        answer = next(iter(self._generator.generate([_request(text, self._prompter)])), None)
        row = answer and _row(answer, text, self._k_max)
        return row if row and (row.keywords or self._generator.reads == "entity") else None

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._generator.close()


class EndpointModel:
    """A language model behind an endpoint. One attempt a query."""

    def __init__(self, generator: EndpointGenerator, prompter: Prompter, k_max: int) -> None:
        self._generator, self._prompter, self._k_max = generator, prompter, k_max
        self._client = generator.client()
        self._turns = asyncio.Semaphore(MODEL_CONCURRENCY)

    async def ask(self, text: str) -> Row | None:
        async with self._turns:
            answer = await self._generator.ask(self._client, _request(text, self._prompter))
        row = _row(answer, text, self._k_max)
        return row if row and row.keywords else None

    async def close(self) -> None:
        await self._client.close()


Model = LocalModel | EndpointModel
"""Writes keywords for one normalised text; None means that it has none. Raises UnavailableError."""


def _request(text: str, prompter: Prompter) -> Request:
    query = Query("search", text)
    return Request(query.id, query, prompter(query))


def _row(answer: Answer, text: str, k_max: int) -> Row | None:
    if isinstance(answer, Completion):
        return query_row(answer, Query(answer.id, text), k_max)
    if not answer.permanent:
        raise BadAnswerError("the model failed")
    return None


class Models:
    """The model that belongs to the pair that serves. It changes with the pair."""

    def __init__(
        self,
        open_workspace: Callable[[], Workspace],
        settings: ServingSettings,
        metrics: Metrics,
        k_max: int,
        name: str | None = None,
    ) -> None:
        self._open, self._live, self._metrics = open_workspace, settings.live, metrics
        self._k_max, self._name = k_max, name
        self._upstream = Upstream("model", metrics)
        self._model: Model | None = None
        self._of: Pair | None = None
        self._loading: asyncio.Task[None] | None = None
        self.state = "none"

    async def ask(self, pair: Pair, text: str) -> Row | None:
        """Keywords for a normalised text; None where no model belongs to the pair, or it has no
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
        """Close the model."""
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
        workspace = self._open()
        side = pair.query or pair.item
        known = side is not None and side.snapshot in workspace.store.list("snapshots")
        manifest = read_manifest(workspace.store, side.snapshot) if side and known else None
        kind = (
            str(manifest.generator.get("kind")) if self._live == "auto" and manifest else self._live
        )
        if kind in ("none", "auto"):
            return "none", None
        made = kind_of(kind)
        if made.model == "endpoint":
            return kind, self._endpoint(workspace, kind, pair)
        if not made.is_live or (manifest is None and pair != Pair()):
            return "none", None
        items = pair.item.snapshot if pair.item else None
        return kind, self._local(workspace, kind, manifest, items)

    def _local(
        self, workspace: Workspace, kind: str, manifest: Manifest | None, items: str | None
    ) -> Model:
        found: Generator | None = workspace.generator("query", kind)
        if isinstance(found, Statistical):
            found = found.live(manifest.generator, items) if manifest else found.looking(judge=None)
        elif found and manifest:
            same = fingerprint_hash(found.fingerprint) == fingerprint_hash(manifest.generator)
            found = found if same else None
        if manifest is not None and found is None:
            raise SettingsError(
                f"The generator {kind} of this configuration is not the one that wrote "
                f"{manifest.id}: other data, other options or another version; use the "
                "configuration that the snapshot was built with, or rebuild both sides."
            )
        assert found is not None
        model = LocalModel(found, workspace.prompter("query", kind), self._k_max)
        # The first answer fits or opens the artefact, which the others then use.
        model.answer("a query")
        return model

    def _endpoint(self, workspace: Workspace, kind: str, pair: Pair) -> Model:
        name = self._name or workspace.settings.generator.of("query").model
        if name is None:
            raise SettingsError(
                f"The live generator is {kind}, but neither --model nor generator.model names its "
                "model."
            )
        name = name.replace("{round}", str(pair.round))
        chosen = workspace.generator_settings("query", kind).model_copy(update={"model": name})
        once = {**generator_options(chosen), "retries": 0, "timeout": MODEL_SECONDS}
        generator = make_generator(once, "query")
        assert isinstance(generator, EndpointGenerator)
        return EndpointModel(generator, workspace.prompter("query", kind), self._k_max)
