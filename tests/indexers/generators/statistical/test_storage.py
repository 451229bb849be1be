"""Saved artefacts: the same answers, the same bytes, and no broken one opened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cogr.errors import SnapshotError
from cogr.records import Dataset
from cogr.snapshots import Provenance, Row
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.generators import fingerprint_hash
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.fitting import fit
from indexers.generators.statistical.generator import EVIDENCE, JOINED, LATEST, old_fits
from indexers.generators.statistical.storage import MANIFEST, open_artefact, save


@pytest.fixture(scope="module")
def folder(artefact: Artefact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artefact")
    save(artefact, Store(folder))
    return folder


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_equal_fits_have_equal_bytes_and_opened_ones_answer_alike(
    dataset: Dataset, folder: Path, tmp_path: Path
) -> None:
    fitted = fit(dataset)
    save(fitted, Store(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }
    opened, queries = open_artefact(Store(folder)), dataset.all_queries()
    assert opened.answers(queries) == fitted.answers(queries)
    assert [*map(opened.item_keywords, dataset.items)] == [
        *map(fitted.item_keywords, dataset.items)
    ]
    assert opened.facts == fitted.facts


def test_one_flipped_byte_in_any_file_and_another_format_are_seen(copy: Path) -> None:
    for path in sorted(copy.iterdir()):
        whole = path.read_bytes()
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        with pytest.raises(SnapshotError, match=str(copy)):
            open_artefact(Store(copy))
        path.write_bytes(whole)
    open_artefact(Store(copy))
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps(manifest | {"format": 999}))
    with pytest.raises(SnapshotError, match="another version"):
        open_artefact(Store(copy))


@pytest.mark.parametrize("name", [MANIFEST, "keywords.parquet"])
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(SnapshotError, match=rf"missing or unfinished.*{name}"):
        open_artefact(Store(copy))


def test_fits_that_nothing_names_are_old(tmp_path: Path) -> None:
    """Kept are the newest, those that wrote a snapshot that stays, and those not yet whole."""
    store, wrote = Store(tmp_path), {"kind": "statistical", "dataset_hash": "d"}
    rows = [Row("a", "Sofa", ("couch",))]
    written = {**wrote, EVIDENCE: [["i", "q"]], JOINED: ["i", None]}
    kept = write_snapshot(store, "item", rows, Provenance(generator=written))
    names = ["newest", "old", fingerprint_hash(wrote)]
    for name in names:
        store.write_json(f"statistical/{name}/{MANIFEST}", {})
    store.write_json("statistical/beginning/folds.npy", {})
    store.write_json(LATEST, ["newest"])
    assert old_fits(store, [kept.manifest]) == ["statistical/old"]
    assert len(old_fits(store, [])) == 2
