"""The sample shop and the demo: `cogr-train demo` sends 400 self-written items through the whole
path. Each row is a way to search the shop, measured on the test queries. The pair that is best on
dev is published as in production and searched; summary and report are written.

The demo's folder is an ordinary workspace: every command works on it with `-c .demo/cogr.toml`, and
`cogr-train run` does the same training.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from cogr.errors import TrainingError, UserError
from cogr.metrics import measures_of
from cogr.records import Say, Split
from cogr.settings import read_flag
from cogr.store import Store, storage_errors
from indexers.search import search
from indexers.tables import Table
from indexers.telemetry import logs
from indexers.workspace import Workspace
from trainers import evaluation
from trainers.report import check_extra, write_report
from trainers.training.contest import (
    Choice,
    Contender,
    choose,
    contenders,
    generated_pair,
    measured_baselines,
    of_round,
    publish_pair,
)
from trainers.training.driver import Driver
from trainers.training.rounds import DEFAULT_RUN, Round, Run, create
from trainers.training.stage import (
    InThisProcess,
    Launcher,
    calm_threads,
    one_start_a_round,
)
from trainers.training.trainer_config import check_settings

CATALOGUE = Path(__file__).parent / "data"
"""The bundled catalogue (loader `jsonl`), which `benchmarks/_shop.py` makes: 400 items, 182 queries
and their labels.
"""
SPLIT: Split = "test"
GENERATORS = ("extractive", "statistical")
"""The generators without training, in the order of the table."""
SEARCHES = ("metal bookshelf", "armchair small", "wicker workstation", "Sofa rustikal", "实木 书桌")
"""Test queries to show, in the shop's three languages."""
HITS = 3
_COLUMNS = {
    "name": ("", 0),
    **{key: (heading, 3) for key, heading in measures_of("rounds").items()},
    "keywords_per_item": ("keywords an item", 1),
    "seconds": ("seconds", 1),
}
"""Value of a row -> its heading and digits."""
_FIGURES = [*_COLUMNS][1:-1]
MARK = "# Written by cogr-train demo."
_HEAD = f"{MARK} Your own shop: copy this file and point dataset.path at your folder.\n"
_OWN = {
    "store": "store",
    "dataset.loader": "jsonl",
    "dataset.path": "shop",
    "opensearch.prefix": "cogr-demo",
    # A model of this size leaves some items without keywords; their titles still find them.
    "rebuild.max_failure_share": 0.25,
}
SAMPLE_SETTINGS: dict[str, Any] = {
    "keywords.k_max": 12,
    # Every word of an instruction distracts a model of this size.
    "prompts.templates": "bare",
    # Its figures are the same with and without a network.
    "generator.statistical.encoder": "none",
    "generator.sampling.temperature": 0,
    "generator.sampling.max_tokens": 48,
    "training.model": "tiny",
    "training.invented_queries": 500,
    "training.sft.item_keywords": 12,
    "training.sft.query_keywords": 10,
    "training.sft.epochs": 12,
    "training.sft.learning_rate": 3e-3,
    "training.sft.batch_size": 16,
    "training.rollouts.max_tokens": 40,
    "training.query.max_steps": 25,
    "training.query.prompts_per_step": 50,
    "training.query.learning_rate": 1e-3,
    "training.item.max_steps": 10,
    "training.item.prompts_per_step": 32,
    "training.item.learning_rate": 5e-4,
}
"""Dotted key -> value, by which `tiny` learns the sample shop."""


def run_demo(
    backend: Literal["memory", "opensearch"], out: Path, more: Sequence[str] = ()
) -> tuple[dict[str, Any], list[Table]]:
    """The whole demo: measure every row, search what serves in the end, write summary.json and
    report.html. What is finished stays in the folder, also after an error. Returns the result for
    JSON, with the files that were written, and for people.

    `more` are `key=value` settings over the sample's own. Raises UserError, CheckFailedError where
    a training stage has collapsed, and ServiceError.
    """
    config = lay_out(out, backend, more)
    workspace = Workspace.open(config, ())
    calm_threads(workspace.settings.training)
    # Check for missing packages now, not after minutes.
    check_extra()
    check_settings(workspace)
    workspace.backend.serving()
    shop = Shop(workspace, config)
    choice = shop.measure()
    report, summary = out / "report.html", out / "summary.json"
    write_report(workspace, shop.run, report)
    payload = {
        "backend": workspace.backend.name,
        "split": SPLIT,
        "queries": len(workspace.dataset.require(SPLIT)),
        "rows": shop.rows,
        "serving": choice.chosen.name,
        "why": choice.reason(),
    }
    Store(out).write_json(summary.name, payload)
    answers = [search(workspace, text, size=HITS) for text in SEARCHES]
    payload |= {"searches": [answer.as_dict() for answer in answers]}
    payload |= {"config": config, "summary": summary, "report": report}
    return payload, [shop.table(choice), *(answer.table() for answer in answers)]


# The folder


