"""The output of the demo: what is under way, the table, examples, searches.

Text of items is untrusted and never shown as markup.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cogr.errors import visible
from indexers.exchange.search import Answered
from indexers.telemetry import logs
from indexers.telemetry.terminal import console_of
from trainers.demo.rows import Row
from trainers.report import Changed
from trainers.training.contest import Choice

_KEYWORDS_SHOWN = 8
_MATCHES_SHOWN = 3
_WIDEST = 100


class Progress:
    """What is under way, on standard error: a line for each step, and on a terminal a sign that it
    is at work.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._status = console_of(sys.stderr).status("")

    def __enter__(self) -> Progress:
        if self._status.console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def add(self, row: Row) -> None:
        """One more row."""
        self.rows.append(row)
        self._line(f"{row.name}: F1 {row.f1:.3f}")

    def say(self, doing: str) -> None:
        """Show what is under way from now on."""
        self._status.update(Text(doing))
        self._line(doing)

    def _line(self, text: str) -> None:
        if self._status.console.is_terminal:
            self._status.console.print(Text(text, "dim"))
        else:
            logs.say(text)


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


@dataclass(frozen=True)
class Ended:
    """The results of a demo.

    Attributes:
        choice: the pair that serves, and why.
        changed: example entities, `extractive` against what serves.
        searches: each answer with the ids that are relevant to it.
        new_items: method -> the share of relevant new items that it finds.
        titles: the items' titles as keywords; a query may ask for an item by its own.
    """

    rows: Sequence[Row]
    choice: Choice
    changed: Sequence[Changed]
    searches: Sequence[tuple[Answered, Collection[str]]]
    new_items: Mapping[str, float]
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
    new = ", ".join(f"{name} {share:.3f}" for name, share in ended.new_items.items())
    out.print(f"Found of new items, a fifth of the shop: {new}.")
    if ended.changed:
        heading = ("Keywords gained and lost", "bold")
        out.print(Text.assemble("\n", heading, f", extractive -> {serving}"))
    for one in ended.changed:
        out.print(Text(f"{one.side} {safe(one.text)}"))
        for sign, words, style in (("+", one.gained, "green"), ("-", one.lost, "red")):
            if words:
                out.print(Text(f"  {sign} {_listed(words, ended.titles)}", style))
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
        named = {text: "the query's text"} | dict.fromkeys(titles, "its title")
        matched = [named.get(word) or safe(word) for word in words]
        matched += ["words of its title"] if hit.words else []
        is_relevant = "yes" if hit.id in relevant else "no"
        hits.add_row(
            f"{hit.score:.3f}", Text(safe(hit.text)), Text(", ".join(matched)), is_relevant
        )
    out.print(hits)


def safe(text: str) -> str:
    """Text of an item for a terminal: on one line, control characters as escapes, not too long."""
    clean = visible(" ".join(text.split()))
    return clean if len(clean) <= _WIDEST else clean[: _WIDEST - 1] + "…"
