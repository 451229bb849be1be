"""From a snapshot to what serves: push, verify, switch. The steps are the backend's; their order and their gates are here."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cogr.errors import SnapshotError
from cogr.keywords import normalise
from cogr.records import SIDES, Side
from cogr.snapshots import Manifest, Snapshot, check_pair, open_snapshot, read_manifest
from cogr.store import Store
from indexers.backends.base import Backend, Pushed, Verified

Say = Callable[[str], None]


@dataclass(frozen=True)
class Published:
    """What serves now and what served before, by side."""

    serving: Mapping[Side, str]
    before: Mapping[Side, str | None]


def other_side(side: Side) -> Side:
    """item for query, query for item."""
    return "item" if side == "query" else "query"


def probes(backend: Backend, store: Store, snapshot: Snapshot, count: int, seed: int = 0) -> list[list[str]]:
    """Keyword lists to compare live results with the mirror on.

    For items, the keyword sets of queries that serve now, where this store has them (another one may have published);
    else keywords drawn from the snapshot itself.
    """
    draw = random.Random(seed)
    serving = backend.serving().get(other_side(snapshot.side))
    if serving and snapshot.side == "item" and serving in store.list("snapshots"):
        rows = sorted(open_snapshot(store, serving, verify=False).rows(), key=lambda row: row.id)
        chosen = draw.sample(rows, min(count, len(rows)))
        return [[word for word in dict.fromkeys((row.self_keyword, *row.keywords)) if word] for row in chosen]
    words = _vocabulary(snapshot)
    return [draw.sample(words, min(len(words), draw.randint(1, 15))) for _ in range(count)] if words else []


def _vocabulary(snapshot: Snapshot) -> list[str]:
    """All keywords, own texts among them, in code point order (which is that of UTF-8 bytes, by which Arrow sorts)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = (column for batch in snapshot.batches() for column in (batch["self"], pc.list_flatten(batch["keywords"])))
    # Batch by batch, so that repeats are dropped before all are together.
    distinct = [pc.unique(part) for part in parts]
    together = pc.unique(pa.chunked_array(distinct, pa.string()))
    words: list[str] = together.take(pc.sort_indices(together)).to_pylist()
    return [word for word in words if word]


def push_and_verify(
    backend: Backend, store: Store, snapshot: Snapshot, queries: int, say: Say = lambda _: None
) -> tuple[Pushed, Verified]:
    """Write the snapshot beside what serves and compare it there. Serves nothing yet.

    Raises:
        CheckFailedError: what was pushed differs from the snapshot.
        ServiceError: the service went away; the same call goes on.
    """
    pushed = backend.push(snapshot)
    say(f"pushed {pushed.written} of {pushed.documents} documents to {pushed.index} in {pushed.seconds:.1f} s")
    verified = backend.verify(snapshot, probes(backend, store, snapshot, queries))
    say(
        f"verified {verified.documents} documents, {verified.sampled} sampled, {verified.scores} scores of {verified.queries} queries"
    )
    return pushed, verified


def warm_up(backend: Backend, store: Store, ids: Sequence[str], count: int) -> None:
    """Search the snapshots as their readers will, so that the first ones don't wait for cold files."""
    for snapshot in (open_snapshot(store, id_, verify=False) for id_ in ids) if count else ():
        for words in probes(backend, store, snapshot, count):
            backend.search(words, side=snapshot.side, snapshot=snapshot.id)


def publish(backend: Backend, store: Store, ids: Sequence[str]) -> Published:
    """Switch to the given snapshots, at most one a side, by one atomic call.

    Raises:
        SnapshotError: unknown, two of one side, or of another normaliser than what serves on the other side.
        ServiceError: the cluster refuses; what serves stays.
    """
    manifests: dict[Side, Manifest] = {}
    for id_ in ids:
        manifest = read_manifest(store, id_)
        if manifest.side in manifests:
            raise SnapshotError(
                f"{manifests[manifest.side].id} and {id_} are both of the side {manifest.side}; name one a side."
            )
        manifests[manifest.side] = manifest
    pair = dict(manifests)
    for side, serving in backend.serving().items():
        if side not in pair and serving:
            pair[side] = read_manifest(store, serving)
    if len(pair) == len(SIDES):
        check_pair(pair["item"], pair["query"])
    before = backend.publish({side: manifest.id for side, manifest in manifests.items()})
    return Published({side: manifest.id for side, manifest in manifests.items()}, before)


def query_keywords(text: str, keywords: Sequence[str]) -> list[str]:
    """S_q ∪ {q} as a search needs it: the normalised text first, then its keywords, each once."""
    return [word for word in dict.fromkeys((normalise(text), *keywords)) if word]