def lay_out(out: Path, backend: str, more: Sequence[str] = ()) -> Path:
    """Put the shop and its configuration into the demo's folder. Returns the configuration's file.
    Raises UserError where the folder has a configuration of somebody else, or `more` a key without
    a value, and StorageError.
    """
    config = out / "cogr.toml"
    values = {**_OWN, "backend": backend, **SAMPLE_SETTINGS, **dict(map(read_flag, more))}
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
    with storage_errors(str(out)):
        if config.exists() and not config.read_text("utf-8", errors="replace").startswith(MARK):
            raise UserError(
                f"{config} was not written by the demo; name another folder with --out."
            )
        (out / "shop").mkdir(parents=True, exist_ok=True)
        for file in sorted(CATALOGUE.glob("*.jsonl")):
            shutil.copyfile(file, out / "shop" / file.name)
        config.write_text(_HEAD + "".join(lines), "utf-8")
    return config


def train_sample(config: Path, say: Say, overrides: Sequence[str] = ()) -> Iterator[Round]:
    """SFT and two rounds on the shop of a configuration, one after another as they finish.

    What an earlier call finished is not repeated; a run with other settings or data is begun anew.
    `say` gets a message when a stage begins; `overrides` are `--set` values.
    """
    workspace = Workspace.open(config, overrides)
    try:
        run = create(workspace)
    except TrainingError:
        workspace.store.remove(f"runs/{DEFAULT_RUN}")
        run = create(workspace)
    small = one_start_a_round(workspace.settings.training)
    launcher = (InThisProcess if small else Launcher)(config, overrides)
    driver = Driver(workspace, run, launcher, say)
    for number in range(3):
        driver.reach(number)
        yield run.state().rounds[number]


# The rows


class Shop:
    """The rows of the demo's table, one after another as they are measured.

    Attributes:
        rows: figures of the whole retrieved set (bm25: of the best k items) and of the ranking,
            keywords an item, seconds from texts to figures, snapshots, why a round was rejected.
    """

    def __init__(self, workspace: Workspace, config: Path) -> None:
        self.workspace, self._config = workspace, config
        self.run = Run(workspace.store, DEFAULT_RUN)
        self.rows: list[dict[str, Any]] = []

    def measure(self) -> Choice:
        """Measure all rows, and let the pair serve that is chosen on dev."""
        dataset, began = self.workspace.dataset, time.monotonic()
        words = evaluation.bm25(dataset, SPLIT).row(dataset, SPLIT)
        self._add(Contender("bm25", "", "", {SPLIT: words}), began)
        for name in GENERATORS:
            began = time.monotonic()
            logs.say(f"{name}: items and queries")
            self._add(generated_pair(self.workspace, name, (SPLIT,)), began)
        # What an earlier demo has trained is not trained again.
        for done in train_sample(self._config, logs.say):
            began = time.monotonic() - sum(stage.seconds for stage in done.stages)
            rejected = done.reason if done.verdict == "rejected" else ""
            self._add(of_round(done), began, rejected)
        began = time.monotonic()
        beside = measured_baselines(self.workspace, self.run, logs.say)
        choice = choose(contenders(self.run.state(), beside))
        assert beside.distilled is not None, "rounds are finished"
        assert choice is not None, "the sample shop has dev queries"
        self._add(beside.distilled, began)
        self._serve(choice.chosen)
        return choice

    def table(self, choice: Choice) -> Table:
        """All rows, what serves and why."""
        rows = [
            {title: _spelled(row[name], digits) for name, (title, digits) in _COLUMNS.items()}
            for row in self.rows
        ]
        gone = [row for row in self.rows if row["rejected"]]
        notes = [f"{row['name']} is not built upon: {row['rejected']}." for row in gone]
        notes.append(f"{choice.chosen.name} serves, chosen on dev: {choice.reason()}.\n")
        return Table("The sample shop, 50 test queries", rows, notes)

    def _add(self, pair: Contender, began: float, rejected: str = "") -> None:
        figures = pair.figures[SPLIT]
        row: dict[str, Any] = {"name": pair.name, "items": pair.items, "queries": pair.queries}
        row |= {"rejected": rejected, "keywords_per_item": None}
        row |= {key: round(float(figures[key]), 4) for key in _FIGURES if key in figures}
        self.rows.append({**row, "seconds": round(time.monotonic() - began, 3)})
        logs.say(f"{pair.name}: F1 {figures['f1']:.3f}")

    def _serve(self, pair: Contender) -> None:
        """Publish a pair, and measure it as it serves."""
        began, workspace = time.monotonic(), self.workspace
        publish_pair(workspace, pair, lambda _: None, gate=False)
        item, query = (workspace.serving(side) for side in ("item", "query"))
        evaluated = evaluation.evaluate(workspace, item, query, SPLIT)
        served = Contender(f"serves: {pair.name}", item.id, query.id, {SPLIT: evaluated.as_dict()})
        self._add(served, began)


def _spelled(value: Any, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}f}" if digits else str(value)
