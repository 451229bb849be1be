"""The backlog of queries that could not be answered, worked off by `cogr-ops backlog`.

`work_off` answers it with the configuration's generator, and caches the keywords, where the
expander looks first. A text leaves the backlog only after it was answered, or can't be; a run that
is killed loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from cogr.errors import ServiceError, SettingsError, SnapshotError
from cogr.progress import Say
from cogr.records import Query
from indexers.generators.protocol import Completion, Generator, Request
from indexers.workspace import Workspace
from ops.expander.circuit_breaker import BadAnswerError, UnavailableError
from ops.expander.entries import from_completion
from ops.expander.follower import Pair
from ops.expander.precomputed import make_index
from ops.expander.prometheus import Metrics
from ops.expander.redis_cache import Cache

BATCH = 256
"""Queries that are generated, then written, together."""


@dataclass
class Worked:
    """What `work_off` did: queries answered, and queries that have no keywords."""

    answered: int = 0
    without: int = 0


def work_off(workspace: Workspace, limit: int | None = None, say: Say = lambda _: None) -> Worked:
    """Answer the backlog, the most asked first, up to `limit` queries.

    Raises:
        SettingsError: redis.url is not set.
        SnapshotError: no pair of one round serves, so that there is nothing to write keywords for.
        ServiceError: Redis, the backend or the generator is away. What was answered stays.
    """
    if not workspace.settings.redis.url:
        raise SettingsError(
            "The backlog is in Redis, and redis.url is not set: set redis.url or COGR_REDIS__URL."
        )
    with workspace.generator("query") as generator:
        return asyncio.run(_work_off(workspace, generator, limit, say))


async def _work_off(
    workspace: Workspace, generator: Generator, limit: int | None, say: Say
) -> Worked:
    serving, metrics = workspace.settings.serving, Metrics()
    index, cache = make_index(workspace, metrics), Cache(workspace.settings.redis, serving, metrics)
    done = Worked()
    try:
        pair = await index.pair()
        if pair.item is None or (pair.query is not None and not pair.matches):
            raise SnapshotError(
                "No pair of one round serves: run cogr-index publish with an item and a query "
                "snapshot."
            )
        while (
            left := BATCH if limit is None else min(BATCH, limit - done.answered - done.without)
        ) > 0:
            texts = await cache.most_asked(left)
            if not texts:
                break
            await _answer(workspace, generator, cache, pair, texts, done)
            say(f"{done.answered} queries answered, {done.without} without keywords")
    except (UnavailableError, BadAnswerError) as error:
        raise ServiceError(
            f"The backlog can't be worked off: {error}; run the same command again later."
        ) from error
    finally:
        await index.close()
        await cache.close()
    return done


async def _answer(
    workspace: Workspace,
    generator: Generator,
    cache: Cache,
    pair: Pair,
    texts: Sequence[str],
    done: Worked,
) -> None:
    prompter = workspace.prompter("query")
    queries = [Query(f"backlog {number}", text) for number, text in enumerate(texts)]
    requests = [Request(query.id, query, prompter(query)) for query in queries]
    text_of = {query.id: query.text for query in queries}
    # Generators are synchronous, and some run an event loop of their own.
    answers = await asyncio.to_thread(
        lambda: list(islice(generator.generate(requests), len(requests)))
    )
    found = {
        text_of[answer.id]: from_completion(
            answer, text_of[answer.id], workspace.settings.keywords.k_max
        )
        for answer in answers
        if isinstance(answer, Completion)
    }
    if found:
        await cache.write(pair, found)
    await cache.remove_from_backlog(texts)
    done.answered += len(found)
    done.without += len(texts) - len(found)
