"""The runner of a comparison: it tunes, cuts and measures every method in the same way on the same
data.

For each method: hyperparameters by F1 on the dev queries within the budget; a fit for every seed;
cutoffs swept on training queries, and on the dev queries; figures on the test queries. Methods
learn from the training queries alone.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.compare import METHODS, Fitted, Method, NotRunError, Params, Rankings, Task
from benchmarks.compare.measuring import CUTS, DEPTH, checked_run, figures, ids_of, latencies
from benchmarks.compare.results import Kept, MethodRow, MethodState, Results, key_of, markdown
from cogr import __version__
from cogr.datasets.builder import DEV_SHARE, by_hash
from cogr.errors import CogrError, DataError, MissingExtraError
from cogr.metrics import grades_of, set_figures, sets_of, sweep_cutoff
from cogr.records import SPLITS, Dataset, Query, Say
from cogr.settings import Settings
from cogr.store import Store
from indexers.workspace import Workspace
from trainers.training.rounds import SET_APART, set_apart

SWEPT = 1000
"""Most training queries that cutoffs are chosen on: the first by hash."""
_TIMED_DEPTH = 100


@dataclass(frozen=True)
class CompareOptions:
    """The options of the command.

    Attributes:
        seeds: fits of each method.
        resume: keep the rows in `out` that have the same data, settings and budget.
        trials: most sets of hyperparameters that a method tries.
        steps: training steps of a fit; None for each method's own number.
        models: as in `Task`.
    """

    methods: Sequence[str]
    seeds: int
    resume: bool
    out: Path
    trials: int = 8
    steps: int | None = None
    models: Mapping[str, str] = field(default_factory=dict)


def with_dev_queries(dataset: Dataset) -> Dataset:
    """The data for all methods. Data without dev queries get some of the training queries as dev
    queries.

    Raises:
        DataError: no test queries, or too few training queries to set one apart.
    """
    dataset.require("test")
    train = dataset.require("train")
    if dataset.queries.get("dev"):
        return dataset
    ids = by_hash((query.id for query in train), max(DEV_SHARE, 1 / len(train)))
    if len(train) - len(ids) < 1:
        raise DataError(
            f"The data set {dataset.name} has no dev queries and {len(train)} training query; "
            "provide at least two labelled training queries."
        )
    return set_apart(dataset, ids)


class Runner:
    """Runs one method after another and keeps finished rows."""

    def __init__(self, workspace: Workspace, asked: CompareOptions, say: Say) -> None:
        self.settings: Settings = workspace.settings
        self.dataset = with_dev_queries(workspace.dataset)
        self.asked, self._say = asked, say
        if apart := self.dataset.notes.get(SET_APART):
            say(f"no dev queries: {apart} training queries are set apart to choose by")
        key = key_of(self.dataset, self.settings, [asked.trials, asked.steps, {**asked.models}])
        self.kept = Kept(Store(asked.out.resolve()), key, anew=not asked.resume)
        train = self.dataset.require("train")
        swept = by_hash((query.id for query in train), min(1.0, SWEPT / len(train)))
        self.swept = [query for query in train if query.id in swept]

    def rows(self, name: str) -> list[MethodRow]:
        """The rows of one method, one for each seed; a deterministic method has one. A method that
        can't run, or fails, has one row with the reason.
        """
        method = METHODS[name]()
        seeds = range(self.asked.seeds if method.seeded else 1)
        kept = [self.kept.row(name, seed) if self.asked.resume else None for seed in seeds]
        if all(kept):
            self._say(f"{name}: kept from before")
            return [row for row in kept if row is not None]
        try:
            return self._run(method, kept)
        except (NotRunError, MissingExtraError) as error:
            return [self._without(method, "not run", str(error))]
        except ModuleNotFoundError as error:
            missing = NotRunError(f"the package {error.name}", "run make setup")
            return [self._without(method, "not run", str(missing))]
        except CogrError as error:
            return [self._without(method, "failed", str(error))]
        except Exception as error:  # noqa: BLE001  (one method's fault must not cost the others)
            path = f"work/{method.name}/error.txt"
            self.kept.folder.write(path, "".join(traceback.format_exception(error)).encode())
            first = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return [self._without(method, "failed", f"{first} (the traceback is in {path})")]

    def _run(self, method: Method, rows_before: Sequence[MethodRow | None]) -> list[MethodRow]:
        self._say(f"{method.name}: running")
        kept = next((row for row in rows_before if row is not None), None)
        params, first = (kept.params, None) if kept else self._tuned(method)
        rows = []
        for seed, row in enumerate(rows_before):
            if row is None:
                fit = first if seed == 0 and first else self._fit(method, params, seed)
                row = replace(self._measured(method, *fit, seed), params=params)
                self.kept.keep(row)
                f1 = f"test F1 {row.figures['f1']:.4f}, dev F1 {row.dev_f1:.4f}"
                self._say(f"{method.name}, seed {seed}: {f1}")
            rows.append(row)
        return rows

    def _without(self, method: Method, state: MethodState, reason: str) -> MethodRow:
        row = MethodRow(method.name, method.family, 0, state, " ".join(reason.split()))
        self._say(f"{method.name}: {'failed: ' * (state == 'failed')}{row.reason}")
        self.kept.keep(row)
        return row

    def _tuned(self, method: Method) -> tuple[Params, tuple[Fitted, float] | None]:
        """The hyperparameters that are best on dev (the first of equals), and their fit with seed 0
        where there was a choice.
        """
        wanted = list(method.trials(self._task(method, 0)))[: self.asked.trials]
        best, most, kept = wanted[0], -1.0, None
        for params in wanted if len(wanted) > 1 else ():
            fit = self._fit(method, params, 0)
            if (dev := self._on_dev(method, fit[0])[0]) > most:
                best, most, kept = params, dev, fit
        return best, kept

    def _task(self, method: Method, seed: int) -> Task:
        work = self.asked.out.resolve() / "work" / method.name / f"seed-{seed}"
        work.mkdir(parents=True, exist_ok=True)
        asked = self.asked
        return Task(self.dataset, work, seed, self._say, self.settings, asked.steps, asked.models)

    def _fit(self, method: Method, params: Params, seed: int) -> tuple[Fitted, float]:
        began = time.perf_counter()
        fitted = method.fit(self._task(method, seed), params)
        return fitted, time.perf_counter() - began

    def _on_dev(self, method: Method, fitted: Fitted) -> tuple[float, int]:
        """F1 on the dev queries: of the method's own sets, or of its rankings with the cut that is
        best for these queries, which is returned too (0: no cut). A cut chosen on training queries
        would favour a method that memorises them.
        """
        dev = self.dataset.require("dev")
        run = self._ranked(method, fitted, dev)
        if fitted.sets is not None:
            return set_figures(self.dataset, dev, sets_of(fitted.sets(run))).means["f1"], 0
        k, f1 = sweep_cutoff(ids_of(run), self.dataset, dev)
        return f1, k

    def _ranked(self, method: Method, fitted: Fitted, queries: Sequence[Query]) -> Rankings:
        depth = DEPTH if fitted.sets is None else max(DEPTH, len(self.dataset.items))
        return checked_run(method.name, fitted.rank(queries, depth), queries, depth)

    def _measured(self, method: Method, fitted: Fitted, seconds: float, seed: int) -> MethodRow:
        test = self.dataset.require("test")
        dev_f1, k = self._on_dev(method, fitted)
        whole = self._ranked(method, fitted, test)
        run, cuts = (
            {query: pairs[:DEPTH] for query, pairs in whole.items()},
            dict[str, int](),
        )
        if fitted.sets is not None:
            sets = {"f1": fitted.sets(whole)}
        else:
            learned = ids_of(self._ranked(method, fitted, self.swept))
            train, _ = sweep_cutoff(learned, self.dataset, self.swept)
            cuts = dict(zip(CUTS, (train, k), strict=True))
            sets = {name: ids_of(run, most) for name, most in cuts.items()}
        measured = figures(self.dataset, test, sets, run)
        row = MethodRow(
            method.name,
            method.family,
            seed,
            "done",
            fitted.said,
            cuts=cuts,
            dev_f1=dev_f1,
            figures={**measured.means, "f1_se": measured.standard_errors["f1"]},
            per_query={name: measured.values[name].round(6).tolist() for name in sets},
            cost={
                "train_seconds": seconds,
                "index_bytes_per_item": fitted.bytes_an_item,
                **latencies(fitted, test, _TIMED_DEPTH),
                "model_at_serving": float(fitted.model),
            },
        )
        self.kept.keep_run(row, run)
        return row


def run_comparison(workspace: Workspace, asked: CompareOptions, say: Say) -> Results:
    """Run the comparison and write compare.json and compare.md.

    Interrupted by Ctrl-C it writes the finished rows, and raises KeyboardInterrupt again.

    Raises:
        DataError: no test queries, or no training queries.
        StorageError: the folder can't be written.
    """
    runner, rows = Runner(workspace, asked, say), []
    try:
        for name in asked.methods:
            rows += runner.rows(name)
    except KeyboardInterrupt:
        say(f"{len(rows)} finished rows are kept in {asked.out}; --resume goes on from them.")
        raise
    finally:
        results, folder = Results.of(rows, _facts_of(runner)), runner.kept.folder
        folder.write_json("compare.json", results.as_dict())
        folder.write("compare.md", markdown(results).encode())
    return results


def _facts_of(runner: Runner) -> dict[str, Any]:
    """The facts of a comparison: data, methods, command and date."""
    dataset, asked = runner.dataset, runner.asked
    apart = dataset.notes.get(SET_APART)
    notes = [f"No dev queries in the data: {apart} training queries serve as dev."] if apart else []
    notes.append("The dev queries choose both the hyperparameters and the cuts by dev.")
    if len(runner.swept) < len(dataset.require("train")):
        notes.append(f"The other cuts are swept on {len(runner.swept)} training queries.")
    models = sorted(asked.models.items())
    return {
        "dataset": dataset.name,
        "dataset_hash": dataset.dataset_hash,
        **{f"{split}_queries": len(dataset.require(split)) for split in SPLITS},
        "items": len(dataset.items),
        "seeds": asked.seeds,
        "trials": asked.trials,
        "steps": asked.steps,
        "depth": DEPTH,
        # Without this machine's folders, since tables are published.
        "models": {name: Path(of).name if of.startswith("/") else of for name, of in models},
        "graded": grades_of(dataset) is not None,
        "notes": notes,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "version": __version__,
    }
