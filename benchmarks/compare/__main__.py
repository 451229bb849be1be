"""Compare retrieval methods on one data set: trained, tuned on dev, measured on test, with
significance and cost, and which one to use.

    python -m benchmarks.compare -c cogr.toml --methods bm25,synonyms,statistical --seeds 3

Hyperparameters and cutoffs are chosen the same way for all, within one budget. A method that can't
run here has a row that says what it needs. Ctrl-C keeps the finished rows; --resume continues from
them. Tables, rows and TREC runs are in --out. Exit status 2: wrong input, or a method failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.compare import METHODS, selected_names
from benchmarks.compare.results import shown
from benchmarks.compare.runner import CompareOptions, run_comparison
from cogr.errors import INTERRUPTED, CogrError
from indexers.telemetry import logs
from indexers.telemetry.terminal import console_of
from indexers.workspace import Workspace


def _pair(text: str) -> tuple[str, str]:
    method, _, model = text.partition("=")
    if method not in METHODS or not model:
        raise argparse.ArgumentTypeError(f"{text!r} is not METHOD=MODEL, as in dpr=minilm")
    return method, model


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("-c", "--config", type=Path, help="configuration; ./cogr.toml by default")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--methods", default="all", help=f"all, or some of {', '.join(METHODS)}")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="METHOD=MODEL",
        type=_pair,
        help="folder or Hugging Face name that a method starts from; repeatable",
    )
    parser.add_argument("--seeds", type=int, default=3, help="fits of each method")
    parser.add_argument("--trials", type=int, default=8, help="most sets of hyperparameters")
    parser.add_argument("--steps", type=int, help="training steps of a fit")
    parser.add_argument("--resume", action="store_true", help="keep rows of the same data")
    parser.add_argument("--out", type=Path, default=Path("compare"))
    asked = parser.parse_args(arguments)
    try:
        names = selected_names(asked.methods, METHODS, "method")
        options = CompareOptions(
            names,
            asked.seeds,
            asked.resume,
            asked.out,
            asked.trials,
            asked.steps,
            dict(asked.model),
        )
        workspace = Workspace.open(asked.config, asked.set)
        results = run_comparison(workspace, options, logs.say)
        shown(results).show(console_of(sys.stdout))
        results.check()
    except CogrError as error:
        logs.say(str(error))
        return error.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
