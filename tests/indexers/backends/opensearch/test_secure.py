"""A real node with the security plugin: TLS, basic authentication, and the shipped roles."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from pydantic import SecretStr

from cogr.errors import ServiceError
from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Provenance
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.backends import Words
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.client import Cluster
from tests.indexers.backends.backend_worlds import SHOP, SHOPPERS
from tests.shops import frozen

pytestmark = pytest.mark.drill
PASSWORD = "Velvet-sofa-42-mid-century"


@pytest.fixture(scope="module")
def users(opensearch_secure: OpenSearchSettings) -> Iterator[dict[str, OpenSearchSettings]]:
    """Settings of a user for each shipped role, of the prefix `shop`."""
    cluster = Cluster(opensearch_secure)
    api = "/_plugins/_security/api"
    settings = {}
    for file in files("indexers.backends.opensearch").joinpath("roles").iterdir():
        name, role = file.name.removesuffix(".json"), file.read_text("utf-8")
        role = role.replace("PREFIX", "shop").replace("INDEX", "products")
        cluster.call("PUT", f"{api}/roles/{name}", body=role, doing="making a role")
        user = {"password": PASSWORD, "opendistro_security_roles": [name]}
        cluster.call("PUT", f"{api}/internalusers/user_of_{name}", body=user, doing="making a user")
        update = {"username": f"user_of_{name}", "password": SecretStr(PASSWORD), "prefix": "shop"}
        settings[name] = opensearch_secure.model_copy(update=update)
    yield settings
    cluster.close()


def refused(what: Callable[[], object]) -> None:
    with pytest.raises(ServiceError, match="no permissions for .*docs"):
        what()


def write_past(backend: OpenSearchBackend) -> None:
    """A document that no push wrote."""
    path, body = "/shop-items/_doc", {"item_id": "x"}
    backend.cluster.call("POST", path, body=body, doing="meddling")


def test_each_role_does_its_job_and_is_refused_the_others(
    users: dict[str, OpenSearchSettings], tmp_path: Path
) -> None:
    store = Store(tmp_path)
    items, older = frozen(store, "item", SHOP, round_=1), frozen(store, "item", SHOP[:3])
    queries = frozen(store, "query", SHOPPERS)
    writer = OpenSearchBackend(users["writer"].model_copy(update={"replicas": 1}), store)
    publisher, reader, merger = (
        OpenSearchBackend(users[name], store) for name in ("publisher", "reader", "merger")
    )
    for snapshot in (older, items, queries):
        writer.push(snapshot)
        writer.verify(snapshot, [["sofa", "couch"], ["lamp"]])
        writer.verify(snapshot, [], every=True)
    refused(lambda: writer.publish({"item": older.id, "query": queries.id}))

    publisher.publish({"item": older.id, "query": queries.id})
    assert publisher.publish({"item": items.id}) == {"item": older.id}
    assert {one.snapshot for one in publisher.list()} == {items.id, older.id, queries.id}
    publisher.delete(older.id)
    refused(lambda: publisher.push(older))
    refused(lambda: write_past(publisher))

    # Also an update, which copies the parent's index and writes the difference alone.
    changed = sorted(
        [*SHOP[1:], dataclasses.replace(SHOP[0], keywords=("sofa",))], key=lambda row: row.id
    )
    update = write_snapshot(store, "item", changed, Provenance(round=1, parent=items.id))
    assert writer.push(update).written == 1
    writer.verify(update, [["sofa", "couch"], ["lamp"]])

    for user in (reader, publisher):
        found = user.search(["sofa"], snapshot=items.id, words=Words("sofa"))
        assert found.total == 4
    assert reader.retrieved(["sofa"], snapshot=items.id).total == 4
    row = reader.lookup("Lamp", snapshot=queries.id)
    assert row.keywords == ("lamp", "light")
    # By the stored template too, where the node has mustache.
    body = {"id": "shop-search", "params": {"keywords": ["sofa"]}}
    _, refusal = reader.cluster.try_once("POST", "/shop-items/_search/template", body)
    assert refusal is None or refusal.status != 403
    # And as the clients ask: by two searches of one request.
    bodies = "".join(f"{{}}\n{json.dumps(body)}\n" for _ in range(2)).encode()
    _, refusal = reader.cluster.try_once("POST", "/shop-items/_msearch/template", bodies)
    assert refusal is None or refusal.status != 403
    assert len(reader.cluster.call("GET", "/shop-items,shop-queries/_alias", doing="looking")) == 2
    refused(lambda: reader.push(older))
    refused(lambda: reader.publish({"item": update.id}))
    refused(lambda: reader.delete(update.id))
    refused(lambda: write_past(reader))
    refused(lambda: merger.retrieved(["sofa"], snapshot=items.id))
    assert merger.serving() == reader.serving()
    publisher.delete(update.id)


def test_a_role_is_of_one_catalogue(users: dict[str, OpenSearchSettings], tmp_path: Path) -> None:
    store = Store(tmp_path)
    older = frozen(store, "item", SHOP[:3])
    # Also one whose prefix begins with the other's, and one that looks like its indexes.
    for prefix in ("else", "shop-eu", "shop-items"):
        for name in ("writer", "publisher", "reader"):
            elsewhere = OpenSearchBackend(users[name].model_copy(update={"prefix": prefix}), store)
            refused(lambda elsewhere=elsewhere: elsewhere.push(older))  # type: ignore[misc]
            refused(elsewhere.serving)


def test_a_wrong_password_is_said(opensearch_secure: OpenSearchSettings) -> None:
    for update in ({"password": SecretStr("wrong")}, {"username": None, "password": None}):
        with pytest.raises(ServiceError, match=r"opensearch\.username") as error:
            _ = Cluster(opensearch_secure.model_copy(update=update)).version
        assert error.value.exit_status == 3
        assert "wrong" not in str(error.value)


def test_a_certificate_that_can_not_be_verified_is_said(
    opensearch_secure: OpenSearchSettings,
) -> None:
    assert Cluster(opensearch_secure).version.text == "3.4.0"
    with pytest.raises(ServiceError, match=r"TLS: .*opensearch\.ca_file"):
        _ = Cluster(opensearch_secure.model_copy(update={"ca_file": None})).version
