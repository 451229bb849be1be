"""Which snapshots serve, and how they come to: `order` has the one order in which every entry goes
live.
"""

from indexers.release.order import Destination, Released, destination, release, roll_back

__all__ = ["Destination", "Released", "destination", "release", "roll_back"]
