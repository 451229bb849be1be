"""What the Python client does beyond the conformance file of all clients: broken servers."""

from __future__ import annotations

import pytest

from cogr_client import Client, SearchError
from tests.ops.broken_servers import broken

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fault", ["null", "half"])
def test_what_is_no_answer_is_none(fault: str) -> None:
    """Beside the faults of the conformance file."""
    with broken(fault) as port:
        here = f"http://127.0.0.1:{port}"
        with Client(here, patience=0.3) as client:
            assert client.expand("a").source == "none"
            with pytest.raises(SearchError, match="no address"):
                client.search("green couch")
        with Client(here, here, patience=0.3, timeout=0.5) as client, pytest.raises(SearchError):
            client.search("green couch")
