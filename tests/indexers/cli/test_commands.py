"""cogr-index on a small shop with the embedded backend: every command does what its help says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from cogr.snapshots import Row
from cogr.store import Store
from tests.commands import Command
from tests.shops import frozen


def test_a_part_of_a_side_no_push_and_no_publish(shop: Path, cogr_index: Command) -> None:
    part = cogr_index("rebuild", "--side", "item", "--limit", 2, "--json").json
    assert (part["items"], part["published"], part["index"]) == (2, False, None)
    store = Store(shop / ".cogr")
    store.remove(f"snapshots/{part['snapshot']}")
    made = cogr_index("rebuild", "--side", "item", "--no-push", "--json").json
    rows = cogr_index("list", "--json").json["snapshots"]
    assert [(row["pushed"], row["serving"]) for row in rows] == [(False, False)]
    # Where nothing serves, the newest is exported.
    exported = cogr_index("export", "keywords", "out.jsonl", "--json").json
    assert exported["snapshot"] == made["snapshot"]
    assert cogr_index("rebuild", "--side", "item", "--no-publish", "--json").status == 0
    rows = cogr_index("list", "--json").json["snapshots"]
    assert [(row["pushed"], row["serving"]) for row in rows] == [(True, False)]
    published = cogr_index("publish", made["snapshot"], "--json").json
    assert published["serving"]["item"] == made["snapshot"]


def test_a_diff_names_keywords_and_entities(shop: Path, cogr_index: Command) -> None:
    store = Store(shop / ".cogr")
    same = Row("c", "C", ("z",))
    before = [Row("a", "A", ("x", "y")), Row("b", "B", ("x",)), same]
    after = [Row("a", "A", ("y", "n", "m")), same, Row("d", "D", ("n",))]
    old, new = (frozen(store, "item", rows).id for rows in (before, after))
    found = cogr_index("diff", old, new, "--json").json
    assert (found["new"], found["gone"], found["changed"]) == (1, 1, 1)
    assert found["gained"] == [["n", 2], ["m", 1]]
    assert found["lost"] == [["x", 2]]
    assert found["entities"][0] == {"id": "a", "text": "A", "gained": ["n", "m"], "lost": ["x"]}
    assert "n (2), m (1)" in cogr_index("diff", old, new).out


def test_what_a_command_advises_runs_as_printed(
    shop: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another folder, with the configuration that the command was given."""
    monkeypatch.chdir(shop.parent)
    config = shop.rename(shop.with_name("a shop")) / "cogr.toml"
    refused = [
        cogr_index("search", "sofa", "-c", config).err,
        cogr_index("verify", f"--config={config}").err,
        cogr_index("verify", "item-r000-000000000000", "-c", config).err,
        cogr_index("list", "-c", config).out,
    ]
    for said in refused:
        told = re.search(r"run (cogr-index rebuild .*? --side item)", " ".join(said.split()))
        assert told, said
        assert cogr_index(*shlex.split(told[1])[1:], "--no-publish").status == 0
    assert cogr_index("verify").status == 2  # No configuration, so nothing to add.


def test_prune_never_takes_what_is_in_use(shop: Path, cogr_index: Command) -> None:
    store = Store(shop / ".cogr")
    for seed in range(5):
        made = frozen(store, "item", [Row("a", "x", (f"k{seed}",))]).id
        assert cogr_index("publish", made, "--no-switch").status == 0
    # Snapshots of one second are in id order, not in the order of this test.
    order = [row["snapshot"] for row in cogr_index("list", "--json").json["snapshots"]]
    serves, trained = order[0], order[1]
    assert cogr_index("publish", serves).status == 0
    store.write_json("runs/mine/state.json", {"rounds": [{"stages": [{"output": trained}]}]})
    planned = cogr_index("prune", "--keep", "1", "--files", "--dry-run", "--json").json
    assert planned["from_backend"] == planned["from_store"] == order[2:4]
    assert planned["in_use"] == {serves: "what serves", trained: "the run mine"}
    assert len(cogr_index("list", "--json").json["snapshots"]) == 5
    pruned = cogr_index("prune", "--keep", "1", "--files", "--json").json
    assert pruned == {**planned, "dry_run": False}
    rows = cogr_index("list", "--json").json["snapshots"]
    assert {row["snapshot"] for row in rows if row["pushed"]} == {serves, trained, order[4]}
    assert sorted(store.list("snapshots")) == sorted([serves, trained, order[4]])
    # Without --files the keyword sets stay, and can be pushed again.
    assert cogr_index("publish", trained).status == 0
    pruned = cogr_index("prune", "--keep", "0", "--json").json
    assert (pruned["from_backend"], pruned["in_use"][serves]) == ([order[4]], "a rollback")
    assert cogr_index("publish", order[4], "--no-switch").status == 0
