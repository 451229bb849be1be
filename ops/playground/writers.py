"""Keywords of queries that a pair's snapshot does not hold, by the model that wrote the pair; also
for pairs that do not serve.

The expander keeps the model of what serves alone; these are of the other pair that the page shows.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from cogr.settings.serving import ServingSettings
from cogr.snapshots import Manifest
from indexers.workspace import Workspace
from ops.expander.circuit_breaker import UnavailableError
from ops.expander.follower import Pair, ServedSide
from ops.expander.live_models import Models
from ops.expander.prometheus import Metrics

_KEPT = 2


class Writers:
    """The models of the pairs that were asked for last."""

    def __init__(self, workspace: Workspace, settings: ServingSettings) -> None:
        self._workspace, self._settings = workspace, settings
        self._models: OrderedDict[Pair, Models] = OrderedDict()

    async def ask(
        self, item: Manifest, query: Manifest | None, text: str
    ) -> tuple[tuple[str, ...] | None, str]:
        """Keywords of a normalised text, or None and the expander's word for why there are none."""
        pair = Pair(_side(item), _side(query) if query else None)
        models = await self._of(pair)
        try:
            async with asyncio.timeout(self._settings.model_timeout):
                await models.loaded()
                found = await models.ask(pair, text)
        except TimeoutError:
            return None, "deadline"
        except UnavailableError:
            return None, "away"
        return found, "" if found is not None else "unknown"

    async def _of(self, pair: Pair) -> Models:
        models = self._models.pop(pair, None)
        if models is None:
            settings = self._workspace.settings
            models = Models(
                lambda: Workspace(settings), self._settings, Metrics(), settings.keywords.k_max
            )
            await models.follow(pair)
        self._models[pair] = models
        while len(self._models) > _KEPT:
            _, oldest = self._models.popitem(last=False)
            await oldest.close()
        return models

    async def close(self) -> None:
        """Close the models."""
        for models in self._models.values():
            await models.close()


def _side(manifest: Manifest) -> ServedSide:
    return ServedSide(manifest.id, "", manifest.round, manifest.normaliser, manifest.k_max)
