"""An item of the catalogue is found by its id, in whatever order the source has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cogr.records import Dataset, Item
from ops.playground.views import Catalogue
from tests.cogr.datasets.test_items import spooled

IDS = st.lists(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=3), unique=True, max_size=20
)


@pytest.mark.parametrize("flat", [True, False])
@given(ids=IDS, unknown=st.text(st.characters(codec="utf-8"), max_size=3))
def test_items_are_found_by_id(flat: bool, ids: list[str], unknown: str) -> None:
    items = [Item(id_, f"Title of {id_}", "") for id_ in ids]
    catalogue = Catalogue(Dataset("shop", spooled(items) if flat else items, {}, {}, {}, ""))
    assert [catalogue.item(id_) for id_ in ids] == items
    assert unknown in ids or catalogue.item(unknown) is None
