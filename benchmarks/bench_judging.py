"""A judge on the CPU: seconds for a pair where each item has one query, and where each has sixteen,
beside whole prompts, one at a time and in batches of equal size; and how far answers are apart.
Writing keywords beside whole prompts in the same batches.

    python benchmarks/bench_judging.py [--model FOLDER] [--pairs 32] [--json]

Items and queries of the sample shop, SmolLM2-135M as bundled; two minutes on one quiet core.
Seconds are CPU seconds of this process, which computes on one thread. Everything is read once
before it is timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from _timing import Row, option_parser, report, timed
from numpy.typing import NDArray

from cogr.datasets import load_dataset
from cogr.prompts import PAPER, Prompter
from cogr.records import Item
from indexers.generators import Completion, Request
from indexers.generators.judging import YES_OR_NO, QueryItem
from indexers.generators.model_folders import Encoded, LocalModelOptions
from indexers.generators.transformers_lm import TransformersGenerator
from tests.smollm2 import smollm2
from trainers.demo import CATALOGUE

MAX_TOKENS = 16
BATCH = 32


class Whole(TransformersGenerator):
    """The same model, which reads every prompt from its beginning."""

    def _beginning(self, fitting: list[Encoded]) -> None:
        del fitting


def whole_odds(
    judge: TransformersGenerator, asked: Sequence[Request], size: int
) -> NDArray[np.float64]:
    """Log-odds of yes by whole prompts, so many at once, longest first."""
    texts, found = [ids for _, ids in judge.encoded(asked)[0]], np.zeros(len(asked))
    order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
    for at in range(0, len(order), size):
        some = order[at : at + size]
        padded = judge._padded([texts[one] for one in some])
        with torch.inference_mode():
            logits = judge._model(**padded, logits_to_keep=1).logits[:, -1].double()
        yes, no = (logits[:, ids].logsumexp(1) for ids in judge.yes_and_no)
        found[some] = (yes - no).tolist()
    return found


def odds(judge: TransformersGenerator, asked: Sequence[Request]) -> NDArray[np.float64]:
    """The judge's own log-odds."""
    found = {one.id: one for one in judge.generate(asked)}
    answers = [found[request.id] for request in asked]
    p = np.array([one.confidence for one in answers if isinstance(one, Completion)], np.float64)
    odds_of_yes: NDArray[np.float64] = np.log(p) - np.log1p(-p)
    return odds_of_yes


def rows(model: str, pairs: int) -> Iterator[Row]:
    dataset, rng = load_dataset("jsonl", str(CATALOGUE)), np.random.default_rng(0)
    queries = dataset.all_queries()
    options = {"model": model, "yes_or_no": True}
    judge = TransformersGenerator(LocalModelOptions.model_validate(options))
    for each in (1, 16):
        items = rng.permutation(len(dataset.items))[: max(1, pairs // each)]
        asked = [
            QueryItem(queries[one], dataset.items[item]).request(YES_OR_NO)
            for item in items
            for one in rng.permutation(len(queries))[:each]
        ]
        odds(judge, asked[:2])
        own, _, seconds = timed(odds, judge, asked)
        others = {}
        for name, size in (("one whole prompt at a time", 1), ("whole prompts", BATCH)):
            expected, _, others[name] = timed(whole_odds, judge, asked, size)
        apart = f"{np.abs(own - expected).max():.3f}"
        yield Row(
            f"a judged pair, {each} of an item",
            1e3 * seconds / len(asked),
            "ms",
            alternatives={name: 1e3 * of / len(asked) for name, of in others.items()},
            notes={"pairs": len(asked), "log-odds apart": apart},
        )
    yield written(model, judge, dataset.items[:pairs])


def written(model: str, judge: TransformersGenerator, items: Sequence[Item]) -> Row:
    sampling = {"temperature": 0, "max_tokens": MAX_TOKENS}
    options = LocalModelOptions.model_validate({"model": model, "sampling": sampling})
    prompter = Prompter(PAPER["item"])
    asked = [Request(item.id, item, prompter(item)) for item in items]
    seconds = []
    for kind in (TransformersGenerator, Whole):
        writer = kind(options)
        vars(writer)["_model"] = judge._model
        list(writer.generate(asked[:2]))
        seconds.append(timed(list, writer.generate(asked))[2])
    own, whole = (1e3 * one / len(asked) for one in seconds)
    name = f"keywords of an item, {MAX_TOKENS} tokens"
    return Row(name, own, "ms", alternatives={"whole prompts": whole})


def main() -> None:
    parser = option_parser(__doc__, json=True)
    parser.add_argument("--model", help="folder of another model")
    parser.add_argument("--pairs", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(1)
    report(rows(args.model or smollm2(), args.pairs), as_json=args.json)


if __name__ == "__main__":
    main()
