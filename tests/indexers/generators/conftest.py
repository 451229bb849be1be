"""The sample shop, `statistical` fitted on it, a tiny model, made once: no test changes any."""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.records import Dataset
from cogr.store import Store
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.generator import Statistical
from tests.shops import sample_shop
from trainers.tiny import tiny_model


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    return sample_shop()


@pytest.fixture(scope="session")
def artefact(dataset: Dataset, fitted_shop: Store) -> Artefact:
    return Statistical(dataset, store=fitted_shop).artefact


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose context is short."""
    texts = [
        "Does the item answer the search? Answer Yes or No.",
        "A velvet sofa, an oak table, wireless headphones with a cable; yes or no.",
    ]
    folder = tmp_path_factory.mktemp("tiny") / "model"
    with pytest.MonkeyPatch.context() as patch:
        # Heads of 32 numbers: vLLM's attention on a CPU knows none of 24.
        patch.setattr("trainers.tiny.HEADS", 3)
        tiny_model(folder, texts * 2, 0)
    return folder
