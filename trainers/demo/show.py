"""What the demo prints: the table that grows, examples, searches, what to type next.

Text of items is untrusted: shown as it is, never as markup.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cogr.printable import visible
from cogr.progress import Advance
from indexers.cli import console
from indexers.exchange.search import Answered
from trainers.demo.rows import Row
from trainers.report.changes import Changed
from trainers.training.contest import Choice

_KEYWORDS_SHOWN = 8
_MATCHES_SHOWN = 3
_WIDEST = 100


def table(rows: Sequence[Row]) -> Table:
    """The rows so far."""
    shown = Table(title="The sample shop, 50 test queries", title_justify="left")
    shown.add_column("")
    for name in ("P", "R", "F1", "keywords an item", "seconds"):
        shown.add_column(name, justify="right")
    for row in rows:
        style = "bold" if row.name.startswith("serves") else ""
        keywords = "" if row.keywords_per_item is None else f"{row.keywords_per_item:.1f}"
        figures = (f"{row.p:.3f}", f"{row.r:.3f}", f"{row.f1:.3f}", keywords, f"{row.seconds:.1f}")
        shown.add_row(Text(row.name), *figures, style=style)
    return shown


def under_way(rows: Sequence[Row], doing: str) -> Group:
    """The rows so far, and below them what is done for the next one."""
    return Group(table(rows), Text(doing, "dim"))


class Progress:
    """The growing table on standard error while the demo runs; gone when it ends, and silent where
    nobody watches.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._console = console.stderr_console()
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
        """What is under way."""
        if self._live is not None:
            self._live.update(under_way(self.rows, doing), refresh=True)
        elif doing:
            console.note(doing)

    def tick(self, doing: str) -> None:
        """How far it is: for those who watch only."""
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
    """What a demo has come to.

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
    out.print(f"{serving} serves: the best pair on dev, {ended.choice.reason()}.")
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


def next_steps(config: Path, summary: Path, report: Path, *, server_stopped: bool) -> None:
    """What to type next, on standard error."""
    console.note(f"\nThe figures are in {summary}, the configuration is {config}.")
    console.note(f"The report of the training is {report}: open it in a browser.")
    if server_stopped:
        console.note(
            "OpenSearch is stopped again and keeps the indexes: cogr-ops opensearch start brings "
            "it back."
        )
    console.next_command(f'cogr-index search -c {config} "metal bookshelf"')
    console.next_command(f"cogr-train round -c {config}")
    console.next_command(f"cogr-train evaluate -c {config} --split test --baselines")
