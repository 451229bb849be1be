"""Updates in place: documents and retrieved sets are the snapshot's, and what its statistics are off is measured and bounded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import CheckFailedError, ServiceError, SnapshotError
from cogr.settings import OpenSearchSettings
from cogr.snapshots import Provenance, Row, Snapshot, write_snapshot
from cogr.store import Store
from indexers.backends.opensearch import OpenSearchBackend, inplace
from indexers.backends.opensearch.drift import Statistics, drift
from indexers.verifying import compare_all
from tests.indexers.backend_worlds import random_queries, random_world
from tests.indexers.conftest import Command, write_jsonl
from tests.indexers.opensearch_worlds import backend_of


def test_errors_are_relative_to_the_snapshot() -> None:
    exact = Statistics(100, 1000, {"a": 10, "b": 50, "gone": 0})
    assert drift(exact, exact, 0).largest == 0
    found = drift(Statistics(102, 1071, {"a": 10, "b": 50, "gone": 7}), exact, 2)
    assert found.documents == pytest.approx(0.02)
    assert found.length == pytest.approx(0.05)
    assert (found.deleted, found.keyword) == (2, "b")
    assert found.largest == found.length
    # A rare keyword of which a deleted version counts once more: ln(1 + 99.5 / 1.5) became ln(1 + 98.5 / 2.5).
    rare = drift(Statistics(100, 1000, {"a": 2}), Statistics(100, 1000, {"a": 1}), 1)
    assert (rare.keyword, rare.idf) == ("a", pytest.approx(1 - 3.698830 / 4.209655, abs=1e-5))


def child(parent: Snapshot, rows: list[Row]) -> Snapshot:
    return write_snapshot(parent.store, "item", sorted(rows, key=lambda row: row.id), Provenance(parent=parent.id))


def changed(rows: list[Row]) -> list[Row]:
    """Two changed, one gone, one new."""
    longer = [dataclasses.replace(row, keywords=(*row.keywords, "keyword 1")) for row in rows[3:5]]
    return [*rows[:3], *longer, *rows[6:], Row("new", "new one", ("keyword 1",))]


def served(backend: OpenSearchBackend, snapshot: Snapshot) -> None:
    backend.push(snapshot)
    backend.verify(snapshot, [])
    backend.publish({"item": snapshot.id})


@pytest.mark.server
def test_what_serves_is_changed_and_its_drift_measured(opensearch: OpenSearchSettings, tmp_path: Path) -> None:
    rows = random_world(400)
    first = write_snapshot(Store(tmp_path), "item", sorted(rows, key=lambda row: row.id), Provenance())
    second = child(first, changed(rows))
    with backend_of(opensearch, first.store) as backend:
        served(backend, first)
        with pytest.raises(CheckFailedError, match=r"would be .* off, and publish.max_drift is 0.0%"):
            backend.change(first, second, 0.0)
        backend.verify(first, random_queries(rows, 5, 12))
        done = backend.change(first, second, 10.0)
        assert done.written == 4
        assert backend.serving()["item"] == second.id
        # Measured in the index: three versions count that nobody sees
        # (and a removal leaves a mark, which is counted as deleted too).
        assert done.drift.deleted >= 3
        assert done.drift.documents == pytest.approx(
            3 / sum(1 for row in second.rows() if row.keywords or row.self_keyword)
        )
        assert done.drift.largest > 0
        # Every document is the snapshot's, and every retrieved set; scores are not compared.
        assert compare_all(backend, first.store, second).differences == 0
        verified = backend.verify(second, random_queries(rows, 10, 12))
        assert (verified.queries, verified.scores) == (10, 0)
        assert [(one.snapshot, one.serving) for one in backend.list()] == [(second.id, True)]
        assert backend.search(["new one"]).hits[0].id == "new"
        with pytest.raises(SnapshotError, match="is not in OpenSearch"):
            backend.publish({"item": first.id})
        # A push of the same snapshot writes an index with exact statistics, and the other one goes.
        assert backend.push(second).index != done.index
        assert backend.verify(second, random_queries(rows, 5, 12)).scores > 0
        backend.publish({"item": second.id})
        assert backend.sweep(dry_run=False) == [done.index]
        assert [one.serving for one in backend.list()] == [True]


@pytest.mark.server
def test_a_change_that_died_goes_on_and_no_other_one_comes_between(
    opensearch: OpenSearchSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_world(150)
    first = write_snapshot(Store(tmp_path), "item", sorted(rows, key=lambda row: row.id), Provenance())
    second, third = child(first, changed(rows)), child(first, rows[1:])
    with backend_of(opensearch, first.store) as backend:
        with pytest.raises(SnapshotError, match="does not serve"):
            backend.change(first, second, 10.0)
        served(backend, first)

        def dies(*given: Any) -> int:
            list(given[2])
            raise ServiceError("The cluster went away.")

        monkeypatch.setattr(inplace, "change_documents", dies)
        with pytest.raises(ServiceError):
            backend.change(first, second, 10.0)
        monkeypatch.undo()
        assert backend.serving()["item"] == first.id
        with pytest.raises(SnapshotError, match=f"half changed to {second.id}"):
            backend.change(first, third, 10.0)
        assert backend.change(first, second, 10.0).written == 4
        assert compare_all(backend, first.store, second).differences == 0


@pytest.mark.server
def test_the_command_says_the_drift(opensearch: OpenSearchSettings, shop: Path, cogr_index: Command) -> None:
    with backend_of(opensearch, Store(shop / ".cogr")) as backend:
        settings = backend.cluster.settings
        flags = [f"opensearch.url={settings.url}", f"opensearch.prefix={settings.prefix}", "publish.gate=false"]
        sets = [flag for one in [*flags, "generator.name=scripted"] for flag in ("--set", one)]
        base = cogr_index("rebuild", "--side", "item", "--json", *sets).json["snapshot"]
        write_jsonl(shop / "changes.jsonl", [{"id": "a", "title": "Velvet sofa", "text": "plum, now"}])
        update = ("update", "--side", "item", "--changed", "changes.jsonl", "--in-place", "--json", *sets)
        refused = cogr_index(*update)
        assert (refused.status, "publish.max_drift is 2.0%" in refused.err) == (1, True)
        ended = cogr_index(*update, "--set", "publish.max_drift=10")
        assert ended.status == 0, ended.err
        assert ended.json["parent"] == base
        assert ended.json["drift"]["deleted"] == 1
        assert ended.json["drift"]["documents"] == pytest.approx(1 / 4)
        assert "1 deleted ones count, by which N is 25.00% off" in ended.err
        assert ended.json["index"].endswith(base)
        assert cogr_index("verify", "--json", *sets).json["verified"][ended.json["snapshot"]]["differences"] == 0


def test_in_place_is_for_what_serves_in_a_cluster(shop: Path, cogr_index: Command) -> None:
    for flags, told in ((("--no-publish",), "leave --no-push and --no-publish out"), ((), "is for OpenSearch")):
        ended = cogr_index("update", "--side", "item", "--ids", "x", "--in-place", *flags)
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        assert told in ended.err
