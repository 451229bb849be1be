"""The demo, step by step: lay out a folder, take each row through the real path, search what then serves, write summary.json.

The folder is an ordinary workspace: every command works on it with `-c .demo/cogr.toml`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from cogr.errors import DataError, UserError
from cogr.records import Dataset
from cogr.settings import Settings, load_settings
from cogr.store import Store, storage_errors
from indexers import console
from indexers.searching import search
from indexers.workspace import Workspace
from trainers.demo import CATALOGUE
from trainers.demo.rows import SPLIT, Row, bm25_row, generator_row
from trainers.demo.server import search_server
from trainers.demo.show import Progress, next_steps, results

GENERATORS = ("extractive", "statistical")
"""In the order of the table; the last one is what serves in the end."""
SEARCHES = ("metal bookshelf", "armchair small", "wicker workstation", "Sofa rustikal", "实木 书桌")
"""Test queries to show, in the shop's three languages."""
HITS = 3

MARK = "# Written by cogr-train demo."
CONFIGURATION = """\
{mark} Your own shop: copy this file and point dataset.path at your folder.
store = "store"
backend = "{backend}"

[dataset]
loader = "jsonl"
path = "shop"

[opensearch]
prefix = "cogr-demo"
"""


def run(backend: Literal["memory", "opensearch"], out: Path, json_mode: bool) -> None:
    """The whole demo. Raises UserError and ServiceError; what was generated stays in the folder's cache."""
    config = lay_out(out, backend)
    if backend == "memory":
        demo = Demo(Workspace(demo_settings(config, backend)))
        demo.run(json_mode)
        next_steps(config, demo.summary_file, server_stopped=False)
        return
    with search_server(demo_settings(config, "auto").opensearch.url) as server:
        demo = Demo(Workspace(demo_settings(config, backend, server.url)))
        demo.run(json_mode)
    next_steps(config, demo.summary_file, server_stopped=server.ours)


def lay_out(out: Path, backend: str) -> Path:
    """Put the shop and its configuration into the demo's folder; returns the configuration's path.

    Raises:
        UserError: the folder has a configuration that the demo did not write.
        StorageError: it can't be written.
    """
    config = out / "cogr.toml"
    with storage_errors(str(out)):
        if config.exists() and not config.read_text("utf-8", errors="replace").startswith(MARK):
            raise UserError(f"{config} was not written by the demo; name another folder with --out.")
        (out / "shop").mkdir(parents=True, exist_ok=True)
        for file in sorted(CATALOGUE.glob("*.jsonl")):
            shutil.copyfile(file, out / "shop" / file.name)
        config.write_text(CONFIGURATION.format(mark=MARK, backend=backend), "utf-8")
    return config


def demo_settings(config: Path, backend: str, url: str | None = None) -> Settings:
    """The demo's settings; data and store are the folder's own, whatever the environment says of another project."""
    folder = config.resolve().parent
    own = {"dataset.loader": "jsonl", "dataset.path": str(folder / "shop"), "store": str(folder / "store")}
    if url is not None:
        own["opensearch.url"] = url
    overrides = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in own.items()]
    return load_settings(config, [*overrides, f"backend={backend}"])


class Demo:
    """One run of the demo on an open workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.summary_file = Path(workspace.settings.store).parent / "summary.json"

    def run(self, json_mode: bool) -> None:
        """Measure every row, search, write summary.json, print."""
        dataset = self.workspace.dataset
        # A server that is away is better known now than after the first row.
        self.workspace.backend.serving()
        with Progress() as progress:
            progress.say("bm25")
            progress.add(bm25_row(dataset))
            for name in GENERATORS:
                progress.add(generator_row(self.workspace, name, progress.bar, progress.say))
        answers = [search(self.workspace, text, size=HITS) for text in SEARCHES]
        summary = self._write_summary(progress.rows)
        payload = {**summary, "summary": self.summary_file, "searches": [answer.as_dict() for answer in answers]}
        relevant = [relevant_items(dataset, answer.query) for answer in answers]
        console.emit(
            json_mode, payload, lambda out: results(out, progress.rows, list(zip(answers, relevant, strict=True)))
        )

    def _write_summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        summary = {
            "backend": self.workspace.backend.name,
            "split": SPLIT,
            "queries": len(self.workspace.dataset.require(SPLIT)),
            "rows": [row.as_dict() for row in rows],
        }
        Store(self.summary_file.parent).write_json(self.summary_file.name, summary)
        return summary


def relevant_items(dataset: Dataset, text: str) -> frozenset[str]:
    """Ids of the items that are relevant to a test query, by its text. Raises DataError when it is none."""
    for query in dataset.require(SPLIT):
        if query.text == text:
            return dataset.relevant[query.id]
    raise DataError(f"The sample shop has no {SPLIT} query {text!r}; write the catalogue again (docs/demo.md).")
