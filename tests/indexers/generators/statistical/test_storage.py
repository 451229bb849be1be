"""Saved artefacts: the same answers, the same bytes, and no broken one opened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cogr.errors import SnapshotError
from cogr.records import Dataset
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.fitting import fit
from indexers.generators.statistical.storage import MANIFEST, open_artefact, save


@pytest.fixture(scope="module")
def folder(artefact: Artefact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artefact")
    save(artefact, folder)
    return folder


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_opened_answers_as_fitted(dataset: Dataset, artefact: Artefact, folder: Path) -> None:
    opened = open_artefact(folder)
    queries = dataset.all_queries()
    assert opened.query_keywords(queries) == artefact.query_keywords(queries)
    assert [opened.item_keywords(item) for item in dataset.items] == [
        artefact.item_keywords(i) for i in dataset.items
    ]
    assert opened.facts == artefact.facts


def test_equal_fits_have_equal_bytes(dataset: Dataset, folder: Path, tmp_path: Path) -> None:
    save(fit(dataset), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }


def test_it_goes_anywhere_that_fsspec_reaches(artefact: Artefact) -> None:
    save(artefact, "memory://statistical-test")
    assert open_artefact("memory://statistical-test").facts == artefact.facts


def test_one_flipped_byte_in_any_file_and_another_format_are_seen(copy: Path) -> None:
    for path in sorted(copy.iterdir()):
        whole = path.read_bytes()
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        with pytest.raises(SnapshotError, match=str(copy)):
            open_artefact(copy)
        path.write_bytes(whole)
    open_artefact(copy)
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps(manifest | {"format": 999}))
    with pytest.raises(SnapshotError, match="another version"):
        open_artefact(copy)


@pytest.mark.parametrize("name", [MANIFEST, "keywords.parquet"])
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(SnapshotError, match=rf"missing or unfinished.*{name}"):
        open_artefact(copy)
