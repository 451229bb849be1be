"""What a user can get wrong, provoked for real: one sentence, exit status 2, and nothing of the run
lost.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cogr.errors import TrainingError
from cogr.store import file_sha256
from indexers.generators.model_folders import is_out_of_memory
from tests.commands import Command, Ended
from tests.shops import read_jsonl, write_jsonl
from tests.trainers.shop import Shop
from trainers.training.checkpoints import trainable_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.model]


def bad(ended: Ended, sentence: str) -> None:
    """It ended with one sentence that says so."""
    assert (ended.status, ended.out) == (2, ""), ended.err
    assert sentence in ended.sentence, ended.err
    assert "Traceback" not in ended.err


def content(shop: Shop) -> dict[str, str]:
    """Every file of the run but its locks, with a hash."""
    files = (shop.config.parent / "store/runs/main").rglob("*")
    kept = (file for file in files if file.is_file() and file.name != "error.json")
    return {str(file): file_sha256(file) for file in kept}


def other_data(shop: Shop) -> None:
    labels = shop.config.parent / "data" / "labels.jsonl"
    write_jsonl(labels, read_jsonl(labels)[:-1])


def no_training_labels(shop: Shop) -> None:
    data = shop.config.parent / "data"
    test = {one["id"] for one in read_jsonl(data / "queries.jsonl") if one["split"] == "test"}
    labels = [one for one in read_jsonl(data / "labels.jsonl") if one["query"] in test]
    write_jsonl(data / "labels.jsonl", labels)


@pytest.mark.parametrize(
    ("change", "asked", "sentence"),
    [
        (other_data, (), "was begun with other settings: dataset_hash was "),
        (
            no_training_labels,
            ("--run", "new"),
            "The train split of the data set jsonl has no queries with a relevant item (train 0, ",
        ),
        (
            None,
            ("--set", "keywords.k_max=2", "--run", "new"),
            "keywords.k_max is 2, below the 3 keywords of training.sft.item_keywords (M)",
        ),
    ],
)
def test_what_cannot_train_is_one_sentence_and_changes_nothing(
    copied: Shop,
    cogr_train: Command,
    change: Callable[[Shop], None] | None,
    asked: tuple[str, ...],
    sentence: str,
) -> None:
    if change:
        change(copied)
    before = content(copied)
    bad(cogr_train("run", "-c", copied.config, *asked), sentence)
    assert content(copied) == before


def untrained(shop: Shop, folder: Path, key: str) -> Path:
    """A copy of the untrained model of the shop, whose tokenizer lacks something."""
    (base,) = (shop.config.parent / "store/runs/main/models").glob("base-*")
    shutil.copytree(base, folder)
    (folder / f"{key}.jinja").unlink(missing_ok=True)
    file = folder / "tokenizer_config.json"
    config = {k: v for k, v in json.loads(file.read_text()).items() if k != key}
    file.write_text(json.dumps(config))
    return folder


def test_a_model_without_padding_is_refused(trained: Shop, tmp_path: Path) -> None:
    model = untrained(trained, tmp_path / "model", "pad_token")
    with pytest.raises(TrainingError, match="pad_token"):
        trainable_tokenizer(model)


def test_a_model_without_a_chat_template_is_trained_on_plain_text_with_a_warning(
    trained: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = untrained(trained, tmp_path / "model", "chat_template")
    assert not trainable_tokenizer(model).chat_template
    assert "has no chat template" in caplog.text


def test_torch_names_a_lack_of_memory_as_it_is_expected() -> None:
    import torch

    with pytest.raises(RuntimeError) as found:
        torch.empty(1 << 55, dtype=torch.uint8)
    assert is_out_of_memory(found.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
