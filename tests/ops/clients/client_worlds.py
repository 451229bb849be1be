"""The shop of the clients' conformance file as it is published, an expander over it, and servers
that are broken in every way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Row
from tests.documents import ROOT
from tests.indexers.backends.opensearch_worlds import overrides_of
from tests.ops.broken_servers import broken
from tests.ops.expander.expander_worlds import running, serve_pair, workspace

CLIENTS = ROOT / "ops/clients"
CONFORMANCE: dict[str, Any] = json.loads((CLIENTS / "conformance.json").read_text("utf-8"))
TOKEN = "sesame"


@dataclass(frozen=True)
class ClientWorld:
    """What every client's own tests read from the environment variable COGR_CLIENT_WORLD, as JSON.

    `expander` and `opensearch` hold addresses by the names that cases use; `up` is a live one.
    """

    expander: dict[str, str]
    opensearch: dict[str, str]
    prefix: str
    token: str

    def environment(self) -> dict[str, str]:
        return {**os.environ, "COGR_CLIENT_WORLD": json.dumps(asdict(self))}


def _rows(records: list[dict[str, Any]], text: str) -> list[Row]:
    return [
        Row(
            one["id"],
            one[text],
            tuple(one["keywords"]),
            json.dumps(one["fields"], sort_keys=True) if "fields" in one else "",
            tuple(one.get("weights", ())),
            one.get("confidence"),
        )
        for one in records
    ]


@contextmanager
def client_world(folder: Path, opensearch: OpenSearchSettings) -> Iterator[ClientWorld]:
    """The conformance file's shop in OpenSearch, behind an expander that wants a token."""
    own = opensearch.model_copy(update={"prefix": f"client{os.getpid()}"})
    patient = (f"serving.token={TOKEN}", "serving.deadline=20")
    opened = workspace(folder, *overrides_of(own), *patient)
    items, queries = _rows(CONFORMANCE["items"], "title"), _rows(CONFORMANCE["queries"], "text")
    serve_pair(opened, items, queries)
    faults = {case["expander"] for case in CONFORMANCE["cases"] if "expander" in case}
    with ExitStack() as stack, running(opened, hot_queries=0) as expander:
        expander.client.headers["authorization"] = f"Bearer {TOKEN}"
        expander.until("leather couch", "index")
        ill = {
            fault: f"http://127.0.0.1:{stack.enter_context(broken(fault))}"
            for fault in sorted(faults)
        }
        expanders = ill | {"up": expander.url}
        yield ClientWorld(expanders, ill | {"up": str(own.url)}, own.prefix, TOKEN)
