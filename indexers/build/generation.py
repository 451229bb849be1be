"""From requests to answers in the generation cache: one stream, flushed every few seconds.

A rebuild in this process and a worker's shard both generate by this loop. It knows no plan and no
shard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from cogr.records import Side
from indexers.build.cache import GenerationCache
from indexers.generators.protocol import Answer, Failure, Generator, Request
from indexers.telemetry.prometheus import AnswerCounts

Keyed = tuple[bytes, Request]
"""A request and the cache key of its answer."""


@dataclass(frozen=True)
class Generated:
    """What a stream of requests came to.

    Attributes:
        transient: failures that the cache does not remember, by entity id.
        left: requests without an answer; 0 unless it was stopped.
    """

    transient: dict[str, Failure]
    left: int


@dataclass
class CacheWriter:
    """Answers on their way into the cache.

    Args:
        flush_answers, flush_seconds: a file is written after so many answers, or so many seconds.
    """

    cache: GenerationCache
    side: Side
    flush_answers: int
    flush_seconds: float
    transient: dict[str, Failure] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._counts = AnswerCounts(self.side)
        self._waiting: list[tuple[bytes, Answer]] = []
        self._flushed = time.monotonic()

    def add(self, key: bytes, answer: Answer) -> None:
        """Take one answer. Raises StorageError when the cache can't be written."""
        self._waiting.append((key, answer))
        self._counts.add(answer)
        if isinstance(answer, Failure) and not answer.permanent:
            self.transient[answer.id] = answer
        age = time.monotonic() - self._flushed
        if len(self._waiting) >= self.flush_answers or age >= self.flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._waiting and self.cache.add(self._waiting) is not None:
            self._counts.flushed()
        self._waiting, self._flushed = [], time.monotonic()


def generate_into(
    writer: CacheWriter,
    generator: Generator,
    keyed: Iterable[Keyed],
    count: int,
    each: Callable[[Answer], None],
    stopping: Callable[[], bool] = lambda: False,
) -> Generated:
    """Answer requests. However it ends, what was answered is in the cache.

    Args:
        keyed: the requests with their keys; taken as the generator asks for them.
        count: how many they are.
        each: called with every answer.
        stopping: asked after every answer; True ends the stream.

    Raises:
        RuntimeError: the generator left requests unanswered.
        ServiceError: the generator's service is away.
        StorageError: the cache can't be written.
    """
    asked: dict[str, bytes] = {}
    left, stopped = count, False
    try:
        for answer in generator.generate(_requests(keyed, asked)) if count else ():
            writer.add(asked.pop(answer.id), answer)
            left -= 1
            each(answer)
            if stopped := stopping():
                break
    finally:
        writer.flush()
    if left and not stopped:
        example = f", such as {min(asked)}" if asked else ""
        raise RuntimeError(f"the generator left {left} requests unanswered{example}")
    return Generated(writer.transient, left)


def _requests(keyed: Iterable[Keyed], asked: dict[str, bytes]) -> Iterator[Request]:
    """The requests; `asked` gets the key of each as it is taken."""
    for key, request in keyed:
        asked[request.id] = key
        yield request
