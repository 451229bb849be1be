"""Chooses the pair of snapshots of a run that is to serve, and publishes it.

The pairs of a run's rounds are compared on the dev queries with the pair of `statistical` and with
`distilled`: the pair of `statistical` with the last rounds' retrieved sets as evidence. BM25 over
the items' text is measured too. `statistical` and BM25 are measured once a run, `distilled` once a
round, and kept in its folder as `baselines.json`. A chosen pair is pushed, verified and switched by
one call (`indexers.release`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cogr.errors import (
    CheckFailedError,
    GeneratorError,
    MissingExtraError,
    ServiceError,
    SnapshotError,
)
from cogr.metrics import measures_of
from cogr.records import SIDES, Say, Split
from cogr.snapshots import Snapshot, read_manifest
from indexers.generators.statistical.generator import DISTILLED, EVIDENCE
from indexers.release import release
from indexers.release.gate import HeldOutF1
from indexers.tables import Table
from indexers.workspace import Workspace
from trainers.evaluation import bm25, split_figures
from trainers.training.building import Build, build_snapshot
from trainers.training.rounds import Round, Run, State, dev_f1, is_set_apart, round_name

STATISTICAL = "statistical"
EVIDENCE_ROUNDS = 2
"""How many of the last rounds give evidence, rejected ones included."""
_SPLITS: tuple[Split, ...] = ("dev", "test")


@dataclass(frozen=True)
class Contender:
    """A pair of snapshots by its name (statistical, sft, round 1, ..., distilled), and split ->
    figures, as `trainers.evaluation.Evaluation.as_dict` has them.
    """

    name: str
    items: str
    queries: str
    figures: Mapping[str, Mapping[str, Any]]

    @property
    def dev_f1(self) -> float | None:
        """F1 on the dev queries; None where there are none."""
        return dev_f1(self.figures)

    def error_beside(self, other: Contender) -> float:
        """Standard error of the paired difference of two pairs in dev F1."""
        own, its = (one.figures["dev"]["f1s"] for one in (self, other))
        gaps = [a - b for a, b in zip(own, its, strict=True)]
        return statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0


@dataclass(frozen=True)
class Choice:
    """The pair that is to serve, and the pair with the highest dev F1, which may be another."""

    chosen: Contender
    highest: Contender

    def reason(self) -> str:
        """Why this pair was chosen, in one sentence."""
        figures = self.chosen.figures["dev"]
        said = f"F1 {figures['f1']:.3f} on {figures['queries']} dev queries"
        if self.chosen is self.highest:
            return said
        best = self.highest.figures["dev"]
        return (
            f"{said}; {self.highest.name} has {best['f1']:.3f}, which is not more than the "
            f"standard error of {self.highest.error_beside(self.chosen):.3f} above, and the "
            "simpler pair is taken"
        )


def of_round(done: Round) -> Contender:
    """The pair of a finished round."""
    return Contender(round_name(done.number), done.items, done.queries, done.figures)


def contenders(state: State, beside: Baselines | None) -> list[Contender]:
    """The contenders, the simplest first: `statistical`, SFT, the accepted rounds, `distilled`."""
    rounds = [of_round(done) for done in state.finished if done.verdict == "accepted"]
    if beside is None:
        return rounds
    return [one for one in (beside.statistical, *rounds, beside.distilled) if one]


def choose(contenders: Sequence[Contender]) -> Choice | None:
    """The simplest pair whose dev F1 is within one standard error of the highest; None without dev
    queries.

    The one-standard-error rule (Breiman et al., Classification and Regression Trees, 1984, section
    3.4.3): with few queries the highest of several figures is often the luckiest one. The error is
    that of the paired differences, since all pairs answer the same queries.
    """
    known = {one.name: (one, f1) for one in contenders if (f1 := one.dev_f1) is not None}
    if not known:
        return None
    highest, most = max(known.values(), key=lambda pair: pair[1])
    near = (one for one, f1 in known.values() if f1 >= most - highest.error_beside(one))
    return Choice(next(near), highest)


# What the rounds are compared with


@dataclass(frozen=True)
class Baselines:
    """The baselines of one run; `evidence` are the pairs (items, queries) that `distilled` uses."""

    bm25: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    statistical: Contender | None = None
    distilled: Contender | None = None
    evidence: Sequence[Sequence[str]] = field(default_factory=list)

    def rows(self) -> dict[str, Mapping[str, Mapping[str, Any]]]:
        """Name -> split -> figures of all measured baselines."""
        pairs = [pair for pair in (self.statistical, self.distilled) if pair]
        return {"bm25": self.bm25, **{pair.name: pair.figures for pair in pairs}}

    def of(self, name: str) -> Contender | None:
        """`distilled` by its name; `statistical` for any other pair too, since it may serve as what
        that pair is judged beside.
        """
        return self.distilled if name == DISTILLED else self.statistical


_BASELINES, _FILE = TypeAdapter(Baselines), "baselines.json"


def known_baselines(run: Run) -> Baselines | None:
    """The baselines of a run as last measured; None before, or where the file is broken: they are
    measured again.
    """
    path = f"{run.path}/{_FILE}"
    if run.store.exists(path):
        with suppress(ValidationError):
            return _BASELINES.validate_json(run.store.read(path))
    return None


def measured_baselines(workspace: Workspace, run: Run, say: Say) -> Baselines:
    """The baselines of a run. They are measured now where they are unknown or could not be measured
    before, and `distilled` after a new round.
    """
    result = known = known_baselines(run) or Baselines()
    if result.statistical is None or not _is_there(workspace, result.statistical):
        say("measuring bm25 and statistical beside the rounds")
        result = Baselines(known.bm25 or _bm25(workspace))
        try:
            result = replace(result, statistical=generated_pair(workspace))
        except (MissingExtraError, GeneratorError) as error:
            say(f"statistical: not measured. {error}")
    result = _with_distilled(workspace, run.state(), result, say)
    if result != known:
        run.store.write_json(f"{run.path}/{_FILE}", asdict(result))
    return result


def _with_distilled(workspace: Workspace, state: State, known: Baselines, say: Say) -> Baselines:
    # None where no round is done, or every query is one that rounds or `statistical` learned from.
    rounds = [done for done in state.finished if done.number][-EVIDENCE_ROUNDS:]
    evidence = [[done.items, done.queries] for done in rounds]
    if not evidence or known.statistical is None or not workspace.dataset.queries.get("dev"):
        return replace(known, distilled=None, evidence=[])
    if known.distilled and known.evidence == evidence and _is_there(workspace, known.distilled):
        return known
    names = " and ".join(round_name(done.number) for done in rounds)
    say(f"measuring distilled: statistical with {names} as evidence")
    items, queries = known.statistical.items, _distilled_queries(workspace, evidence)
    figures = split_figures(workspace, items, queries, _SPLITS)
    pair = Contender(DISTILLED, items, queries, figures)
    return replace(known, distilled=pair, evidence=evidence)


def _distilled_queries(workspace: Workspace, evidence: Sequence[Sequence[str]]) -> str:
    pairs = tuple((items, queries) for items, queries in evidence)
    return build_snapshot(workspace, Build("query", 0, None, STATISTICAL, evidence=pairs)).id


def _is_there(workspace: Workspace, pair: Contender) -> bool:
    try:
        return all(read_manifest(workspace.store, id_) for id_ in (pair.items, pair.queries))
    except SnapshotError:
        return False


def _bm25(workspace: Workspace) -> dict[str, Mapping[str, Any]]:
    figures: dict[str, Mapping[str, Any]] = {}
    cutoff = None
    for split in (one for one in _SPLITS if workspace.dataset.queries.get(one)):
        words = bm25(workspace.dataset, split, cutoff)
        cutoff, row = words.cutoff, words.row(workspace.dataset, split)
        figures[split] = {**row, "queries": len(workspace.dataset.queries[split])}
    return figures


def check_start(workspace: Workspace, run: Run) -> None:
    """Raises CheckFailedError where the pair of SFT is not one standard error above BM25 in F1 on
    dev: rewards of such sets teach little.
    """
    known, own = known_baselines(run) or Baselines(), run.state().finished[0].figures.get("dev")
    if own is None:
        return
    known = replace(known, bm25=known.bm25 or _bm25(workspace))
    run.store.write_json(f"{run.path}/{_FILE}", asdict(known))
    f1, error, text = float(own["f1"]), float(own["f1_se"]), known.bm25["dev"]["f1"]
    if f1 < text + error:
        raise CheckFailedError(
            f"Not starting round 1: the SFT pair's dev F1 is {f1:.3f}, less than one standard "
            f"error ({error:.3f}) above BM25's {text:.3f}. Use a larger model or more "
            "training.sft epochs; cogr-train publish statistical needs no model."
        )


def generated_pair(
    workspace: Workspace, generator: str = STATISTICAL, splits: Sequence[Split] = _SPLITS
) -> Contender:
    """The pair that a generator without a model writes, measured on these splits."""
    items, queries = (
        build_snapshot(workspace, Build(side, 0, None, generator)).id for side in reversed(SIDES)
    )
    return Contender(generator, items, queries, split_figures(workspace, items, queries, splits))


def to_serve(workspace: Workspace, chosen: Contender) -> Contender:
    """The pair to publish for a chosen pair.

    Where dev queries were set apart only for the choice, `statistical` is fitted again with their
    labels, as `cogr-index rebuild` would fit it. So is `distilled`; its coefficients are fitted on
    the same queries as before, which the ranker now answers out of fold.
    """
    if chosen.name not in (STATISTICAL, DISTILLED) or not is_set_apart(workspace.dataset):
        return chosen
    whole = Workspace(workspace.settings)
    built = generated_pair(whole, splits=())
    queries = built.queries
    if chosen.name == DISTILLED:
        # Where the evidence gained nothing, this equals the snapshot of `statistical`.
        generator = read_manifest(workspace.store, chosen.queries).generator
        queries = _distilled_queries(whole, generator.get(EVIDENCE, ()))
    return replace(chosen, items=built.items, queries=queries)


# Going live


def publish_pair(
    workspace: Workspace,
    pair: Contender,
    say: Say,
    *,
    gate: bool = True,
    held_out: Contender | None = None,
) -> None:
    """Push both snapshots of a pair, verify them, and let it serve; gate and errors are those of
    `indexers.release.release`. `held_out` is a pair fitted without the dev labels: its dev F1
    is used for a pair that has learned them, the published one or the one that serves.
    """
    release(
        workspace,
        [pair.items, pair.queries],
        gate=gate,
        held_out=HeldOutF1(partial(knows_dev, workspace), held_out.dev_f1 if held_out else None),
        say=say,
    )
    say(f"{pair.name} serves: {pair.items}, {pair.queries}")


def knows_dev(workspace: Workspace, *pair: Snapshot) -> bool:
    """Whether `statistical` fitted one of these snapshots on all labels, including those of the dev
    queries that were set apart.
    """
    return is_set_apart(workspace.dataset) and any(
        one.manifest.generator.get("kind") == STATISTICAL
        and one.manifest.dataset_hash != workspace.dataset.dataset_hash
        for one in pair
    )


_ROUNDS = measures_of("rounds")
ROUND_MEASURES = {
    **{key: _ROUNDS.pop(key) for key in ("p", "r", "f1")},
    "f1_se": "±",
    **_ROUNDS,
    "keywords_per_item": "keywords",
}
"""Figure of a round's pair -> its heading."""


