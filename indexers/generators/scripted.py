"""The generator `scripted`, for tests and rehearsals: the first words of an entity's own text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from cogr.records import Item
from indexers.generators import Answer, Completion, Context, Generator, Options, Reads, Request

WORDS = 10
"""So many distinct words, as many as a catalogue's usual keyword set has."""
_WORD = re.compile(r"\w+")


class ScriptedOptions(Options):
    """The kind `scripted` has no options."""


class Scripted(Generator):
    """Answers by the rule."""

    @property
    def reads(self) -> Reads:
        """The entity's text decides the answer."""
        return "entity"

    @property
    def fingerprint(self) -> Mapping[str, object]:
        return {"kind": "scripted", "words": WORDS}

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        for request in requests:
            entity = request.entity
            text = f"{entity.title} {entity.text}" if isinstance(entity, Item) else entity.text
            found = dict.fromkeys(match[0].lower() for match in _WORD.finditer(text))
            text = ", ".join(islice(found, WORDS))
            yield Completion(request.id, text, tokens=len(text.split()))


def make(_: ScriptedOptions, _context: Context) -> Scripted:
    """The registry's entry."""
    return Scripted()
