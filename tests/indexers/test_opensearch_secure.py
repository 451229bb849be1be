"""A real node with the security plugin: TLS, basic authentication, and the roles of docs/opensearch.md."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from cogr.errors import ServiceError
from cogr.settings import OpenSearchSettings
from cogr.snapshots import Provenance, write_snapshot
from cogr.store import Store
from indexers.backends.opensearch import OpenSearchBackend, search
from indexers.backends.opensearch.client import Cluster
from tests.indexers.backend_worlds import SHOP, SHOPPERS, frozen

pytestmark = [pytest.mark.server, pytest.mark.slow]
DOCS = Path(__file__).parents[2] / "docs" / "opensearch.md"
PASSWORD = "Velvet-sofa-42-mid-century"


def documented_roles() -> dict[str, dict[str, Any]]:
    """The roles as docs/opensearch.md gives them, by name."""
    found = re.findall(r"PUT _plugins/_security/api/roles/(\S+)\n(\{.*?\n\})\n", DOCS.read_text("utf-8"), re.DOTALL)
    return {name: json.loads(body) for name, body in found}


@pytest.fixture(scope="module")
def users(opensearch_secure: OpenSearchSettings) -> Iterator[dict[str, OpenSearchSettings]]:
    """Settings of a user for each documented role."""
    cluster = Cluster(opensearch_secure)
    api = "/_plugins/_security/api"
    settings = {}
    for role, body in documented_roles().items():
        cluster.call("PUT", f"{api}/roles/{role}", body=body, doing="making a role")
        user = {"password": PASSWORD, "opendistro_security_roles": [role]}
        cluster.call("PUT", f"{api}/internalusers/user_of_{role}", body=user, doing="making a user")
        update = {"username": f"user_of_{role}", "password": SecretStr(PASSWORD), "prefix": "shop"}
        settings[role] = opensearch_secure.model_copy(update=update)
    yield settings
    cluster.close()


def test_the_documented_roles_are_enough_and_not_more(users: dict[str, OpenSearchSettings], tmp_path: Path) -> None:
    store = Store(tmp_path)
    items, older, queries = (
        frozen(store, "item", SHOP, round_=1),
        frozen(store, "item", SHOP[:3]),
        frozen(store, "query", SHOPPERS),
    )
    publisher = OpenSearchBackend(users["cogr-publisher"].model_copy(update={"replicas": 1}), store)
    for snapshot in (older, items, queries):
        publisher.push(snapshot)
        publisher.verify(snapshot, [["sofa", "couch"], ["lamp"]])
    publisher.publish({"item": older.id, "query": queries.id})
    assert publisher.publish({"item": items.id}) == {"item": older.id}
    publisher.delete(older.id)
    assert {one.snapshot for one in publisher.list()} == {items.id, queries.id}
    # Also an update, which copies the parent's index and writes the difference alone.
    changed = sorted([*SHOP[1:], dataclasses.replace(SHOP[0], keywords=("sofa",))], key=lambda row: row.id)
    update = write_snapshot(store, "item", changed, Provenance(round=1, parent=items.id))
    assert publisher.push(update).written == 1
    publisher.verify(update, [["sofa", "couch"], ["lamp"]])
    publisher.delete(update.id)

    searcher = OpenSearchBackend(users["cogr-searcher"], store)
    assert searcher.search(["sofa"], explain=True).total == 4
    assert searcher.retrieved(["sofa"]).total == 4
    assert searcher.lookup("Lamp") == ("lamp", "light")
    body = {"id": "shop-search", "params": {"keywords": ["sofa"]}}
    by_template = searcher.cluster.call(
        "POST", "/shop-items/_search/template", body=body, doing="searching by template"
    )
    assert by_template["hits"]["total"]["value"] == 4

    with pytest.raises(
        ServiceError, match=r"does not allow this to the user: no permissions for .*privileges listed in docs"
    ):
        searcher.push(older)
    with pytest.raises(ServiceError, match="does not allow this"):
        searcher.cluster.call("POST", "/shop-items/_doc", body={"item_id": "x"}, doing="meddling")
    for role in users:
        elsewhere = OpenSearchBackend(users[role].model_copy(update={"prefix": "else"}), store)
        with pytest.raises(ServiceError, match="does not allow this"):
            elsewhere.push(older)
        with pytest.raises(ServiceError, match="does not allow this"):
            elsewhere.serving()


def test_paging_needs_no_more_than_searching(
    users: dict[str, OpenSearchSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = frozen(Store(tmp_path), "item", SHOP)
    publisher = OpenSearchBackend(users["cogr-publisher"], Store(tmp_path))
    publisher.push(snapshot)
    monkeypatch.setattr(search, "PAGE", 2)
    for role in users:
        backend = OpenSearchBackend(users[role], Store(tmp_path))
        assert len(backend.retrieved(["sofa"], snapshot=snapshot.id).hits) == 4
    publisher.delete(snapshot.id)


def test_a_wrong_password_is_said(opensearch_secure: OpenSearchSettings) -> None:
    for update in ({"password": SecretStr("wrong")}, {"username": None, "password": None}):
        with pytest.raises(
            ServiceError, match=r"does not accept the credentials .*; check opensearch.username"
        ) as error:
            _ = Cluster(opensearch_secure.model_copy(update=update)).version
        assert error.value.exit_status == 3
        assert "wrong" not in str(error.value)


def test_a_certificate_that_can_not_be_verified_is_said(opensearch_secure: OpenSearchSettings) -> None:
    assert Cluster(opensearch_secure).version.text == "3.4.0"
    assert Cluster(opensearch_secure.model_copy(update={"ca_file": None, "verify_certs": False})).version.major == 3
    with pytest.raises(ServiceError, match=r"has a certificate that can't be verified: .*; set opensearch.ca_file"):
        _ = Cluster(opensearch_secure.model_copy(update={"ca_file": None})).version


def test_plain_http_to_a_tls_port_is_said(opensearch_secure: OpenSearchSettings) -> None:
    assert opensearch_secure.url is not None
    plain = opensearch_secure.url.replace("https:", "http:")
    with pytest.raises(ServiceError, match="can't be reached"):
        _ = Cluster(opensearch_secure.model_copy(update={"url": plain, "ca_file": None})).version
