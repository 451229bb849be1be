"""An encoder's points as evidence, with an encoder of random weights: texts that share words are
near one another.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cogr.errors import GeneratorError, ServiceError
from cogr.records import Dataset, Item, Query
from cogr.store import Store
from indexers.generators import model_folders
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.fitting import fit
from indexers.generators.statistical.generator import Statistical, StatisticalOptions
from indexers.generators.statistical.ranking import encoder as module
from indexers.generators.statistical.ranking import text_index
from indexers.generators.statistical.ranking.encoder import Encoder, choose_encoder
from indexers.generators.statistical.ranking.features import (
    ENCODED_FEATURES,
    FEATURES,
    FEW_FEATURES,
)
from indexers.generators.statistical.storage import open_artefact, save
from tests.shops import sample_part

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as it lies on the hub: a vector for each token of a vocabulary of letters."""
    onnx = pytest.importorskip("onnx")
    from tokenizers import BertWordPieceTokenizer

    folder = tmp_path_factory.mktemp("encoder")
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters)]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertWordPieceTokenizer(str(folder / "vocab.txt")).save(str(folder / "tokenizer.json"))
    for name, said in (("1_Pooling", '{"pooling_mode_mean_tokens": true}'), ("onnx", "")):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(said)
    vectors = np.random.default_rng(0).standard_normal((len(words), SIZES["hidden_size"]), "f")
    node = onnx.helper.make_node("Gather", ["vectors", "input_ids"], ["last_hidden_state"])
    read, given = (
        onnx.helper.make_tensor_value_info(name, kind, ["texts", "tokens", *more])
        for name, kind, more in (
            ("last_hidden_state", onnx.TensorProto.FLOAT, [SIZES["hidden_size"]]),
            ("input_ids", onnx.TensorProto.INT64, []),
        )
    )
    weights = onnx.numpy_helper.from_array(vectors, "vectors")
    graph = onnx.helper.make_graph([node], "encoder", [given], [read], [weights])
    versions = {"opset_imports": [onnx.helper.make_opsetid("", 17)], "ir_version": 8}
    onnx.save(onnx.helper.make_model(graph, **versions), folder / module.ONNX_FILE)
    return folder


def test_points_have_length_one_and_are_kept(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a red sofa", "", "lone \ud800 surrogate", "a red sofa", "lamp"]
    found = Encoder(str(model), Store(tmp_path)).points(texts)
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(5), abs=0.02)
    assert (found[0] == found[3]).all()
    alone = Encoder(str(model), Store(tmp_path)).points(texts[:1], keep=False)
    assert alone @ found[0] == pytest.approx(1, abs=0.002)
    again = Encoder(str(model), Store(tmp_path))
    monkeypatch.setattr(module, "_by_onnx", None)
    assert (again.points(texts) == found).all(), "nothing is encoded again"


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return sample_part(120)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def encoded(model: Path, dataset: Dataset, store: Store) -> Artefact:
    """Fitted with the encoder."""
    return fit(dataset, encoder=Encoder(str(model), store))


def test_the_ranker_reads_an_encoder_and_is_kept_with_its_points(
    model: Path,
    dataset: Dataset,
    store: Store,
    encoded: Artefact,
    tmp_path: Path,
) -> None:
    plain = len(FEATURES + FEW_FEATURES)
    models = encoded.ranker.models
    assert models[0].num_feature() == plain + len(ENCODED_FEATURES)
    assert sum(model.feature_importance("gain") for model in models)[plain:].any()
    encoder = Encoder(str(model), store)
    named = Statistical(dataset, store, StatisticalOptions(encoder=str(model)))
    assert named.fingerprint["encoder"] == encoder.digest
    save(encoded, Store(tmp_path))
    opened = open_artefact(Store(tmp_path), encoder)
    asked = [*dataset.queries["train"], *dataset.queries["test"], Query("live", "never heard of")]
    assert opened.query_keywords(asked) == encoded.query_keywords(asked)


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("1_Pooling/config.json", '{"pooling_mode": "cls"}', r"mean .*L6-v2\.$"),
        ("onnx/model.onnx", "torn", "can't be loaded"),
        ("tokenizer.json", "torn", "can't be loaded"),
        ("onnx/model.onnx", None, "has no onnx"),
        ("", None, "There is no model folder"),
    ],
)
def test_a_broken_encoder_is_one_sentence(
    model: Path, tmp_path: Path, file: str, text: str | None, sentence: str
) -> None:
    if file:
        shutil.copytree(model, tmp_path / "broken")
        changed = tmp_path / "broken" / file
        changed.unlink() if text is None else changed.write_text(text)
    with pytest.raises(GeneratorError, match=sentence):
        Encoder(str(tmp_path / "broken"), Store(tmp_path)).points(["a sofa"])


