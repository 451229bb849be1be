"""The comparison of docs/benchmarks.md again, on one machine without a GPU, checked against
benchmarks/expected.toml.

Run: make reproduce, or python benchmarks/reproduce.py [--seeds N] [--out DIR] [--write] [NAME ...].
COGR_DATA_DIR names the folder of the data sets; what is absent is an error. `--write` keeps figures
and tables in benchmarks/results, and writes expected.toml anew. Exit status 1: a figure is further
from what is expected than its spread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from _timing import option_parser

from benchmarks.compare import METHODS as COMPARED
from benchmarks.compare.measuring import CUTS
from benchmarks.compare.results import markdown
from benchmarks.compare.runner import CompareOptions, run_comparison
from cogr.errors import CheckFailedError, CogrError, ServiceError, UserError
from indexers.generators.statistical.ranking.encoder import MINILM
from indexers.workspace import Workspace
from trainers.demo import CATALOGUE
from trainers.evaluation import bm25

HERE = Path(__file__).parent
EXPECTED, RESULTS = HERE / "expected.toml", HERE / "results"
NAMES = ("nfcorpus", "msrd", "chorus", "shop")
"""`shop` is the sample shop."""

METHODS = (
    "bm25",
    "synonyms",
    "doc2query",
    "statistical",
    "extractive",
    "nearest",
    "oracle-keywords",
    "perfect-cutoff",
)
"""What runs on a CPU in minutes, without weights."""

REFERENCE = "reference"
"""BM25 as it is published."""

MEASURES = (*CUTS, "ndcg@10")
SERVES, SERVED = "what serves", ("F1", "nDCG@10", "R@100")
EXACT = 0.002
"""Spread of what draws nothing, and the least of all."""
WRITTEN = "# Written by `python benchmarks/reproduce.py --write`.\n"


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", default=[], help="; ".join(NAMES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("reproduced"))
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    try:
        found = {name: reproduced(name, asked) for name in asked.names or NAMES}
        if not asked.names:
            for name, figures in of_statistical().items():
                found.setdefault(name, {}).update(figures)
        missed = missed_by(found, {*METHODS, REFERENCE} if asked.names else None)
        if asked.write:
            EXPECTED.write_text(expected(), "utf-8")
        if missed and not asked.write:
            raise CheckFailedError(
                f"{len(missed)} figures are not as expected: {'; '.join(missed)}; see "
                "benchmarks/expected.toml."
            )
    except CogrError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)


_Found = dict[str, Mapping[str, Any]]
"""Method, or case of `statistical` -> measure -> figure."""


def reproduced(name: str, asked: argparse.Namespace) -> _Found:
    """The figures of the methods on one data set."""
    folder = Path(os.environ.get("COGR_DATA_DIR", ""))
    source = f'loader = "{name}"'
    if name == "shop":
        source = f'loader = "jsonl"\npath = "{CATALOGUE}"'
    elif not os.environ.get("COGR_DATA_DIR") or not (folder / name).is_dir():
        raise UserError(
            f"There is no data set {name}: set COGR_DATA_DIR to the folder that has it, see "
            "docs/datasets.md."
        )
    out: Path = asked.out / name
    out.mkdir(parents=True, exist_ok=True)
    config = out / "cogr.toml"
    # An encoder is there or not, as the network is.
    own = '[generator.statistical]\nencoder = "none"\n'
    config.write_text(f'store = "store"\n[dataset]\n{source}\n{own}', "utf-8")
    workspace = Workspace.open(config, [])
    comparison = CompareOptions(METHODS, asked.seeds, True, out / "compare")
    results = run_comparison(workspace, comparison, lambda line: print(line, flush=True))
    results = replace(results, facts={**results.facts, "dataset": name})
    found: _Found = {
        **{one.name: dict(one.row.figures) for one in results.methods if one.done},
        REFERENCE: bm25(workspace.dataset, "test").row(workspace.dataset, "test"),
    }
    if asked.write:
        RESULTS.mkdir(exist_ok=True)
        described = {"command": command(name, asked.seeds), "commit": commit()}
        written = {**results.as_dict(), **described}
        text = json.dumps(written, indent=1, sort_keys=True, ensure_ascii=False)
        (RESULTS / f"{name}.json").write_text(text + "\n", "utf-8")
        (RESULTS / f"{name}.md").write_text(markdown(results), "utf-8")
    return found


def of_statistical() -> dict[str, _Found]:
    """Data set -> the figures of `statistical` by bench_statistical.py: what serves (--served),
    where a fifth of the sample shop's items is newer than the labels (--new-items shop), learned
    from half of the queries (--halves med cacm), and with an encoder (--encoder FOLDER med cacm).
    """
    from bench_statistical import UNTUNED, encoder_gains, load, new_items, random_halves, serves

    found: dict[str, _Found] = {}
    for name in (*NAMES, "med", "cacm", *UNTUNED):
        notes = serves(name).notes
        found[name] = {SERVES: {one.lower(): float(notes[one].split()[-1]) for one in SERVED}}
    for row in new_items(load("shop"), "test"):
        means = {measure: float(str(of).split()[0]) for measure, of in row.notes.items()}
        found["shop"][row.name.partition(", ")[2]] = means
    for name in ("med", "cacm"):
        found[name]["half of the queries"] = random_halves(name).notes
        try:
            gains = {row.name: row.notes for row in encoder_gains(name, MINILM, 0, "test")}
            found[name]["an encoder"] = {"f1": gains[f"{name}, 5 folds: 1 - F1"]["with"]}
        except ServiceError as error:  # The weights can't be had: told as not run.
            print(error, file=sys.stderr)
    return found


def commit() -> str:
    """The commit that is checked out here."""
    asked = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(
        asked, cwd=HERE, check=True, capture_output=True, text=True
    ).stdout.strip()


def command(name: str, seeds: int) -> str:
    """What does the same for one data set, for the page."""
    methods = ",".join(METHODS)
    return f"python -m benchmarks.compare -c {name}.toml --methods {methods} --seeds {seeds}"


def missed_by(found: Mapping[str, _Found], only: Collection[str] | None) -> list[str]:
    """What is not as expected, a phrase each.

    Args:
        only: the methods that were run; None: all that are expected.
    """
    told = tomllib.loads(EXPECTED.read_text("utf-8"))
    return [
        miss
        for name, figures in found.items()
        for miss in misses(
            name,
            {one: of for one, of in told.get(name, {}).items() if only is None or one in only},
            figures,
        )
    ]


def misses(
    name: str, expected: Mapping[str, Any], found: Mapping[str, Mapping[str, float]]
) -> Iterator[str]:
    """A phrase for each figure that is further from the expected one than its spread."""
    for method, figures in expected.items():
        spread = figures["spread"]
        for measure, value in figures.items():
            if measure == "spread":
                continue
            now = found.get(method, {}).get(measure)
            if now is None:
                yield f"{name}: {method} was not run"
            elif abs(now - value) > spread:
                yield f"{name}: {measure} of {method} is {now:.4f}, not {value:.4f} ± {spread:g}"


def expected() -> str:
    """expected.toml: what stands above `WRITTEN` as it is, and below it the figures of the methods
    on the data sets of `NAMES`.

    A method that draws nothing comes out alike, within `EXACT`; one that does may be two of its
    sample deviations over the seeds away, or where it had one seed, one standard error of its F1.
    """
    lines = [EXPECTED.read_text("utf-8").partition(WRITTEN)[0] + WRITTEN]
    for name in sorted(NAMES):
        if (RESULTS / f"{name}.json").is_file():
            results = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
            rows = [row for row in results["rows"] if row["method"] in METHODS and "figures" in row]
            lines += [section(name, row) for row in rows]
    return "\n".join(lines)


def section(name: str, row: Mapping[str, Any]) -> str:
    """The table of one method."""
    figures, deviations = row["figures"], row["spread"]
    spread = EXACT
    if COMPARED[row["method"]]().seeded:
        widest = max(deviations.get(one, 0.0) for one in MEASURES)
        seen = 2 * widest if deviations else figures["f1_se"]
        spread = max(spread, round(seen, 3))
    values = [f'"{one}" = {figures[one]:.4f}' for one in MEASURES if one in figures]
    return "\n".join([f'[{name}."{row["method"]}"]', *values, f"spread = {spread:g}", ""])


if __name__ == "__main__":
    main()
