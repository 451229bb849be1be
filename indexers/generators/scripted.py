"""The generator `scripted`: answers by a rule, or from a table or a function of Python's.
Deterministic; for tests and rehearsals.

Everything around a generator can be tried with it without a language model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

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
"""The rule: so many of the first distinct words of the entity's own text, as many as a catalogue's
usual keyword set has.
"""
_WORD = re.compile(r"\w+")


class ScriptedOptions(Options):
    """The kind `scripted` has no options."""


class Scripted(Generator):
    """Answers from a table, else from a function, else from the rule.

    Args:
        answers: by entity id.
        function: called with the entity where there is no answer by id.
        name: names answers and function in the fingerprint.
    """

    def __init__(
        self,
        options: ScriptedOptions | None = None,
        *,
        answers: Mapping[str, str | Failure] | None = None,
        function: Callable[[Entity], str] | None = None,
        name: str = "",
    ) -> None:
        self._options = options or ScriptedOptions()
        self._answers = answers or {}
        self._function = function
        self._name = name
        self.answered = 0
        """Answers given so far, over all calls."""

    @property
    def reads(self) -> Reads:
        """The entity's id and text decide the answer."""
        return "entity"

    @property
    def fingerprint(self) -> Mapping[str, object]:
        return {"kind": "scripted", "name": self._name, "rule": "words", "words": WORDS}

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        for request in requests:
            self.answered += 1
            yield self._answer(request)

    def _answer(self, request: Request) -> Answer:
        known = self._answers.get(request.id)
        if isinstance(known, Failure):
            return known
        text = known if known is not None else self._invented(request)
        return Completion(request.id, text, tokens=len(text.split()))

    def _invented(self, request: Request) -> str:
        if self._function is not None:
            return self._function(request.entity)
        return ", ".join(_words(request.entity, WORDS))


def _words(entity: Entity, count: int) -> list[str]:
    text = f"{entity.title} {entity.text}" if isinstance(entity, Item) else entity.text
    found: dict[str, None] = {}
    for match in _WORD.finditer(text):
        if len(found) >= count:
            break
        found[match[0].lower()] = None
    return list(found)


def make(options: ScriptedOptions, _: Context) -> Scripted:
    """The registry's entry."""
    return Scripted(options)
