"""The protocol that every generator follows, and what makes one by its kind
(`cogr.settings.indexing.KINDS`).

A generator takes requests and streams completions or failures. It knows nothing of snapshots,
caches or shards. It answers every request exactly once, in any order, by id. `cogr.prompts` cuts
texts and writes prompts; `cogr.keywords` parses completions.

A kind's module is imported only when it is asked for. Such a module defines a subclass of
`Options`, whose method `make` gives the generator. None of these modules imports torch,
transformers or vllm before it generates.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from cogr.errors import GeneratorError, require
from cogr.keywords import cut_to_budget, self_keyword
from cogr.prompts import Prompt
from cogr.records import Dataset, Entity, Query, Side
from cogr.settings.indexing import kind_of
from cogr.snapshots import Row, rounded
from cogr.store import Store

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Request:
    """One entity to write keywords for: its id, the entity, and the prompt that a language model
    reads.
    """

    id: str
    entity: Entity
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Completion:
    """What a generator wrote for one request; `text` goes through `cogr.keywords.parse`.

    Attributes:
        tokens: generated tokens; 0 where there are none to count.
        truncated: the length limit ended it.
        weights: of a query, normalised keyword -> its boost in the scores of a search, as in
            `Row`; the query's own text counts as a keyword too. A keyword that is not named weighs
            1.
        confidence: of a query, the expected F1 of what its keywords retrieve, 0 to 1; of a judge,
            the probability of yes; None where the generator can't tell.
    """

    id: str
    text: str
    tokens: int = 0
    truncated: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no completion.

    `permanent` failures follow from the request itself (too long for the context) and are cached;
    others (an endpoint that gave up after its retries) are tried again by the next rebuild.
    """

    id: str
    reason: str
    permanent: bool = True


Answer = Completion | Failure

YES_AND_NO = ("yes", "no")
"""What a judge is asked for (`judging`)."""

Reads = Literal["prompt", "entity"]


class Options(BaseModel):
    """Base of every generator's options: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def make(self, context: Context) -> Generator:
        """The generator with these options. Raises GeneratorError."""
        raise NotImplementedError


class Generator(AbstractContextManager["Generator"]):
    """Writes keywords for entities; used in a `with` block."""

    reads: ClassVar[Reads] = "prompt"
    """Which part of a request decides the answer: "prompt", or "entity", whose id then is part of
    the cache key. A generator that reads entities may answer that one needs no keywords.
    """

    keeps_memory: ClassVar[bool] = False
    """Whether its memory is free only at the end of the process."""

    @property
    @abstractmethod
    def fingerprint(self) -> Mapping[str, object]:
        """Everything that decides the output (kind, model, adapter, sampling, seed, data hash where
        the collection is read). It goes into the manifest, and with the prompt into the key of the
        generation cache.
        """

    @abstractmethod
    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Answer every request exactly once, in any order.

        Raises ServiceError when the service can't be reached at all.
        """

    def close(self) -> None:
        """Free what the generator holds. May be called again."""

    def __exit__(self, *_: object) -> None:
        self.close()


def batched(things: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Lists of at most `size`, in order. Reads only the things of the list that it yields."""
    iterator = iter(things)
    while batch := list(islice(iterator, size)):
        yield batch


def query_row(answer: Completion, query: Query, parsed: Sequence[str], k_max: int) -> Row:
    """The row that a generator wrote for a query, at most `k_max` of the keywords that were parsed
    from the answer.
    """
    own = self_keyword(query.text)
    words = cut_to_budget((word for word in parsed if word != own), k_max)
    weights = tuple(rounded(answer.weights.get(word, 1.0)) for word in (*words, own))
    return Row(
        query.id,
        query.text,
        words,
        weights=weights if any(weight != 1 for weight in weights) else (),
        confidence=None if answer.confidence is None else rounded(answer.confidence),
        own=own,
    )


def decided(id_: str, yes: float, no: float) -> Completion:
    """A judge's completion, by the probabilities of both words; at least one is above 0."""
    return Completion(id_, YES_AND_NO[yes < no], tokens=1, confidence=yes / (yes + no))


def fingerprint_hash(fingerprint: Mapping[str, object]) -> str:
    """16 hex digits that identify a generator and everything that decides its output."""
    text = json.dumps(fingerprint, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Context(NamedTuple):
    """For whom a generator is made: whose keywords it will write; the data set, for the kinds that
    read the collection (`extractive`, `statistical`); the store, for those that keep a fitted state
    or read a snapshot.
    """

    side: Side
    dataset: Dataset | None
    store: Store | None


def make_generator(
    settings: Mapping[str, Any],
    side: Side,
    dataset: Dataset | None = None,
    store: Store | None = None,
) -> Generator:
    """The generator that the settings describe.

    Args:
        settings: `kind` and that kind's options, as a table of the configuration has them.

    Raises:
        GeneratorError: an unknown kind, an option that can't be used, or a model; in one sentence.
        MissingExtraError: the kind needs a package that is not installed.
    """
    rest = dict(settings)
    name = rest.pop("kind")
    kind = kind_of(name)
    require(f"The generator {name}", kind.extra, *kind.packages)
    module = import_module(f"indexers.generators.{kind.module}")
    try:
        checked = getattr(module, kind.options).model_validate(rest)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise GeneratorError(
            f"The generator {name} can't use its option {where}: {message}."
        ) from error
    made: Generator = checked.make(Context(side, dataset, store))
    return made
