"""The sample shop, and `statistical` fitted on it once: no test changes either."""

from __future__ import annotations

import pytest

from cogr.records import Dataset
from cogr.store import Store
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.generator import Statistical
from tests.shops import sample_shop


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    return sample_shop()


@pytest.fixture(scope="session")
def kept(fitted_shop: Store) -> Store:
    """Where the fitted artefact lies."""
    return fitted_shop


@pytest.fixture(scope="session")
def artefact(dataset: Dataset, kept: Store) -> Artefact:
    return Statistical(dataset, store=kept).artefact
