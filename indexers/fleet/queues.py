"""Which queue a shard goes to, and which queues a worker listens to: one for each side
and model.
"""

from __future__ import annotations

import hashlib

from cogr.records import Side
from cogr.settings import GeneratorSettings
from indexers.fleet.records import FORMAT


def queue_of(side: Side, settings: GeneratorSettings) -> str:
    """The queue of one side and one model. Workers that hold another model don't listen to it.

    The task format is part of it: an older worker does not even see the tasks of a newer
    coordinator.

    Args:
        settings: the generator's, with `auto` decided.
    """
    digest = hashlib.sha256(
        f"{settings.model or ''}\0{settings.adapter or ''}".encode()
    ).hexdigest()[:8]
    return f"v{FORMAT}.{side}.{settings.name}.{digest}"