def rounds_table(run: Run, choice: Choice | None = None, serves: str = "") -> Table:
    """A row for each round and split of a run, beside bm25, `statistical` and `distilled` if they
    are measured, with the chosen pair and the one that serves.
    """
    beside = known_baselines(run)
    known = beside.rows() if beside else {}
    pairs: list[tuple[str, Any, str]] = [(name, figures, "") for name, figures in known.items()]
    for done in run.rows():
        said = ": ".join(filter(None, (done["verdict"], done["reason"])))
        pairs.append((round_name(done["round"]), done["figures"] or {}, said))
    best = choice.chosen.name if choice else ""
    rows = []
    for name, of, said in pairs:
        marks = {said: said, "best on dev": best == name, "serves": serves == name}
        told = ", ".join(mark for mark, holds in marks.items() if holds)
        for split, own in of.items():
            figures = {title: own.get(key, "") for key, title in ROUND_MEASURES.items()}
            rows.append({"round": name, "split": split, **figures, "": told})
    notes = [f"Best on dev: {best}, {choice.reason()}."] if choice else []
    return Table(f"run {run.name}", rows, [*notes, f"next: {run.state().next}"])


def serving_of(workspace: Workspace, known: Sequence[Contender]) -> str:
    """Name of the pair that serves, or its snapshots if it is none of these; "" where none serves,
    and what is wrong where that can't be told.
    """
    try:
        serving = workspace.backend.serving()
    except ServiceError as error:
        return f"not known: {error}"
    ids = serving["item"], serving["query"]
    named = (one.name for one in known if (one.items, one.queries) == ids)
    return next(named, "") or " with ".join(filter(None, serving.values()))
