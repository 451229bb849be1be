"""A small shop with two rounds of snapshots, labels, and items with hostile texts, for tests of the
playground.
"""

from __future__ import annotations

import json
from pathlib import Path

from cogr.settings import load_settings
from cogr.snapshots import Row
from indexers.workspace import Workspace
from tests.ops.expander.expander_worlds import freeze, serve_pair
from tests.shops import write_beir

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "\"'><svg onload=alert(1)>{{7*7}}",
    "txet \u202eesrever\u202c",
)
TITLES = {
    "a": "Velvet sofa, green",
    "b": "Green couch",
    "c": "Oak table",
    "d": "Armchair in velvet",
    "new": "Loveseat",
    **{f"h{at}": title for at, title in enumerate(HOSTILE)},
}
LABELS = {"green sofa": ("a", "b", "new"), "<b>bold</b> table": ("c", "new")}
"""Of them, `new` is in the data set alone: no snapshot holds it yet."""
ITEMS = {
    "a": ("sofa", "couch", "velvet"),
    "b": ("sofa", "couch"),
    "c": ("table", "hostile"),
    "d": ("sofa", "velvet"),
    **{f"h{at}": ("hostile", "<i>italic</i>") for at in range(len(HOSTILE))},
}
FIELDS = {"a": {"brand": HOSTILE[0], "price": 899.5}, "b": {"in_stock": True}}
"""The rest have none."""
QUERIES = {
    "green sofa": ("sofa", "couch"),
    "velvet things": ("velvet",),
    "<b>bold</b> table": ("hostile", "table"),
}
EARLIER = {**dict.fromkeys(ITEMS, ()), "a": ("sofa",), "c": ("table",)}


def workspace(folder: Path, *overrides: str) -> Workspace:
    """The shop's configuration and data in a folder; nothing is indexed yet."""
    ids = {text: f"q{at}" for at, text in enumerate(LABELS)}
    # A machine under load answers as a quiet one does: nothing here is about deadlines.
    write_beir(
        folder / "data",
        [{"id": id_, "title": title, "text": f"About {title}"} for id_, title in TITLES.items()],
        [{"id": id_, "text": text, "split": "test"} for text, id_ in ids.items()],
        [
            {"query": ids[text], "item": item, "grade": 1}
            for text, items in LABELS.items()
            for item in items
        ],
    )
    (folder / "cogr.toml").write_text(
        # Not of one's own: these keep their HTML.
        '[dataset]\nloader = "beir"\npath = "data"\n[serving]\nlive = "none"\ndeadline = 60\n'
    )
    return Workspace(load_settings(folder / "cogr.toml", overrides))


def two_rounds(workspace: Workspace) -> dict[str, str]:
    """Freeze both rounds, let the later one serve; its pair, as the page names it."""
    queries = [Row(f"q{at}", text, words) for at, (text, words) in enumerate(QUERIES.items())]
    freeze(workspace, "item", _rows(EARLIER), 1)
    freeze(workspace, "query", queries[:1], 1)
    item, query = serve_pair(workspace, _rows(ITEMS), queries, 2)
    return {"item": item, "query": query}


def _rows(sets: dict[str, tuple[str, ...]]) -> list[Row]:
    return [
        Row(id_, TITLES[id_], words, json.dumps(FIELDS[id_]) if id_ in FIELDS else "")
        for id_, words in sets.items()
    ]