# `auto`

AUTO = StatisticalOptions(encoder="auto")


@pytest.fixture
def hub(model: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hub that has every encoder; the names that it was asked for."""
    asked = list[str]()

    def from_hub(name: str, files: Sequence[str]) -> Path:
        asked.append(name)
        return model

    monkeypatch.setattr(model_folders, "_from_hub", from_hub)
    return asked


def away(name: str, _files: Sequence[str]) -> Path:
    raise ServiceError(f"{name} can't be reached.")


@pytest.mark.slow
def test_auto_is_chosen_once_and_kept_in_the_store(
    hub: list[str], model: Path, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Statistical(dataset, Store(tmp_path), AUTO)
    assert first.told_encoder == f"encoder {module.MINILM}"
    assert first.artefact.index.encoded.shape[1] == 16
    monkeypatch.setattr(model_folders, "_from_hub", away)
    again = Statistical(dataset, Store(tmp_path), AUTO)
    assert again.is_fitted
    assert again.fingerprint == first.fingerprint
    live = again.live(first.fingerprint, None)
    asked = [*dataset.queries["train"], Query("live", "never heard of")]
    assert live.artefact.query_keywords(asked) == first.artefact.query_keywords(asked)
    found = Encoder("", Store(tmp_path), kept=str(first.fingerprint["encoder"])).points(["a sofa"])
    assert found == pytest.approx(Encoder(str(model), Store(tmp_path)).points(["a sofa"]), abs=1e-6)
    assert hub == [module.MINILM]


def test_auto_without_weights_is_none_from_then_on(
    hub: list[str], dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as offline:
        offline.setattr(model_folders, "_from_hub", away)
        first = Statistical(dataset, Store(tmp_path), AUTO)
        assert first.told_encoder == f"no encoder: {module.MINILM} can't be reached"
    again = Statistical(dataset, Store(tmp_path), AUTO)
    assert again.told_encoder == first.told_encoder
    assert again.fingerprint == Statistical(dataset, Store(tmp_path)).fingerprint
    assert not hub


@pytest.mark.parametrize(
    ("title", "language", "limit", "why"),
    [
        ("Café chairs of solid oak, in pairs, for small kitchens or gardens", "english", "", ""),
        ("Kommode", "german", "", "of another language"),
        ("实木 书桌", "english", "", "of another language"),
        ("Oak desk", "english", "MAX_ENCODED", "slow with more than"),
        ("Oak desk", "english", "MAX_LETTERS", "half an hour"),
    ],
)
def test_only_english_items_that_are_not_too_many_get_an_encoder_by_themselves(
    hub: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    title: str,
    language: str,
    limit: str,
    why: str,
) -> None:
    if limit:
        monkeypatch.setattr(module, limit, 0)
    choice = choose_encoder([Item("1", title, "")], language, Store(tmp_path))
    assert choice.model == ("" if why else module.MINILM)
    assert why in choice.why
    assert len(hub) == (not why)


def test_many_items_are_compared_along_the_directions_in_which_they_differ_most(
    dataset: Dataset, encoded: Artefact, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = encoded.index
    points = index.batch([query.text for query in dataset.queries["test"]]).encoded
    exact = index.nearest_encoded(points, 5).toarray()
    monkeypatch.setattr(text_index, "MANY", len(dataset.items) // 2)
    assert np.allclose(index.nearest_encoded(points, 5).toarray(), exact, atol=1e-5)
    monkeypatch.setattr(text_index, "COARSE", 8)
    vars(index).pop("_coarse")
    found = index.nearest_encoded(points, 5).toarray()
    assert ((found > 0) & (exact > 0)).sum() > 0.8 * (exact > 0).sum()


def test_a_store_that_lost_its_encoder_says_so(
    hub: list[str], dataset: Dataset, tmp_path: Path
) -> None:
    digest = choose_encoder(dataset.items, "english", Store(tmp_path)).digest
    Store(tmp_path).remove(f"encoded/{digest}/onnx")
    with pytest.raises(GeneratorError, match="remove encoded/choice"):
        Encoder("", Store(tmp_path), kept=digest).points(["a sofa"])
