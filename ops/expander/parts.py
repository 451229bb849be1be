"""The expander's parts as the settings name them, put together.

Nothing is connected to before the first call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from cogr.settings.serving import ServingSettings
from indexers.workspace import Workspace
from ops.expander.expander import Expander
from ops.expander.follower import Follower
from ops.expander.live_models import Models
from ops.expander.metrics import Metrics
from ops.expander.precomputed import ClusterIndex, QueryIndex, StoreIndex
from ops.expander.redis_cache import Cache

FOLLOW_SECONDS = 1.0
"""How often to look which pair serves: one small request a second is nothing to a cluster."""


@dataclass(frozen=True)
class Parts:
    """What an application is made of."""

    settings: ServingSettings
    metrics: Metrics
    cache: Cache | None
    index: QueryIndex
    models: Models
    follower: Follower
    expander: Expander
    closing: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """What else is to be closed with them."""

    def state(self) -> dict[str, Any]:
        """For /readyz: what is followed and what answers; no secrets, no addresses."""
        pair = self.follower.pair
        return {
            "item": pair.item and pair.item.snapshot,
            "query": pair.query and pair.query.snapshot,
            "pair_matches": pair.matches,
            "pair_seen_seconds_ago": self.follower.seen_ago,
            "pair_problem": self.follower.problem or None,
            "cache": self.cache is not None,
            "model": self.models.state,
        }

    async def close(self) -> None:
        """Give up what is under way and close every connection."""
        for close in self.closing:
            await close()
        await self.expander.close()
        await self.models.close()
        await self.index.close()
        if self.cache is not None:
            await self.cache.close()


def make_parts(workspace: Workspace, follow_seconds: float = FOLLOW_SECONDS) -> Parts:
    """From a configuration. Call it inside a running event loop.

    Raises:
        SettingsError: an address or a limit that is none.
    """
    settings, serving = workspace.settings, workspace.settings.serving
    metrics = Metrics()
    cache = Cache(settings.redis, serving, metrics) if settings.redis.url else None
    index = make_index(workspace, metrics)
    # A new pair may be of new data: every model is made from the configuration, read anew.
    models = Models(lambda: Workspace(settings), serving, metrics, settings.keywords.k_max)
    follower = Follower(index.pair, models.follow, follow_seconds, metrics)
    expander = Expander(cache, index, models, serving, metrics, settings.keywords.k_max)
    return Parts(serving, metrics, cache, index, models, follower, expander)


def make_index(workspace: Workspace, metrics: Metrics) -> QueryIndex:
    """The cluster, or the memory backend of the store. Raises SettingsError."""
    serving = workspace.settings.serving
    if workspace.settings.backend_name == "opensearch":
        return ClusterIndex(workspace.settings.opensearch, serving, metrics)
    return StoreIndex(workspace.backend, workspace.store, serving, metrics)
