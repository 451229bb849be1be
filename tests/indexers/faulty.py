"""The generator `scripted` with faults: failures, a service that goes away, entities that take down
whatever generates for them.

In this process: `monkeypatch.setattr("indexers.generators.extractive.Scripted", faulty(...))`. In
one of its own: `python -m tests.indexers.faulty '{"accidents": {"i7": "kill"}}' ops.cli worker
...`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from cogr.errors import ServiceError
from indexers.generators import Answer, Completion, Failure, Request, extractive
from indexers.generators.extractive import Scripted

Accident = Literal["kill", "error", "hang"]


class Faulty(Scripted):
    """`Scripted` with faults, or with answers from a table.

    Args:
        answers: by entity id; others are answered by the rule.
        name: names them in the fingerprint.
        away_after: after so many answers the service is away.
        fail_every: one of so many entities, chosen by its id, fails for the time being.
        accidents: entity id -> kill (this process dies by SIGKILL), error (an error that no
            generator should raise) or hang (nothing ever comes).
        delay: seconds to wait before each answer.

    Attributes:
        answered: answers given so far, over all calls.
    """

    def __init__(
        self,
        *,
        answers: Mapping[str, str | Answer] | None = None,
        name: str = "",
        away_after: int | None = None,
        fail_every: int = 0,
        accidents: Mapping[str, Accident] | None = None,
        delay: float = 0.0,
    ) -> None:
        self._answers, self._name, self.answered = answers or {}, name, 0
        self._away_after, self._fail_every = away_after, fail_every
        self._accidents, self._delay = accidents or {}, delay

    @property
    def fingerprint(self) -> Mapping[str, object]:
        return {**super().fingerprint, "name": self._name} if self._name else super().fingerprint

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        for request in requests:
            if self._away_after is not None and self.answered >= self._away_after:
                raise ServiceError(
                    f"The scripted generator went away after {self.answered} answers."
                )
            self._meet_with(self._accidents.get(request.id))
            if self._delay:
                time.sleep(self._delay)
            self.answered += 1
            told = self._answers.get(request.id)
            if isinstance(told, str):
                told = Completion(request.id, told)
            for answer in [told] if told else super().generate([request]):
                failing = self._fail_every and _number(request.id) % self._fail_every == 0
                yield Failure(request.id, "told to fail", permanent=False) if failing else answer

    def _meet_with(self, accident: Accident | None) -> None:
        if accident == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while accident == "hang":
            time.sleep(60)
        if accident == "error":
            raise ValueError("an accident that was asked for")


faulty = functools.partial(functools.partial, Faulty)
"""What to put in the place of `Scripted`: `faulty(delay=1)`, see `Faulty`."""


def _number(id_: str) -> int:
    """A number that depends on the id alone, the same in every process."""
    digest = hashlib.blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest, "big")


def main() -> None:
    """Run a command whose generator `scripted` has the faults of the first argument."""
    faults, module = sys.argv[1:3]
    extractive.Scripted = faulty(**json.loads(faults))  # type: ignore[assignment, misc]
    sys.argv = [module, *sys.argv[3:]]
    importlib.import_module(module).main()


if __name__ == "__main__":
    main()
