"""The one protocol that every generator follows: requests in, completions or failures out, streaming.

A generator knows nothing of snapshots, caches or shards. It answers every request exactly once, in any order, by id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from cogr.prompts import Prompt
from cogr.records import Entity


@dataclass(frozen=True, slots=True)
class Request:
    """One entity to write keywords for: its id, the entity, and the prompt that a language model reads."""

    id: str
    entity: Entity
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Completion:
    """What a generator wrote for one request; `text` goes through `cogr.keywords.parse`.

    `tokens` counts generated tokens (0 where there are none to count); `truncated` says that the length limit ended it.
    """

    id: str
    text: str
    tokens: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no completion.

    `lasting` failures follow from the request itself (too long for the context) and are remembered; others (an endpoint
    that gave up after its retries) are tried again by the next rebuild.
    """

    id: str
    reason: str
    lasting: bool = True


Answer = Completion | Failure


@runtime_checkable
class Generator(Protocol):
    """Writes keywords for entities.

    `fingerprint` names everything that decides the output (kind, model, adapter, sampling, seed, data hash where the
    collection is read). It goes into the manifest, and with the prompt into the key of the generation cache.
    """

    @property
    def fingerprint(self) -> Mapping[str, object]: ...

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Answer every request exactly once, in any order. Raises ServiceError when the whole service is away."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
