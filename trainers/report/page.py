"""The report as one HTML file: figures and tables filled into a template that escapes everything.

The file needs nothing from the network and holds no script; its own content policy forbids both.
Item text is untrusted: it reaches the page only through the template's escaping. `facts` reads the
run, `figures` draws.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from cogr import __version__
from cogr.errors import MissingExtraError, page_template
from cogr.records import Say
from cogr.store import Store
from indexers.workspace import Workspace
from trainers.report.drawing import Figure, clean
from trainers.report.facts import Facts, Pair, gather, round_name
from trainers.report.figures import acceptance, draw, duration
from trainers.report.keywords import Vocabulary
from trainers.training.run_folder import Run

_COMMONEST = 10


def check_extra() -> None:
    """Raise MissingExtraError without the extra `report`: better known before a run
    than after it.
    """
    try:
        import jinja2  # noqa: F401
        import matplotlib as mpl  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("The report", "report") from error


def write_report(
    workspace: Workspace,
    run: Run,
    file: Path,
    say: Say = lambda _: None,
    figures: Path | None = None,
    other: Run | None = None,
) -> list[Path]:
    """Write a run's report, replacing the file atomically; returns the files written, it first.

    Args:
        figures: a folder that gets every figure as SVG and PNG, in light colours; none if absent.
        other: a run whose keywords are shown beside this one's.

    Raises:
        MissingExtraError: without the extra `report`.
        TrainingError: the run has no finished round.
        SnapshotError: a snapshot of the run is gone or broken.
        StorageError: the file can't be written.
    """
    check_extra()
    facts = gather(workspace, run, say, other)
    drawn = draw(facts)
    data = render(facts, drawn).encode("utf-8", "replace")
    Store(file.resolve().parent).write(file.name, data)
    if figures is None:
        return [file]
    return [file, *(path for one in chain(*drawn.values()) for path in one.write(figures))]


def render(facts: Facts, figures: Mapping[str, Sequence[Figure]]) -> str:
    """The page of some facts with their figures, by section (`figures.draw`)."""
    from markupsafe import Markup

    style = Markup((files("trainers.report") / "page.css").read_text("utf-8"))
    template = page_template("trainers.report", clean)
    return template.render(style=style, **_content(facts, figures))


def _content(facts: Facts, figures: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "facts": facts,
        "tiles": _tiles(facts),
        "compared": _compared(facts),
        "beside": _beside(facts),
        **figures,
        "commonest": _commonest(facts),
        "acceptance": acceptance(facts),
        "duration": duration,
        "round_name": round_name,
        "version": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _beside(facts: Facts) -> list[tuple[str, Mapping[str, Any]]]:
    """(name, split -> figures) of what the rounds are compared with."""
    found = facts.rivals
    rows = {} if found is None else found.rows()
    return [(name, figures) for name, figures in rows.items() if figures]


def _compared(facts: Facts) -> list[Mapping[str, Any]]:
    """What a reader asks first: the search by words, the keywords without a model, those of the
    models before and after.
    """
    first, last = facts.whole[0], _pair_of(facts, facts.base.number)
    best = "" if facts.choice is None else facts.choice.chosen.name
    rounds = [first] if last.round == first.round else [first, last]
    rows = [*_beside(facts), *((pair.name, pair.figures) for pair in rounds)]
    return [
        {"name": name, **figures[facts.split], "best": name.lower() == best}
        for name, figures in rows
        if facts.split in figures
    ]


def _tiles(facts: Facts) -> list[tuple[str, str, str]]:
    """(name, figure, what stands beside it) of the last round that is built upon."""
    first, last = (
        facts.whole[0].figures[facts.split],
        _pair_of(facts, facts.base.number).figures[facts.split],
    )
    item, query = (_vocabulary_of(facts, side) for side in ("item", "query"))
    gain = f"{last['f1'] - first['f1']:+.3f} over SFT" if facts.base.number else "after SFT"
    seconds = sum(stage.seconds for round_ in facts.rounds for stage in round_.stages)
    return [
        (f"{facts.split} F1", f"{last['f1']:.3f}", gain.replace("-", "−")),
        ("precision", f"{last['p']:.3f}", f"SFT {first['p']:.3f}"),
        ("recall", f"{last['r']:.3f}", f"SFT {first['r']:.3f}"),
        ("keywords an item", f"{_mean(item):.1f}", f"{_mean(query):.1f} a query"),
        (
            "shared keywords",
            f"{item.shared:,}",
            f"{item.shared / max(1, query.distinct):.0%} of the queries' vocabulary",
        ),
        ("time", duration(seconds), "of all stages"),
    ]


def _pair_of(facts: Facts, number: int) -> Pair:
    return next(pair for pair in facts.whole if pair.round == number)


def _vocabulary_of(facts: Facts, side: str) -> Vocabulary:
    return next(
        one for one in facts.vocabularies if one.side == side and one.round == facts.base.number
    )


def _mean(vocabulary: Vocabulary) -> float:
    return vocabulary.keywords / max(1, vocabulary.entities)


def _commonest(facts: Facts) -> list[Mapping[str, Any]]:
    """The keywords that most entities gained and lost since SFT, by side."""
    return [
        {
            "side": side,
            "gained": found.gained.most_common(_COMMONEST),
            "lost": found.lost.most_common(_COMMONEST),
        }
        for side, found in (facts.overall or {}).items()
    ]
