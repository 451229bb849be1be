"""`cogr.Project`: the commands as Python methods, for notebooks and pipelines.

Each method does the work of the command with the same name. It returns a `Result`, which a notebook
shows as a table and which converts to pandas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cogr.errors import DataError, UserError
from cogr.metrics import measures_of
from cogr.records import Dataset, Say, Side, Split
from cogr.settings import leaves
from cogr.snapshots import why_no_pair
from cogr.store import Store
from indexers.generators.statistical.generator import f1_in, facts_of, told_f1
from indexers.tables import Table
from indexers.workspace import Workspace

if TYPE_CHECKING:
    from pandas import DataFrame

    from indexers.rebuild.assembly import Rebuilt
    from trainers.evaluation import Evaluation
    from trainers.training.driver import Driver
    from trainers.training.rounds import Round

_Records = Any
"""A DataFrame of pandas or polars, or mappings: items, queries or judgements with the fields that
docs/datasets.md names for `jsonl`.
"""


# Results

_SHOWN = 20
_UNSHOWN = ("name", "dataset_hash", "verdict", "advice")


@dataclass(frozen=True, repr=False)
class Result:
    """What a method returns: it shows as a table, and converts to pandas.

    Attributes:
        found: what the command works with.
        table: title, rows and notes.
        payload: the output of the command with `--json`.
    """

    found: Any
    table: Table
    payload: Mapping[str, Any]

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows of the table, each column -> value."""
        return self.table.rows

    def as_dict(self) -> dict[str, Any]:
        """The output of the command with `--json`."""
        return dict(self.payload)

    def to_pandas(self) -> DataFrame:
        """The table as a frame. Raises MissingExtraError without pandas."""
        return self.table.to_pandas()

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        """For notebooks. Texts of items are escaped."""
        return self.table._repr_html_()


def rebuilt(result: Rebuilt) -> Table:
    """A row for each of the new snapshot's first twenty entities, with its keywords."""
    snapshot, state = result.snapshot, "serves" if result.published else "does not serve"
    rows = [
        {"id": row.id, "text": row.text, "keywords": ", ".join(row.keywords)}
        for row in islice(snapshot.rows(), _SHOWN)
    ]
    note = (
        "{items:,} entities, {keywords:,} keywords, {failures:,} set aside, {seconds:.1f} s; {why}."
    )
    return Table(f"{snapshot.id}, which {state}", rows, [note.format_map(result.as_dict())])


def evaluated(result: Evaluation, beside: Sequence[Mapping[str, Any]], told: str = "") -> Table:
    """Figures of a pair by its keywords alone, and of other ways to search; and what its fit
    expected.
    """
    every = [{"name": "keywords", **result.as_dict()}, *beside]
    sets = "".join(f"; {row['name']}: of {row['sets']}" for row in beside)
    gains = {"grades": "the labels' grades", "binary": "1 for relevant items"}[result.ndcg_gains]
    return Table(
        f"{result.split}: {result.queries:,} queries, {result.backend}",
        [{name: row[name] for name in ("name", *measures_of("evaluate"))} for row in every],
        [
            f"p, r and f1 are of the whole retrieved set{sets}.",
            f"All other figures are of the whole ranking, for BM25 too; gains in nDCG are {gains}.",
            f"{result.item_snapshot} has {result.keywords_per_item:.1f} keywords an item, "
            f"{result.query_snapshot} has {result.keywords_per_query:.1f} a query.",
            *([f"By the fit: {told}."] if told else []),
        ],
    )


@dataclass(frozen=True, repr=False)
class TrainedRun(Result):
    """A training run: its rounds, the pair chosen on dev, the pair that serves; `found` is its
    `RunStatus`.
    """

    driver: Driver
    last: Round

    @property
    def snapshots(self) -> Mapping[Side, str]:
        """The pair that is best on dev, else that of the last round; arguments for
        `Project.release`.
        """
        choice = self.found.choice
        best = self.last if choice is None else choice.chosen
        return {"item": best.items, "query": best.queries}


# The project


