"""What becomes of shards that break, and of those that an earlier coordinator left: taken over,
split, or set aside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pyroaring import BitMap

from cogr.matching.postings import to_bitmap
from cogr.settings.fleet import FleetSettings
from cogr.store import Store
from indexers.build.cache import GenerationCache, Keys
from indexers.build.plan import Job, Plan
from indexers.fleet.ledger import Ledger, Shard
from indexers.fleet.records import Done, GivenUp, RunFolder, shard_name
from indexers.fleet.shards import Keyed, read_keys, write_shard
from indexers.generators.protocol import Failure
from indexers.telemetry import traces

PARTS = 8
"""A shard that takes workers down is split into so many: few deaths until the one entity is alone,
few shards.
"""
DEATHS = 2
"""A shard that nothing is known of may take down so many workers before it is split: machines die,
too.
"""


class Mender:
    """Decides when a shard is hopeless and what comes in its place.

    Args:
        job, plan: what is rebuilt.
        folder: the run's files.
        settings: how many workers one entity may take down.
    """

    def __init__(self, job: Job, plan: Plan, folder: RunFolder, settings: FleetSettings) -> None:
        self._job = job
        self._plan = plan
        self._folder = folder
        self._settings = settings
        self._cache = GenerationCache(job.store, job.generator.fingerprint)

    def requests(self, positions: Sequence[int]) -> list[Keyed]:
        """Keys and requests of positions in the plan."""
        return [(self._plan.keys[i], self._job.request(self._plan.entities[i])) for i in positions]

    def write_again(self, shard: Shard) -> None:
        """Write the requests of a shard that a worker could not do: they may be gone or damaged."""
        write_shard(self._folder, shard.name, self.requests(shard.positions), shard.span.carrier)

    def hopeless(self, shard: Shard) -> bool:
        """Whether it is to be split, or its one entity set aside."""
        if len(shard.positions) == 1:
            return shard.deaths >= self._settings.attempts
        return shard.deaths >= (1 if shard.suspect else DEATHS)

    def give_up(self, shard: Shard, term: int, number: int) -> tuple[list[Shard], int]:
        """Replace a shard by parts of what it still lacks, or set its entity aside.

        Args:
            term, number: name the parts.

        Returns:
            The parts, and how many of its entities have an answer or a reason now.
        """
        left = self._missing(shard.positions)
        if len(left) == 1 and len(shard.positions) == 1:
            self._set_aside(shard, left[0])
            return [], 1
        size = max(1, -(-len(left) // PARTS))
        groups = [left[start : start + size] for start in range(0, len(left), size)]
        names = [shard_name(term, number + i, len(group)) for i, group in enumerate(groups)]
        parts = [
            Shard(name, group, suspect=True) for name, group in zip(names, groups, strict=True)
        ]
        # First the word that it is given up: if this process dies now, its entities are simply
        # planned again.
        self._folder.write(
            GivenUp(shard=shard.name, why=shard.last_words, parts=tuple(names)),
            f"given_up/{shard.name}",
        )
        for part in parts:
            part.span = traces.begin(
                "shard", shard=part.name, entities=len(part.positions), part_of=shard.name
            )
            write_shard(self._folder, part.name, self.requests(part.positions), part.span.carrier)
        return parts, len(shard.positions) - len(left)

    def _missing(self, positions: Sequence[int]) -> list[int]:
        found = self._cache.missing(Keys.of(self._plan.keys[i] for i in positions))
        return [positions[i] for i in found]

    def _set_aside(self, shard: Shard, position: int) -> None:
        """Remember it as a permanent failure: with another model or prompt its key is another one,
        and it is tried again.
        """
        id_ = self._plan.entities[position].id
        reason = f"took down {shard.deaths} workers, the last time: {shard.last_words}"
        self._cache.add([(self._plan.keys[position], Failure(id_, reason))])
        self._folder.write(
            GivenUp(shard=shard.name, why=reason, set_aside={id_: reason}), f"given_up/{shard.name}"
        )

    def adopt(self, ledger: Ledger, missing: BitMap) -> BitMap:
        """Take over the open shards that an earlier coordinator has left.

        Returns the positions that they cover.
        """
        given_up = {
            name: self._folder.read(GivenUp, f"given_up/{name}")
            for name in self._folder.names("given_up")
        }
        suspects = {
            part for record in given_up.values() if record is not None for part in record.parts
        }
        covered = BitMap()
        for name in sorted(
            {*self._folder.names("shards")} - {*self._folder.names("done")} - given_up.keys()
        ):
            _, positions = self._plan.keys.find(Keys.of(read_keys(self._folder, name)))
            own = (to_bitmap(positions) & missing) - covered
            if own:
                ledger.add(Shard(name, list(own), suspect=name in suspects))
                covered |= own
            else:
                # Its worker died between the last answer and the result.
                self._folder.write(
                    GivenUp(shard=name, why="all of its answers are there"), f"given_up/{name}"
                )
        return covered


def intact(store: Store, done: Done) -> bool:
    """Whether the files of a result are there and are what the worker wrote."""
    for segment in done.segments:
        try:
            data = store.read(segment.path)
        except FileNotFoundError:
            return False
        if hashlib.sha256(data).hexdigest() != segment.sha256:
            return False
    return True
