"""The published data sets: small files in their layouts, and, where COGR_DATA_DIR holds the real
ones, every count and split, exactly.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from benchmarks.published import LOADERS as PUBLISHED
from cogr.datasets import load_dataset
from cogr.datasets.builder import DatasetOptions
from cogr.errors import SettingsError
from tests.documents import ROOT
from tests.shops import sizes

SAMPLES = {
    "nfcorpus": {
        "dev.docs": (
            "MED-1\tstatin use breast cancer survival nationwide cohort study finland\n"
            "MED-2\tcholesterol breast cancer\n"
        ),
        "test.docs": "MED-2\tcholesterol breast cancer\n",
        "train.titles.queries": "PLAIN-1\tbreast cancer\n",
        "dev.titles.queries": "PLAIN-2\tcholesterol\n",
        "test.titles.queries": "PLAIN-3\tstatins\n",
        "train.2-1-0.qrel": "PLAIN-1\t0\tMED-1\t1\nPLAIN-1\t0\tMED-2\t2\n",
        "dev.2-1-0.qrel": "PLAIN-2\t0\tMED-2\t2\n",
        "test.2-1-0.qrel": "PLAIN-3\t0\tMED-1\t2\n",
    },
    "msrd": {
        "movies-corpus.jsonl": (
            '{"id": "1", "title": "Smile", "overview": "A doctor meets a patient.", "tag'
            's": [], "genres": ["Horror"], "director": "P. F.", "actors": ["S. B."], "ch'
            'aracters": ["Rose"]}\n'
            '{"id": "2", "title": "Dune", "tags": ["sand"]}\n'
        ),
        "movies-judgments.tsv": (
            "query_id\tquery\tdoc_id\tgrade\n"
            "qid:1\thorror with a smile\t1\t1\n"
            "qid:1\thorror with a smile\t2\t0\n"
            "qid:2\tsand\t2\t1\n"
        ),
    },
    "chorus": {
        "products.json": (
            "[\n"
            ' {"id": "10", "name": "K1", "title": "Acme K1 keyboard", "short_description'
            '": "Quiet keys<br />USB"},\n'
            ' {"id": "11", "name": "M1", "title": "Acme M1 mouse"}\n'
            "]\n"
        ),
        "Broad_Query_Set_rated.csv": "query,docid,rating\nkeys,10,3\nkeys,11,0\nmouse,11,2\n",
    },
    "wands": {
        "query.csv": "query_id\tquery\tquery_class\n0\tsalon chair\tMassage Chairs\n",
        "product.csv": (
            "product_id\tproduct_name\tproduct_description\n"
            "0\tsolid wood platform bed\tgood, deep sleep\n"
            '1\t"36"" salon chair"\treclining chair for a salon\n'
        ),
        "label.csv": "id\tquery_id\tproduct_id\tlabel\n0\t0\t1\tExact\n1\t0\t0\tIrrelevant\n",
    },
}


def write_sample(name: str, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for file, text in SAMPLES[name].items():
        (folder / file).write_text(text)
    return folder


def test_samples_load_and_examples_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COGR_DATA_DIR", str(tmp_path))
    first, found = {}, {}
    for name in PUBLISHED:
        write_sample(name, tmp_path / name)
        settings = tomllib.loads((ROOT / "examples" / f"{name}.toml").read_text())["dataset"]
        dataset = load_dataset(**settings)
        assert (dataset.name, dataset.notes) == (name, {})
        first[name], found[name] = dataset.items[0], sizes(dataset)
    assert found["nfcorpus"] == {"train": 1, "dev": 1, "test": 1}
    assert found["msrd"] == found["chorus"] == {"train": 2, "dev": 0, "test": 0}
    assert found["wands"] == {"train": 1, "dev": 0, "test": 0}
    assert first["nfcorpus"].title == "statin use breast cancer survival nationwide cohort study"
    assert first["nfcorpus"].text == "finland"
    assert first["msrd"].text == "A doctor meets a patient.\nHorror\nP. F.\nS. B.\nRose"
    assert first["chorus"].text == "K1\nQuiet keys USB"
    assert load_dataset("wands").items[1].title == '36" salon chair'
    labels = tmp_path / "wands/label.csv"
    labels.write_text(labels.read_text().replace("Irrelevant", "Partial"))
    assert load_dataset("wands").relevant == {"0": {"0", "1"}}
    assert load_dataset("wands", options=DatasetOptions(threshold=2)).relevant == {"0": {"1"}}


def test_a_package_of_ones_own_brings_a_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own-1.dist-info").mkdir()
    (tmp_path / "own-1.dist-info" / "METADATA").write_text("Name: own\nVersion: 1\n")
    (tmp_path / "own-1.dist-info" / "entry_points.txt").write_text(
        "[cogr.loaders]\nshop:NAME = own_loaders:shop\n"
    )
    (tmp_path / "own_loaders.py").write_text(
        "from cogr.datasets import Loader\nfrom cogr.datasets.reading import Place\n"
        "def shop(name):\n"
        "    return Loader(lambda path, builder: builder.item(Place(path, 1), 'a', name, ''))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (item,) = load_dataset("shop:london").items
    assert item.title == "shop:london"
    with pytest.raises(SettingsError, match=r"there are: .*shop:NAME"):
        load_dataset("shops")
