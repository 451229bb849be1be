"""The output of the demo: the growing table, the progress of a training stage, examples, searches.

Text of items is untrusted and never shown as markup. The progress of a stage is read from its step
log while another process writes it.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cogr.errors import visible
from cogr.records import Advance, Say
from cogr.settings.training import TrainingSettings
from indexers.exchange.search import Answered
from indexers.telemetry import logs
from indexers.telemetry.terminal import console_of, duration
from trainers.demo.rows import Row
from trainers.report.facts import Changed
from trainers.training.contest import Choice
from trainers.training.rounds import Round, StageName
from trainers.training.run_folder import Run

_KEYWORDS_SHOWN = 8
_MATCHES_SHOWN = 3
_WIDEST = 100


def table(rows: Sequence[Row]) -> Table:
    """The rows so far."""
    shown = Table(title="The sample shop, 50 test queries", title_justify="left")
    # Names break between words alone, also on a terminal of 80 columns.
    words = (word for row in rows for word in row.name.split())
    shown.add_column("", min_width=max(map(len, words), default=0))
    for name in ("P", "R", "F1", "nDCG@10", "MRR@10", "keywords\nan item", "seconds"):
        shown.add_column(name, justify="right")
    for row in rows:
        style = "bold" if row.name.startswith("serves") else ""
        keywords = "" if row.keywords_per_item is None else f"{row.keywords_per_item:.1f}"
        figures = (f"{value:.3f}" for value in (row.p, row.r, row.f1, row.ndcg, row.mrr))
        shown.add_row(Text(row.name), *figures, keywords, f"{row.seconds:.1f}", style=style)
    return shown


def under_way(rows: Sequence[Row], doing: str) -> Group:
    """The rows so far, and below them what is done for the next one."""
    return Group(table(rows), Text(doing, "dim"))


class Progress:
    """The growing table on standard error while the demo runs. It is removed at the end, and not
    shown without a terminal.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._console = console_of(sys.stderr)
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live = Live(under_way([], ""), console=self._console, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def add(self, row: Row) -> None:
        """One more row."""
        self.rows.append(row)
        self.say("")

    def say(self, doing: str) -> None:
        """Show what is under way."""
        if self._live is not None:
            self._live.update(under_way(self.rows, doing), refresh=True)
        elif doing:
            logs.say(doing)

    def tick(self, doing: str) -> None:
        """Show the progress, on a terminal only."""
        if self._live is not None:
            self._live.update(under_way(self.rows, doing), refresh=True)

    def bar(self, what: str, total: int) -> AbstractContextManager[Advance]:
        """The progress bar that a rebuild asks for: the line below the table, counting."""
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if self._live is not None:
                self._live.update(under_way(self.rows, f"{what}: {done:,} of {total:,}"))

        return nullcontext(advance)


@dataclass(frozen=True)
class Ended:
    """The results of a demo.

    Attributes:
        choice: the pair that serves, and why.
        changed: example entities, `extractive` against what serves.
        searches: each answer with the ids that are relevant to it.
        titles: the items' titles as keywords; a query may ask for an item by its own.
    """

    rows: Sequence[Row]
    choice: Choice
    changed: Sequence[Changed]
    searches: Sequence[tuple[Answered, Collection[str]]]
    titles: Collection[str] = frozenset()


def results(out: Console, ended: Ended) -> None:
    """The table, the examples, the searches."""
    out.print(table(ended.rows))
    for row in ended.rows:
        if row.rejected:
            out.print(f"{row.name} is not built upon: {row.rejected}.")
    if any(row.cached for row in ended.rows):
        out.print("What an earlier demo had generated or trained was taken from its folder.")
    serving = ended.choice.chosen.name
    out.print(f"{serving} serves, chosen on dev: {ended.choice.reason()}.")
    if ended.changed:
        out.print(
            Text.assemble("\n", ("Keywords gained and lost", "bold"), f", extractive -> {serving}")
        )
    for one in ended.changed:
        _example(out, one, ended.titles)
    out.print(Text.assemble("\n", ("Searches", "bold"), f", {serving} serves"))
    for found, relevant in ended.searches:
        _search(out, found, relevant, ended.titles)
        out.print()


def _listed(words: Sequence[str], titles: Collection[str]) -> str:
    """Keywords for people: the first ones, and how many titles of items are among them instead of
    the titles.
    """
    own = [word for word in words if word not in titles]
    parts = [", ".join(map(safe, own[:_KEYWORDS_SHOWN]))] if own else []
    parts += [f"{len(own) - _KEYWORDS_SHOWN} more"] if len(own) > _KEYWORDS_SHOWN else []
    count = len(words) - len(own)
    parts += [f"the title{'s' * (count > 1)} of {count} item{'s' * (count > 1)}"] if count else []
    return " and ".join(parts) or "none"


def _example(out: Console, one: Changed, titles: Collection[str]) -> None:
    out.print(Text(f"{one.side} {safe(one.text)}"))
    for sign, words, style in (("+", one.gained, "green"), ("-", one.lost, "red")):
        if words:
            out.print(Text(f"  {sign} {_listed(words, titles)}", style))


def _search(
    out: Console, found: Answered, relevant: Collection[str], titles: Collection[str]
) -> None:
    text, *keywords = found.keywords
    out.print(Text.assemble(('"' + safe(found.query) + '"', "bold"), f" finds {found.total} items"))
    out.print(Text(f"keywords: {_listed(keywords, titles)}"))
    if not found.hits:
        return
    hits = Table("score", "item", "matched keyword", "relevant", box=None, padding=(0, 2, 0, 0))
    for hit in found.hits:
        words = sorted(hit.matched, key=lambda word: -hit.matched[word])[:_MATCHES_SHOWN]
        matched = ", ".join(
            "the query's text" if word == text else "its title" if word in titles else safe(word)
            for word in words
        )
        matched = ", ".join(filter(None, (matched, "words of its title" if hit.words else "")))
        hits.add_row(
            f"{hit.score:.3f}",
            Text(safe(hit.text)),
            Text(matched),
            "yes" if hit.id in relevant else "no",
        )
    out.print(hits)


def safe(text: str) -> str:
    """Text of an item for a terminal: on one line, control characters as escapes, not too long."""
    clean = visible(" ".join(text.split()))
    return clean if len(clean) <= _WIDEST else clean[: _WIDEST - 1] + "…"


_EVERY = 0.5

DOING: dict[StageName, str] = {
    "targets": "choosing what to learn",
    "train-item": "training the item side",
    "train-query": "training the query side",
    "index-item": "writing keywords of all items",
    "index-query": "writing keywords of all queries",
    "accept-items": "taking the new sets that pay",
    "evaluate": "measuring",
}


@dataclass(frozen=True)
class Stage:
    """A stage under way.

    Attributes:
        log: its step log; None where it has no steps.
        steps: how many it will have; None where that is not known.
    """

    name: str
    log: Path | None
    steps: int | None


def stage_under_way(run: Run, settings: TrainingSettings) -> Stage | None:
    """The stage that a run is at; None between rounds."""
    now = run.state().unfinished
    if now is None or now.next_stage is None:
        return None
    name = f"{f'round {now.number}' if now.number else 'sft'}: {DOING[now.next_stage]}"
    if not now.next_stage.startswith("train-"):
        return Stage(name, None, None)
    log = run.folder("logs") / f"r{now.number:03d}-{now.next_stage.removeprefix('train-')}.jsonl"
    return Stage(name, log, _steps(now, now.next_stage, settings))


def _steps(now: Round, stage: StageName, settings: TrainingSettings) -> int | None:
    """Number of steps of a training stage: for SFT from its examples, for GRPO from the settings,
    if set.
    """
    side = stage.removeprefix("train-")
    if now.number:
        return (settings.item if side == "item" else settings.query).max_steps
    targets = now.stage("targets")
    if targets is None:
        return None
    examples = int(targets.notes["items" if side == "item" else "queries"])
    epochs = settings.sft.item_epochs if side == "item" else settings.sft.query_epochs
    return math.ceil(math.ceil(examples / settings.sft.batch_size) * epochs)


def how_far(stage: Stage, done: int, rate: float | None = None) -> str:
    """One line: stage, steps, rate, time left as far as it is known.

    Args:
        done: steps so far.
        rate: steps a second; None while it is not known.
    """
    line = f"{stage.name}, step {done:,}" + (f" of {stage.steps:,}" if stage.steps else "")
    if not rate:
        return line
    line += f", {rate:.1f} steps/s" if rate >= 1 else f", {1 / rate:.1f} s a step"
    if stage.steps is None:
        return line
    return f"{line}, {duration(max(0, stage.steps - done) / rate)} left"


@contextmanager
def followed(say: Say) -> Iterator[Callable[[Stage | None], None]]:
    """Inside the block, `say` gets twice a second the progress of the stage that was last passed to
    the yielded function.
    """
    follower = _Follower(say)
    thread = threading.Thread(target=follower.run, daemon=True, name="following")
    thread.start()
    try:
        yield follower.follow
    finally:
        follower.ended.set()
        thread.join()


class _Follower:
    def __init__(self, say: Say) -> None:
        self._say = say
        self._stage: Stage | None = None
        self._since = time.time()
        self._first: tuple[float, int] | None = None
        self.ended = threading.Event()

    def follow(self, stage: Stage | None) -> None:
        self._stage, self._since, self._first = stage, time.time(), None

    def run(self) -> None:
        while not self.ended.wait(_EVERY):
            stage = self._stage
            if stage is not None and stage.log is not None:
                self._look(stage, stage.log)

    def _look(self, stage: Stage, log: Path) -> None:
        # The log of an earlier attempt is replaced when the stage begins its first step.
        if not log.exists() or log.stat().st_mtime < self._since:
            return
        done, now = log.read_bytes().count(b"\n"), time.monotonic()
        if not done:
            return
        if self._first is None:
            self._first = now, done
        began, before = self._first
        self._say(how_far(stage, done, (done - before) / (now - began) if done > before else None))
