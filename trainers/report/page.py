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

from cogr import __version__
from cogr.errors import MissingExtraError, page_template
from cogr.records import Say
from cogr.store import Store
from indexers.telemetry.terminal import duration
from indexers.workspace import Workspace
from trainers.report.drawing import Figure, clean
from trainers.report.facts import Facts, round_name
from trainers.report.figures import acceptance, draw
from trainers.training.run_folder import Run


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
    facts = Facts(workspace, run, say, other)
    drawn = draw(facts)
    data = render(facts, drawn).encode("utf-8", "replace")
    Store(file.resolve().parent).write(file.name, data)
    if figures is None:
        return [file]
    return [file, *(path for one in chain(*drawn.values()) for path in one.write(figures))]


def render(facts: Facts, figures: Mapping[str, Sequence[Figure]]) -> str:
    """The page of some facts with their figures, by section (`figures.draw`)."""
    from markupsafe import Markup

    page: str = page_template("trainers.report", clean).render(
        style=Markup((files("trainers.report") / "page.css").read_text("utf-8")),
        facts=facts,
        first=facts.whole[0],
        last=facts.whole[facts.base.number],
        words=facts.vocabularies[facts.base.number],
        beside={} if facts.rivals is None else facts.rivals.rows(),
        best="" if facts.choice is None else facts.choice.chosen.name,
        seconds=sum(stage.seconds for round_ in facts.rounds for stage in round_.stages),
        acceptance=acceptance(facts),
        duration=duration,
        round_name=round_name,
        version=__version__,
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        **figures,
    )
    return page
