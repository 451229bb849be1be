"""The options that every command has, spelled once."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    Path | None,
    typer.Option("-c", "--config", help="Configuration file; ./cogr.toml by default.", show_default=False),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting, e.g. opensearch.prefix=shop. Repeatable."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output and nothing else there.")]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Log what happens to standard error.")]


class SideName(StrEnum):
    """The two sides, as an option's choices."""

    query = "query"
    item = "item"


class BackendName(StrEnum):
    """The two backends, as an option's choices."""

    memory = "memory"
    opensearch = "opensearch"


class WorkersName(StrEnum):
    """Where a rebuild generates, as an option's choices."""

    local = "local"
    celery = "celery"


def set_verbosity(verbose: bool) -> None:
    """Logs of our own packages to standard error: warnings, or everything from INFO up. Libraries stay silent."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for package in ("cogr", "indexers", "trainers", "ops"):
        logger = logging.getLogger(package)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO if verbose else logging.WARNING)
