"""Which snapshots serve, and how they come to: `order` has the one order in which every entry goes
live, `destination` opens the place.
"""

from indexers.release.order import Destination, MovedError, Released, release, roll_back
from indexers.workspace import Workspace

__all__ = ["Destination", "MovedError", "Released", "destination", "release", "roll_back"]


def destination(workspace: Workspace) -> Destination:
    """Where the settings want snapshots to serve: in the index of `serving.into`, or else behind
    the aliases of the backend. Raises UserError as `ForeignIndex`.
    """
    if not workspace.settings.serving.into.index:
        return Destination(workspace)
    from indexers.release.external import ForeignIndex

    return ForeignIndex(workspace)