class Project:
    """One configuration: its data, its store, and what serves. Make one with `Project.open` or
    `Project.create`; `say` gets each line about the progress.
    """

    def __init__(
        self,
        workspace: Workspace,
        config: Path | None = None,
        overrides: Sequence[str] = (),
        say: Say = print,
    ) -> None:
        self.workspace = workspace
        self._config = config
        self._overrides = tuple(overrides)
        self._say = say

    @classmethod
    def open(
        cls,
        config: str | Path | None = None,
        overrides: Sequence[str] = (),
        *,
        backend: Literal["memory", "opensearch"] | None = None,
        say: Say = print,
    ) -> Project:
        """A project by its configuration file, ./cogr.toml when None; overrides are settings such
        as "keywords.k_max=20", as `--set` takes them.

        Raises SettingsError for a missing or broken file, an unknown key, a wrong value.
        """
        path = None if config is None else Path(config)
        named = [*overrides, *([f"backend={backend}"] if backend else [])]
        return cls(Workspace.open(path, named), path, named, say)

    @classmethod
    def create(
        cls,
        folder: str | Path,
        items: _Records,
        queries: _Records = (),
        labels: _Records = (),
        settings: Mapping[str, Any] | None = None,
        *,
        say: Say = print,
    ) -> Project:
        """A project of records in memory: a folder with `cogr.toml` and the data as jsonl, which
        the commands take as well.

        Call it again with other records and the data are replaced; keywords that were generated
        stay cached. The data are loaded at once, so that a wrong name of a column shows here.
        `settings` are the rest of the configuration, as tables in tables.

        Raises:
            DataError: the folder has another configuration; a record that JSON can't hold.
            SettingsError: an unknown key, a wrong value.
        """
        home = Path(folder)
        named = {"store": ".cogr", **(settings or {})}
        named["dataset"] = {"loader": "jsonl", "path": "data", **named.get("dataset", {})}
        text = "".join(
            f"{'.'.join(path)} = {json.dumps(value, ensure_ascii=False)}\n"
            for path, value in leaves(named)
        )
        config = home / "cogr.toml"
        if config.exists() and config.read_text("utf-8") != text:
            raise DataError(
                f"{config} already exists with other settings; open it with Project.open, or name "
                "another folder."
            )
        data = Store(home / "data")
        for name, records in (("items", items), ("queries", queries), ("labels", labels)):
            data.write(f"{name}.jsonl", _jsonl(name, records).encode())
        new = not config.exists()
        Store(home).write("cogr.toml", text.encode())
        try:
            project = cls.open(config, say=say)
            project.dataset  # noqa: B018
        except UserError:
            if new:
                config.unlink()
            raise
        return project

    @property
    def dataset(self) -> Dataset:
        """Items, queries and labels; loaded when they are first asked for. Raises DataError."""
        return self.workspace.dataset

    def inspect(self) -> Result:
        """The contents of the data, its faults, and whether it suits CoGR, as `cogr-index inspect`
        says it.
        """
        from indexers.inspection import examine

        findings = examine(self.workspace)
        payload = asdict(findings)
        counts = {name: value for name, value in payload.items() if name not in _UNSHOWN}
        title = f"{findings.name}, {findings.items:,} items. What to do: {findings.verdict}"
        return Result(findings, Table.of(title, counts, findings.advice), payload)

    def rebuild(
        self,
        side: Side,
        generator: str | None = None,
        *,
        limit: int | None = None,
        publish: bool = True,
        workers: Literal["local", "celery"] | None = None,
    ) -> Result:
        """Rebuild a whole side: generate its keywords, freeze them, push, verify and publish the
        snapshot. After an interruption call it again: it goes on.

        Args:
            limit: only the first entities; then nothing is pushed.

        Raises:
            LockedError: another rebuild of this side is under way.
            CheckFailedError: too many entities were set aside, or a check failed; nothing was
                switched.
            ServiceError: a service can't be reached; the same call goes on.
        """
        from indexers.rebuild.run import RebuildRequest, RebuildRun
        from indexers.telemetry.terminal import progress_bar

        request = RebuildRequest(side, generator, limit, True, publish, workers)
        result = RebuildRun(self.workspace, request, progress_bar, self._say).carry_out()
        return Result(result, rebuilt(result), result.as_dict())

    def evaluate(
        self,
        split: Split = "test",
        *,
        item: str | None = None,
        query: str | None = None,
        baselines: bool = False,
    ) -> Result:
        """Precision, recall, F1 and rank metrics of a pair on one split: of its keywords alone, and
        of what serves.

        An item snapshot that the backend lacks is pushed, but does not serve.

        Args:
            item, query: ids of snapshots; what serves by default.
            baselines: also measure BM25.

        Raises:
            SnapshotError: nothing serves, an unknown id, a pair that does not fit.
            DataError: the split is empty.
        """
        from trainers.evaluation import bm25, ensure_pushed, evaluate, served
        from trainers.training.contest import knows_dev
        from trainers.training.rounds import with_dev

        workspace = with_dev(self.workspace)
        items = workspace.snapshot(item, "item") if item else workspace.serving("item")
        queries = workspace.snapshot(query, "query") if query else workspace.serving("query")
        if why := why_no_pair(items.manifest, queries.manifest):
            self._say(f"{items.id} and {queries.id} are not a pair: {why}.")
        if ensure_pushed(workspace.backend, items):
            self._say(f"pushed {items.id} to {workspace.backend.name} beside what serves")
        if split == "dev" and knows_dev(workspace, items, queries):
            self._say(
                "This pair was trained on the labels of these dev queries, so its figures on them "
                "are too high."
            )
        result = evaluate(workspace, items, queries, split)
        beside = [served(workspace, split, items, queries)]
        beside += [bm25(workspace.dataset, split)] if baselines else []
        rows = [one.row(workspace.dataset, split) for one in beside]
        facts = facts_of(workspace.store, queries.manifest.generator)
        payload = {**result.as_dict(), "serves": rows[0], "fit": f1_in(facts)}
        payload |= {"baselines": rows[1:]} if baselines else {}
        return Result(result, evaluated(result, rows, told_f1(facts)), payload)

    def search(
        self,
        text: str,
        *,
        size: int = 10,
        keywords: str | None = None,
        keywords_only: bool = False,
    ) -> Result:
        """Search the snapshots that serve, as `cogr-index search` does.

        Args:
            keywords: comma-separated keywords instead of the query's own.
            keywords_only: by keywords alone, without the query's words.

        Raises:
            SnapshotError: no item snapshot serves.
            UserError: neither text nor keywords.
            ServiceError: the backend can't be reached.
        """
        from indexers.search import search

        answer = search(
            self.workspace, text, size=size, keywords=keywords, keywords_only=keywords_only
        )
        return Result(answer, answer.table(), answer.as_dict())

    def train(
        self,
        rounds: int | None = 5,
        *,
        run: str = "main",
        publish: bool = False,
    ) -> TrainedRun:
        """Do SFT where it is not done, then rounds until the run has so many. After an interruption
        call it again: it goes on.

        Args:
            rounds: None for one more than it has.
            run: its name; a run that does not exist is begun.
            publish: then let the pair chosen on dev serve, or the last round's where rounds are
                not judged.

        Raises:
            MissingExtraError: without the extra `train`.
            TrainingError: a stage failed; earlier stages are kept.
            CheckFailedError: no round is begun (`check_start`), or the gate said no; what serves
                stays.
        """
        from trainers.training.contest import rounds_table

        driver = self.driver(run, begin=True)
        last = driver.reach(rounds)
        status = driver.status()
        if publish and (status.choice is None or status.is_behind):
            name = None if status.choice else str(last.number) if last.number else "sft"
            driver.publish(name, gate=True)
            status = driver.status()
        table = rounds_table(driver.run, status.choice, status.serves)
        serves = f"Serves now: {status.serves or 'nothing'}."
        table = replace(table, notes=[*table.notes, serves])
        payload = {"run": driver.run.name, "rounds": driver.run.rows()} | status.as_dict()
        return TrainedRun(status, table, payload, driver, last)

    def driver(self, name: str, *, begin: bool = False) -> Driver:
        """The driver of a run; with `begin`, of one that is begun where it does not exist.

        Raises TrainingError for no such run, or one that can't be trained on.
        """
        from trainers.training import rounds
        from trainers.training.driver import Driver
        from trainers.training.rounds import judged_by, with_dev
        from trainers.training.stage import Launcher
        from trainers.training.trainer_config import check_settings

        workspace = with_dev(self.workspace)
        check_settings(workspace)
        run = (rounds.create if begin else rounds.open_run)(workspace, name)
        if begin and not run.state().rounds:
            self._say(f"Run {run.name} in {run.folder()}. {judged_by(workspace)}")
        return Driver(workspace, run, Launcher(self._config, self._overrides), self._say)

    def release(self, *snapshots: str, gate: bool = True) -> Result:
        """Let snapshots serve, by one atomic switch for all.

        Args:
            snapshots: one, or an item and a query snapshot.
            gate: compare with what serves first, as the settings `publish.*` say; False overrules
                `rebuild.max_failure_share` too.

        Raises:
            SnapshotError: unknown, or two of one side.
            CheckFailedError: the gate says no, or too many entities were set aside; what serves
                stays.
        """
        from indexers.release import release

        released = release(self.workspace, list(snapshots), gate=gate, say=self._say)
        return Result(released, released.table("Serving now"), released.as_dict())


def _jsonl(name: str, records: _Records) -> str:
    if hasattr(records, "write_ndjson"):
        return str(records.write_ndjson())  # polars
    if hasattr(records, "to_json"):  # pandas
        options = {"orient": "records", "lines": True, "date_format": "iso"}
        return str(records.to_json(**options, force_ascii=False))
    lines = []
    for number, row in enumerate(records, 1):
        try:
            lines.append(json.dumps(dict(row), ensure_ascii=False, allow_nan=False) + "\n")
        except (TypeError, ValueError) as error:
            raise DataError(
                f"Record {number} of {name} can't be written as JSON: {error}."
            ) from error
    return "".join(lines)
