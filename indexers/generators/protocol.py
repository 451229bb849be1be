"""The one protocol that every generator follows: requests in, completions or failures out,
streaming.

A generator knows nothing of snapshots, caches or shards. It answers every request exactly once, in
any order, by id. How long texts are cut and how prompts are spelled is `cogr.prompts`; what a
completion means is `cogr.keywords`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict

from cogr.prompts import Prompt
from cogr.records import Entity
from cogr.settings import Sampling

if TYPE_CHECKING:
    from cogr.snapshots import Blend

T = TypeVar("T")


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
        weights: of a query, normalised keyword -> how much it counts in the order of what is found,
            above 0 and at most 1,000; the query's own text under its own normalised form. A keyword
            that is not named weighs 1.
        confidence: of a query, the expected F1 of what its keywords retrieve, 0 to 1; None where
            the generator can't tell.
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

Reads = Literal["prompt", "entity"]


class Options(BaseModel):
    """Base of every generator's options: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


INDEX = Sampling()
"""For initialisation, evaluation and index builds: 0.7, 0.8, 20."""

ROLLOUT = Sampling(temperature=1.0, top_p=1.0, top_k=0)
"""For rollouts: temperature 1 and nothing else, because any truncation would bias the importance
ratio.
"""


@runtime_checkable
class Generator(Protocol):
    """Writes keywords for entities.

    `fingerprint` names everything that decides the output (kind, model, adapter, sampling, seed,
    data hash where the collection is read). It goes into the manifest, and with the prompt into the
    key of the generation cache. `blend` goes into the manifest of a query snapshot. `reads` says
    what of a request decides the answer: the prompt alone, or the entity, which then is part of
    that key; such a generator may also find that an entity needs no keywords at all.
    """

    @property
    def fingerprint(self) -> Mapping[str, object]: ...

    @property
    def reads(self) -> Reads: ...

    @property
    def blend(self) -> Blend | None: ...

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Answer every request exactly once, in any order.

        Raises ServiceError when the whole service is away.
        """
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class GeneratorBase(ABC):
    """The part of the protocol that all our generators share: use in a `with` block, and a close
    that may be repeated.
    """

    @property
    def reads(self) -> Reads:
        """A language model reads the prompt and nothing else."""
        return "prompt"

    @property
    def blend(self) -> Blend | None:
        """When a query's keywords answer alone; None where the generator knows of no confidence."""
        return None

    @property
    @abstractmethod
    def fingerprint(self) -> Mapping[str, object]: ...

    @abstractmethod
    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]: ...

    def close(self) -> None:  # noqa: B027  (most kinds hold nothing)
        """Free what the generator holds. May be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def batched(things: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of at most `size`, in order; reads no further than the list it gives."""
    iterator = iter(things)
    while batch := list(islice(iterator, size)):
        yield batch
