"""The sample shop, and `statistical` fitted on it once: no test changes either."""

from __future__ import annotations

import pytest

from cogr.records import Dataset
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.fitting import fit
from tests.shops import sample_shop


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    return sample_shop()


@pytest.fixture(scope="session")
def artefact(dataset: Dataset) -> Artefact:
    return fit(dataset)
