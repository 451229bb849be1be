"""Shops for tests: the one place that writes a data set and its configuration into a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
DATASET = '[dataset]\nloader = "jsonl"\npath = "data"\n'


def write_jsonl(path: Path, records: Iterable[Record]) -> Path:
    """Replace a file at once: others may read it. Returns it."""
    unfinished = path.with_name(f"{path.name}.new")
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    unfinished.write_text("".join(lines), "utf-8")
    return unfinished.replace(path)


def write_data(
    folder: Path, items: Iterable[Record], queries: Iterable[Record], labels: Iterable[Record]
) -> None:
    """Write the files of a data set."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in {"items": items, "queries": queries, "labels": labels}.items():
        write_jsonl(folder / f"{name}.jsonl", records)


def write_shop(
    folder: Path,
    items: Iterable[Record],
    queries: Iterable[Record],
    labels: Iterable[Record],
    configuration: str = "",
) -> Path:
    """Write `data/*.jsonl` and `cogr.toml`; the latter's path. `configuration` continues
    the table [dataset], or has it.
    """
    write_data(folder / "data", items, queries, labels)
    whole = configuration if "[dataset]" in configuration else DATASET + configuration
    (folder / "cogr.toml").write_text(whole)
    return folder / "cogr.toml"


def write_thing_shop(folder: Path, items: int, configuration: str) -> Path:
    """A shop of any size: things of eleven words, and a query for each word."""
    words = range(11)
    return write_shop(
        folder,
        [
            {"id": f"i{n}", "title": f"thing {n}", "text": f"word{n % 11} more{n % 5}"}
            for n in range(items)
        ],
        [{"id": f"q{n}", "text": f"word{n}", "split": "train" if n < 8 else "test"} for n in words],
        [{"query": f"q{n % 11}", "item": f"i{n}", "grade": 1} for n in range(items)],
        configuration,
    )
