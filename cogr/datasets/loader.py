"""What a loader is: a function that reads a folder into a `Builder`, and what there is to know
about its data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cogr.datasets.building import Builder


@dataclass(frozen=True, slots=True)
class Loader:
    """One format.

    Attributes:
        name: as in the setting dataset.loader.
        read: reads the folder into the builder: items, then queries, then judgements.
        threshold: the lowest relevant grade, unless set otherwise.
        test_share: the fixed share of test queries where the data has no splits of its own, drawn
            with seed 0.
        own: for data of one's own: what `dataset.columns` and `dataset.strip_html` say holds.
        fetch: for published data, what to fetch and what it holds; its folder is
            $COGR_DATA_DIR/<name> by default.
    """

    name: str
    read: Callable[[Path, Builder], None]
    threshold: float = 1.0
    test_share: float | None = None
    fetch: str = ""
    own: bool = False
