"""The runner of `cogr-train compare`: it tunes, cuts and measures every method in the same way on
the same data.

For each method: hyperparameters by F1 on the dev queries within the budget of `[compare]`; a fit
for every seed; cutoffs and score thresholds swept on training queries, and on the dev queries;
figures on the test queries. Methods learn from the training queries alone.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cogr import __version__
from cogr.datasets.splits import DEV_SHARE, by_hash
from cogr.errors import CogrError, DataError, MissingExtraError, UserError
from cogr.evaluation import grades_of, set_figures
from cogr.metrics import sets_of
from cogr.records import SPLITS, Dataset, Query, Say
from cogr.settings import Settings
from cogr.store import Store
from indexers.workspace import Workspace
from trainers.rivals import METHODS, Fitted, Method, NotRunError, Task
from trainers.rivals.measuring import (
    DEPTH,
    Kept,
    MethodRow,
    Scored,
    Swept,
    Trial,
    above,
    checked_run,
    figures,
    key_of,
    latencies,
)
from trainers.rivals.page import check_extra, render
from trainers.rivals.results import Results, latex, markdown, put_together
from trainers.training.rounds import SET_APART, set_apart

SWEPT = 1000
"""Most training queries that cutoffs and thresholds are chosen on: the first by hash."""

HOUR_PRICE = 0.1
"""Price of an hour of the machine, in any currency: some core of a cloud. Costs are proportional to
it, so that any other price is a multiplication.
"""
_TIMED_DEPTH = 100
_MILLION = 1_000_000
_HOUR = 3600.0


@dataclass(frozen=True)
class Comparison:
    """The options of the command.

    Attributes:
        methods: names, in the order of the tables.
        seeds: how many.
        resume: keep the rows that are finished.
        out: output folder.
    """

    methods: Sequence[str]
    seeds: int
    resume: bool
    out: Path


def named(methods: str) -> list[str]:
    """The methods of a command line: "all", or names with commas between them.

    Raises UserError for a name that is none.
    """
    asked = [name.strip() for name in methods.split(",") if name.strip()]
    if asked == ["all"]:
        return list(METHODS)
    unknown = next((name for name in asked if name not in METHODS), None)
    if unknown is not None or not asked:
        raise UserError(
            f"There is no method {unknown or methods!r}; name all, or some of {', '.join(METHODS)}."
        )
    return [name for name in METHODS if name in asked]


def compared(dataset: Dataset) -> Dataset:
    """The data for all methods. Data without dev queries get some of the training queries as dev
    queries.

    Raises:
        DataError: no test queries, or too few training queries to set one apart.
    """
    dataset.require("test")
    train = dataset.require("train")
    if dataset.queries.get("dev"):
        return dataset
    least = 1 / len(train)
    ids = by_hash((query.id for query in train), max(DEV_SHARE, least))
    if len(train) - len(ids) < 1:
        raise DataError(
            f"The data set {dataset.name} has no dev queries and {len(train)} training query; "
            "bring at least two labelled training queries."
        )
    return set_apart(dataset, ids)


class Runner:
    """Runs one method after another and keeps finished rows.

    Args:
        workspace: data and settings of all methods.
        asked: what was asked for.
        say: tells a person one line.
    """

    def __init__(self, workspace: Workspace, asked: Comparison, say: Say) -> None:
        self.settings: Settings = workspace.settings
        self.dataset = compared(workspace.dataset)
        self.asked, self._say = asked, say
        if apart := self.dataset.notes.get(SET_APART):
            say(f"no dev queries: {apart} training queries are set apart to choose by")
        folder = Store(asked.out.resolve())
        self.kept = Kept(folder, key_of(self.dataset, self.settings))
        self.kept.begin(anew=not asked.resume)
        train = self.dataset.require("train")
        swept = by_hash((query.id for query in train), min(1.0, SWEPT / len(train)))
        self.swept = [query for query in train if query.id in swept]
        self._budget = self.settings.compare

    def rows(self, name: str) -> list[MethodRow]:
        """The rows of one method, one for each seed; a deterministic method has one. A method that
        can't run, or fails, has one row with the reason.
        """
        method = METHODS[name]()
        seeds = range(self.asked.seeds if getattr(method, "seeded", True) else 1)
        found = [self.kept.row(name, seed) if self.asked.resume else None for seed in seeds]
        if all(found):
            self._say(f"{name}: kept from before")
            return [row for row in found if row is not None]
        try:
            return self._run(method, list(seeds), found)
        except (NotRunError, MissingExtraError) as error:
            return [self._without(method, "not run", str(error))]
        except CogrError as error:
            return [self._without(method, "failed", str(error))]
        except MemoryError:
            return [self._without(method, "failed", _OUT_OF_MEMORY)]
        except Exception as error:  # noqa: BLE001  (one method's fault must not cost the others)
            if type(error).__name__ == "OutOfMemoryError":
                return [self._without(method, "failed", _OUT_OF_MEMORY)]
            return [self._without(method, "failed", self._told(method, error))]

    def _run(
        self, method: Method, seeds: Sequence[int], found: Sequence[MethodRow | None]
    ) -> list[MethodRow]:
        self._say(f"{method.name}: running")
        trials, best, first = self._tuned(method)
        rows = []
        for seed, row in zip(seeds, found, strict=True):
            if row is None:
                fitted = first if seed == 0 and first is not None else None
                fitted = fitted or self._fit(method, best, seed)
                row = replace(self._measured(method, fitted, seed), params=best, trials=trials)
                self.kept.keep(row)
                self._say(
                    f"{method.name}, seed {seed}: test F1 {row.figures['f1']:.4f}, dev F1 "
                    f"{row.dev_f1:.4f}"
                )
            rows.append(row)
            first = None
        return rows

    def _without(self, method: Method, state: Any, reason: str) -> MethodRow:
        row = MethodRow(method.name, method.family, 0, state, " ".join(reason.split()))
        self._say(f"{method.name}: {row.reason if state == 'not run' else f'failed: {row.reason}'}")
        self.kept.keep(row)
        return row

    def _told(self, method: Method, error: Exception) -> str:
        path = f"work/{method.name}/error.txt"
        self.kept.folder.write(path, "".join(traceback.format_exception(error)).encode())
        first = " ".join(str(error).split())[:200]
        return f"{type(error).__name__}: {first} (the traceback is in {path})"

    # Hyperparameters

    def _tuned(self, method: Method) -> tuple[list[Trial], Mapping[str, Any], Fitted | None]:
        """The trials, the best of them on dev, and its fit with seed 0 where it exists."""
        known = self.kept.trials(method.name) if self.asked.resume else []
        wanted = list(method.trials(self._task(method, 0)))[: self._budget.trials]
        if len(wanted) == 1:
            return [], wanted[0], None
        tried, best, began = list(known), None, time.monotonic()
        spent = sum(one.seconds for one in known)
        for params in wanted:
            if any(one.params == params for one in tried):
                continue
            if tried and spent + time.monotonic() - began > self._budget.seconds:
                self._say(f"{method.name}: {len(tried)} of {len(wanted)} trials fit the budget")
                break
            at = time.monotonic()
            fitted = self._fit(method, params, 0)
            dev = self._on_dev(method, fitted)[0]
            tried.append(Trial(params, dev, round(time.monotonic() - at, 3)))
            self.kept.keep_trials(method.name, tried)
            if tried[-1] is _best(tried):
                best = fitted
        chosen = _best(tried)
        at_hand = best if any(chosen is one for one in tried[len(known) :]) else None
        return tried, chosen.params, at_hand

    def _task(self, method: Method, seed: int) -> Task:
        work = self.asked.out.resolve() / "work" / method.name / f"seed-{seed}"
        work.mkdir(parents=True, exist_ok=True)
        return Task(self.dataset, work, seed, self._say, self.settings, self._budget.seconds)

    def _fit(self, method: Method, params: Mapping[str, Any], seed: int) -> Fitted:
        return method.fit(self._task(method, seed), params)

    # Measuring

    def _on_dev(self, method: Method, fitted: Fitted) -> tuple[float, Swept | None]:
        """F1 on the dev queries: of the method's own sets, or of its rankings with the cut that is
        best for these queries. A cut chosen on training queries would favour a method that
        memorises them.
        """
        dev = self.dataset.require("dev")
        own = fitted.sets(dev)
        if own is not None:
            return set_figures(self.dataset, dev, sets_of(own)).means["f1"], None
        swept = Swept.of(self._ranked(method, fitted, dev), self.dataset, dev)
        return swept.f1, swept

    def _ranked(self, method: Method, fitted: Fitted, queries: Sequence[Query]) -> Scored:
        return checked_run(method.name, fitted.rank(queries, DEPTH), queries, DEPTH)

    def _measured(self, method: Method, fitted: Fitted, seed: int) -> MethodRow:
        test = self.dataset.require("test")
        dev_f1, dev = self._on_dev(method, fitted)
        run = self._ranked(method, fitted, test)
        row = MethodRow(method.name, method.family, seed, "done")
        if dev is None:
            own = fitted.sets(test) or {}
            row = replace(row, sets="its own")
            sets, others = {query: list(ids) for query, ids in own.items()}, {}
        else:
            train = Swept.of(self._ranked(method, fitted, self.swept), self.dataset, self.swept)
            row = _cut_row(row, train, dev)
            sets, others = train.heads(run), _other_cuts(run, train, dev)
        found = figures(self.dataset, test, sets, run, others)
        row = replace(
            row,
            reason=getattr(fitted, "said", ""),
            dev_f1=dev_f1,
            figures={**found.means, "f1_se": found.standard_errors["f1"]},
            per_query={
                name: [round(float(value), 6) for value in values]
                for name, values in found.values.items()
            },
            cost=self._cost(fitted, test),
        )
        self.kept.keep_run("runs", row, run)
        scored = {query: [(id_, -at) for at, id_ in enumerate(ids)] for query, ids in sets.items()}
        self.kept.keep_run("sets", row, scored)
        return row

    def _cost(self, fitted: Fitted, test: Sequence[Query]) -> dict[str, float]:
        """Seconds, bytes, milliseconds; the price of a million items is the fit's time, scaled by
        the number of items, at `HOUR_PRICE`.
        """
        cost = fitted.cost()
        hours = cost.train_seconds / len(self.dataset.items) * _MILLION / _HOUR
        return {
            "train_seconds": cost.train_seconds,
            "peak_bytes": cost.peak_bytes,
            "index_bytes_per_item": cost.index_bytes_per_item,
            **latencies(fitted, test, _TIMED_DEPTH),
            "model_at_serving": float(cost.model_at_serving),
            "million_items_price": hours * HOUR_PRICE,
        }


def run(workspace: Workspace, asked: Comparison, metric: str, say: Say) -> Results:
    """Run the comparison and write compare.json, compare.md, compare.tex and compare.html.

    Interrupted by Ctrl-C it writes them with the finished rows, and raises KeyboardInterrupt again.

    Raises:
        MissingExtraError: without the extra `compare`.
        DataError: no test queries, or no training queries.
        StorageError: the folder can't be written.
    """
    check_extra()
    runner = Runner(workspace, asked, say)
    rows: list[MethodRow] = []
    try:
        for name in asked.methods:
            rows += runner.rows(name)
    except KeyboardInterrupt:
        if rows:
            write(runner, put_together(rows, metric, facts_of(runner)))
        say(f"{len(rows)} finished rows are kept in {asked.out}; --resume goes on from them.")
        raise
    results = put_together(rows, metric, facts_of(runner))
    write(runner, results)
    return results


def facts_of(runner: Runner) -> dict[str, Any]:
    """The facts of a comparison: data, methods, command and date."""
    dataset, budget = runner.dataset, runner.settings.compare
    apart = dataset.notes.get(SET_APART)
    notes = [f"No dev queries in the data: {apart} training queries serve as dev."] if apart else []
    notes.append("The dev queries choose both the hyperparameters and the cuts by dev.")
    if len(runner.swept) < len(dataset.require("train")):
        notes.append(f"The other cuts are swept on {len(runner.swept)} training queries.")
    return {
        "dataset": dataset.name,
        "dataset_hash": dataset.dataset_hash,
        **{f"{split}_queries": len(dataset.require(split)) for split in SPLITS},
        "items": len(dataset.items),
        "seeds": runner.asked.seeds,
        "trials": budget.trials,
        "seconds": budget.seconds,
        "depth": DEPTH,
        "hour_price": HOUR_PRICE,
        "models": {name: _shown(model) for name, model in sorted(budget.models.items())},
        "graded": grades_of(dataset) is not None,
        "notes": notes,
        "command": _command(sys.argv),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "version": __version__,
    }


def _command(arguments: Sequence[str]) -> str:
    """A command line without this machine's folders, since tables are published."""
    return shlex.join(map(_shown, arguments))


