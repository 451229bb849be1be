"""The stored search template of a field: it names the field of one snapshot. Replacing it is the
switch, and atomic.

Clients call it by its name, which never changes: `POST /<index>/_search/template {"id": NAME,
"params": {"keywords": [...]}}`. Its parameters are those of `<prefix>-search`; it gives whole
documents back, and ties stand in no order.
"""

from __future__ import annotations

import re

from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.into.target import Target, snapshot_of
from indexers.backends.opensearch.template import source


def template_name(prefix: str, target: Target) -> str:
    """The template's name, such as `shop-products-cogr_keywords`."""
    return f"{prefix}-{target.name}-{target.field}"


def switch(cluster: Cluster, template: str, name: str) -> None:
    """Let searches by the template use a field."""
    body = {"script": {"lang": "mustache", "source": source(name, id_field=None, shown=())}}
    cluster.call(
        "PUT", f"/_scripts/{template}", body=body, doing=f"storing the search template {template}"
    )


def switched_to(cluster: Cluster, template: str, target: Target) -> str | None:
    """The snapshot whose field the template names; None when there is no template yet."""
    answer = cluster.call(
        "GET", f"/_scripts/{template}", doing=f"reading the template {template}", missing_ok=True
    )
    stored = answer["script"]["source"] if answer else ""
    named = (snapshot_of(target.field, word) for word in re.findall(r"\w+", stored))
    return next(filter(None, named), None)
