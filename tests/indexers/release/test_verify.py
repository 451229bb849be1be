"""Verification document by document: every difference ends it, and nothing switches then."""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.errors import CheckFailedError
from cogr.matching.mirror import Mirror
from cogr.settings.serving import OpenSearchSettings
from cogr.store import Store
from tests.indexers.backends.backend_worlds import SHOP, frozen, random_world
from tests.indexers.backends.opensearch_worlds import backend_of
from tests.indexers.conftest import Command


def test_the_command_compares_all_and_ends_with_1_at_a_difference(
    shop: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cogr_index("rebuild", "--side", "item", "--json").json["snapshot"]
    equal = cogr_index("verify", "--json").json["verified"][made]
    assert (equal["documents"], equal["sampled"]) == (4, 4)
    monkeypatch.setattr("indexers.backends.SAMPLE", 2)
    quick = cogr_index("verify", "--quick", "--json").json["verified"][made]
    assert (quick["documents"], quick["sampled"]) == (4, 2)
    empty = frozen(Store(shop / ".cogr"), "item", [])
    monkeypatch.setattr("indexers.backends.memory.mirror_of", lambda *_: Mirror.build(empty))
    ended = cogr_index("verify", made)
    assert (ended.status, "has 0 entities, the snapshot 4" in ended.sentence) == (1, True)
    # Nothing switches to it before it has passed again.
    assert cogr_index("publish", made, "--no-gate").status == 1
    monkeypatch.undo()
    monkeypatch.chdir(shop)
    assert cogr_index("rollback", "--to", made).sentence.endswith(f"cogr-index verify {made}.")
    assert cogr_index("publish", made, "--no-gate").status == 0


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("DELETE", "_doc/c", None), "157 documents and . deleted ones, the snapshot 158"),
        (("PUT", "_doc/zzz", {"item_id": "zzz", "keywords": ["x"], "text": ""}), "159 documents"),
        (("POST", "_update/e", {"doc": {"text": "other"}}), "158 documents and 1 deleted ones"),
    ],
)
def test_every_write_of_somebody_else_is_found(
    opensearch: OpenSearchSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: tuple[str, str, object],
    found: str,
) -> None:
    monkeypatch.setattr("indexers.backends.opensearch.backend._BATCH", 7)
    store, rows = Store(tmp_path), [*SHOP, *random_world(150)]
    snapshot = frozen(store, "item", rows)
    with backend_of(opensearch, store, 3) as backend:
        index = backend.push(snapshot).index
        assert backend.verify(snapshot, [], every=True).sampled == len(rows)

        def meddle(method: str, path: str, body: object = None) -> None:
            backend.cluster.call(method, f"/{index}/{path}", body=body, doing="meddling")

        meddle("PUT", "_settings", {"index": {"blocks.write": None}})
        meddle(*change)
        meddle("POST", "_refresh")
        with pytest.raises(CheckFailedError, match=found):
            backend.verify(snapshot, [], every=True)
        with pytest.raises(CheckFailedError, match="has not passed verification"):
            backend.publish({"item": snapshot.id})
