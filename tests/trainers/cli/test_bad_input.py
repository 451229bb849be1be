"""What a user can get wrong, provoked for real: one sentence, exit status 2, and nothing of the run
lost.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cogr.store import file_sha256
from tests.commands import Command, Ended
from tests.shops import read_jsonl, write_jsonl
from tests.trainers.shop import Shop

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
