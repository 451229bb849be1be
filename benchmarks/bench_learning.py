"""What the rounds add to SFT: the sample shop made from several seeds, trained as the demo trains
it; test F1 of each step.

    python benchmarks/bench_learning.py [SEED ...] [--json] [--quick]

A seed takes about five minutes on two quiet cores, so this is `make bench-learning`, apart from the
others. --quick trains a few steps, to show that it runs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from _shop import write_catalogue
from _timing import Row, option_parser, report

from trainers.demo import SAMPLE_SETTINGS, train_sample
from trainers.training.contest import of_round

SEEDS = (0, 1, 2)
"""Settings were chosen on seeds 10 and 11; none was changed after these had been run."""

MIN_MEAN_GAIN = 0.20
MIN_GAIN = 0.10
QUICK = (
    "training.invented_queries=20",
    "training.sft.item_keywords=3",
    "training.sft.query_keywords=3",
    "training.sft.epochs=1",
    "training.rollouts.max_tokens=8",
    "generator.sampling.max_tokens=8",
    "training.query.max_steps=1",
    "training.item.max_steps=1",
)
CONFIGURATION = """\
store = "store"
[dataset]
loader = "jsonl"
path = "shop"
"""


def steps(seed: int, more: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Name of each step -> (test F1, seconds), of the shop and the training of one seed."""
    with tempfile.TemporaryDirectory() as folder:
        write_catalogue(Path(folder) / "shop", seed)
        config = Path(folder) / "cogr.toml"
        config.write_text(CONFIGURATION)
        sample = [f"{key}={json.dumps(value)}" for key, value in SAMPLE_SETTINGS.items()]
        asked = [*sample, f"training.seed={seed}", *more]
        done = train_sample(config, lambda _: None, asked)
        return {
            (pair := of_round(one)).name: (
                pair.figures["test"]["f1"],
                sum(stage.seconds for stage in one.stages),
            )
            for one in done
        }


def rows(seeds: Sequence[int], more: Sequence[str]) -> Iterator[Row]:
    """One row a seed and one for all; gains as shortfalls, so that less is better."""
    gains = []
    for seed in seeds:
        found = steps(seed, more)
        gains.append(found["round 2"][0] - found["sft"][0])
        notes = {name: round(f1, 4) for name, (f1, _) in found.items()}
        notes["seconds"] = round(sum(seconds for _, seconds in found.values()))
        yield Row(f"seed {seed}: 1 - gain in test F1", 1 - gains[-1], "", 1 - MIN_GAIN, notes=notes)
    yield Row(
        "mean: 1 - gain in test F1",
        1 - mean(gains),
        "",
        1 - MIN_MEAN_GAIN,
        notes={"gain": round(mean(gains), 4)},
    )


def main() -> None:
    parser = option_parser(__doc__, json=True)
    parser.add_argument("seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    report(rows(arguments.seeds, QUICK if arguments.quick else ()), as_json=arguments.json)


if __name__ == "__main__":
    main()
