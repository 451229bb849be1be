"""The generator `scripted`, for tests and rehearsals: the first words of an entity's own text, or
answers from a table. Deterministic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from cogr.records import Entity, Item
from indexers.generators import (
    Answer,
    Completion,
    Context,
    Failure,
    Generator,
    Options,
    Reads,
    Request,
)

WORDS = 10
"""So many distinct words, as many as a catalogue's usual keyword set has."""
_WORD = re.compile(r"\w+")


class ScriptedOptions(Options):
    """The kind `scripted` has no options."""


class Scripted(Generator):
    """Answers from a table, else by the rule.

    Args:
        answers: by entity id.
        name: names the answers in the fingerprint.
    """

    def __init__(
        self,
        _: ScriptedOptions | None = None,
        *,
        answers: Mapping[str, str | Failure] | None = None,
        name: str = "",
    ) -> None:
        self._answers, self._name = answers or {}, name
        self.answered = 0
        """Answers given so far, over all calls."""

    @property
    def reads(self) -> Reads:
        """The entity's id and text decide the answer."""
        return "entity"

    @property
    def fingerprint(self) -> Mapping[str, object]:
        return {"kind": "scripted", "name": self._name, "words": WORDS}

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        for request in requests:
            self.answered += 1
            known = self._answers.get(request.id)
            text = _words(request.entity) if known is None else known
            yield (
                text
                if isinstance(text, Failure)
                else Completion(request.id, text, tokens=len(text.split()))
            )


def _words(entity: Entity) -> str:
    text = f"{entity.title} {entity.text}" if isinstance(entity, Item) else entity.text
    found = dict.fromkeys(match[0].lower() for match in _WORD.finditer(text))
    return ", ".join(islice(found, WORDS))


def make(options: ScriptedOptions, _: Context) -> Scripted:
    """The registry's entry."""
    return Scripted(options)
