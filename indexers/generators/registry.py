"""Generators by kind: options read and checked, the generator made. Imports a kind's module only
when it is asked for.

A kind's module has two names for the registry: a subclass of `Options` and `make(options, side,
dataset, store)`. None of these modules imports torch, transformers or vllm before it generates.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from pydantic import ValidationError

from cogr.errors import GeneratorError
from cogr.records import Dataset, Side
from cogr.store import Store
from indexers.generators.protocol import Generator, Options

Maker = Callable[[Options, Side, Dataset | None, Store | None], Generator]


@dataclass(frozen=True, slots=True)
class Kind:
    """Where a kind's options and maker are, and one line on what it is."""

    module: str
    options: str
    what: str

    def load(self) -> tuple[type[Options], Maker]:
        """The kind's options class and maker."""
        module = import_module(f"indexers.generators.{self.module}")
        return cast(type[Options], getattr(module, self.options)), cast(Maker, module.make)


KINDS: Mapping[str, Kind] = {
    "extractive": Kind(
        "extractive", "ExtractiveOptions", "phrases of the entity's own text; no model, no labels"
    ),
    "statistical": Kind(
        "statistical.generator",
        "StatisticalOptions",
        "a ranker learned from the labels, whose results become keywords",
    ),
    "vllm": Kind("vllm_lm", "VllmOptions", "a language model by vLLM in this process"),
    "openai": Kind(
        "openai_api", "OpenAIOptions", "a language model behind an OpenAI-compatible endpoint"
    ),
    "transformers": Kind(
        "transformers_lm", "TransformersOptions", "a language model by transformers in this process"
    ),
    "scripted": Kind("scripted", "ScriptedOptions", "answers from a file or a rule, for tests"),
}


def make_generator(
    settings: Mapping[str, Any],
    side: Side,
    dataset: Dataset | None = None,
    store: Store | None = None,
) -> Generator:
    """The generator that the settings describe.

    Args:
        settings: `kind` and that kind's options, as a table of the configuration has them; None is
            the same as unset.
        side: whose keywords it will write.
        dataset: for the kinds that read the collection (`extractive`, `statistical`).
        store: for the kinds that keep a fitted state (`statistical`).

    Raises:
        GeneratorError: an unknown kind, an unknown or wrong option, a model that can't be used; in
            one sentence.
        MissingExtraError: the kind needs a package that is not installed.
    """
    options, maker = read_options(settings)
    return maker(options, side, dataset, store)


def read_options(settings: Mapping[str, Any]) -> tuple[Options, Maker]:
    """The checked options of a generator, and what makes it."""
    rest = {name: value for name, value in settings.items() if value is not None}
    name = rest.pop("kind", None)
    if name not in KINDS:
        raise GeneratorError(
            f"There is no generator {name!r}{_nearest(str(name), KINDS)}; kinds: "
            f"{', '.join(KINDS)}."
        )
    options_class, maker = KINDS[name].load()
    try:
        return options_class.model_validate(rest), maker
    except ValidationError as error:
        raise GeneratorError(_sentence(name, options_class, error)) from error


def _sentence(kind: str, options: type[Options], error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = options.model_fields
        return (
            f"The generator {kind} has no option {where}{_nearest(where, known)}; it has "
            f"{', '.join(known) or 'none'}."
        )
    if first["type"] == "missing":
        return f"The generator {kind} needs the option {where}; set it."
    message = first["msg"].removeprefix("Value error, ")
    return (
        f"The generator {kind} can't use its option {where or 'table'}: "
        f"{message[:1].lower()}{message[1:].rstrip('.')}."
    )


def _nearest(word: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(word.rpartition(".")[2], known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