def _shown(word: str) -> str:
    return Path(word).name if word.startswith("/") else word


def _commit() -> str:
    """The commit of this code's checkout; "" without one."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def write(runner: Runner, results: Results) -> None:
    """The four files. Raises StorageError."""
    folder, kept = runner.kept.folder, runner.kept
    folder.write_json("compare.json", results.as_dict())
    folder.write("compare.md", markdown(results).encode())
    folder.write("compare.tex", latex(results).encode())
    sets = {one.name: kept.sets(one.name) for one in results.methods if one.done}
    if sets:
        page = render(results, runner.dataset, sets)
        folder.write("compare.html", page.encode("utf-8", "replace"))


_OUT_OF_MEMORY = (
    "out of memory: free some, name a smaller model in compare.models, or run it on a larger "
    "machine with --resume"
)


def _best(tried: Sequence[Trial]) -> Trial:
    """The highest dev F1, the first of equals."""
    return max(tried, key=lambda one: one.dev_f1)


def _cut_row(row: MethodRow, train: Swept, dev: Swept) -> MethodRow:
    return replace(
        row,
        sets=f"the best {train.k} items; by dev {dev.k}",
        cutoff=train.k,
        threshold=train.score,
        dev_cutoff=dev.k,
        dev_threshold=dev.score,
    )


def _other_cuts(run: Scored, train: Swept, dev: Swept) -> dict[str, dict[str, list[str]]]:
    """The retrieved sets by every cut of `CUTS` but the first."""
    return {
        "dev_cut": dev.heads(run),
        "threshold": above(run, train.threshold),
        "dev_threshold": above(run, dev.threshold),
    }
