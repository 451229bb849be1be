"""What the Python client does beyond the conformance file of all clients: several queries at once,
broken servers, its documentation.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cogr_client import AsyncClient, Client, SearchError
from tests.ops.broken_servers import broken
from tests.ops.expander.expander_worlds import running, serve_pair, wait_for, workspace

pytestmark = pytest.mark.slow


def test_several_queries_by_one_request(tmp_path: Path) -> None:
    opened = workspace(tmp_path, "serving.deadline=20")
    serve_pair(opened)

    async def asked(url: str) -> list[str]:
        async with AsyncClient(url, patience=30) as client:
            several, one = await asyncio.gather(
                client.expand_many(["green couch", "nobody"]), client.expand("?!")
            )
            return [answer.source for answer in [*several, one]]

    with running(opened) as expander:
        wait_for(lambda: expander.expand("green couch")["source"] == "index")
        with Client(expander.url, patience=30) as client:
            known, unknown = client.expand_many(["reading light", "nobody"])
        assert (known.keywords, known.source) == (("reading light", "lamp", "light"), "index")
        assert (unknown.keywords, unknown.reason) == (("nobody",), "unknown")
        assert known.snapshots == unknown.snapshots == expander.expand("a")["snapshots"]
        assert asyncio.run(asked(expander.url)) == ["index", "none", "none"]


@pytest.mark.parametrize("fault", ["null", "half"])
def test_what_is_no_answer_is_none(fault: str) -> None:
    """Beside the faults of the conformance file: of the expander for several queries, and of
    OpenSearch.
    """
    with broken(fault) as port:
        here = f"http://127.0.0.1:{port}"
        with Client(here, patience=0.3) as client:
            assert [one.source for one in client.expand_many(["a", "b"])] == ["none", "none"]
            with pytest.raises(SearchError, match="no address"):
                client.search("green couch")
        with Client(here, here, patience=0.3, timeout=0.5) as client, pytest.raises(SearchError):
            client.search("green couch")
