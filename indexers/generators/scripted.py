"""The generator `scripted`: answers from a file, a function or a rule. Deterministic; for tests and
rehearsals.

Everything around a generator can be tried with it without a language model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError

from cogr.errors import GeneratorError
from cogr.records import Dataset, Entity, Item, Side
from cogr.store import Store
from indexers.generators import Answer, Completion, Failure, Generator, Options, Reads, Request

WORDS = 10
"""The rule: so many of the first distinct words of the entity's own text, as many as a catalogue's
usual keyword set has.
"""
_WORD = re.compile(r"\w+")


class ScriptedOptions(Options):
    """Options of the kind `scripted`.

    Attributes:
        script: a jsonl file with one answer a line: {"id": ..., "text": ...}, or {"id": ...,
            "failure": ...} with an optional "permanent". Entities that it does not name are
            answered by the rule.
    """

    script: Path | None = None


class Scripted(Generator):
    """Answers from a table, else from a function, else from the rule of its options.

    Args:
        options: see `ScriptedOptions`; its script, if any, is read at once.
        answers: more answers by entity id, over those of the script.
        function: called with the entity where there is no answer by id. Give it a `name` for the
            fingerprint.
        name: names answers and function in the fingerprint.

    Raises:
        GeneratorError: the script can't be read; names file and line.
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
        self._answers: dict[str, str | Failure] = {}
        self._digest = ""
        if self._options.script is not None:
            self._answers, self._digest = read_script(self._options.script)
        self._answers.update(answers or {})
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
        known = {"kind": "scripted", "name": self._name, "script": self._digest}
        return {**known, "rule": "words", "words": WORDS}

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


class _Line(BaseModel):
    """A line of a script: a text or a failure."""

    id: str
    text: str | None = None
    failure: str | None = None
    permanent: bool = True

    def answer(self) -> str | Failure:
        if self.failure is not None:
            return Failure(self.id, self.failure, self.permanent)
        return self.text or ""


def read_script(path: Path) -> tuple[dict[str, str | Failure], str]:
    """The answers of a script by entity id, and the first 16 hex digits of the file's sha256."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise GeneratorError(
            f"The script {path} can't be read ({error.strerror}); check the generator's option "
            "script."
        ) from error
    answers: dict[str, str | Failure] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                told = _Line.model_validate_json(line)
            except ValidationError as error:
                raise GeneratorError(
                    f'{path}, line {number}: write {{"id": "...", "text": "..."}} or '
                    '{"id": "...", "failure": "..."}.'
                ) from error
            answers[told.id] = told.answer()
    return answers, hashlib.sha256(data).hexdigest()[:16]


def _words(entity: Entity, count: int) -> list[str]:
    text = f"{entity.title} {entity.text}" if isinstance(entity, Item) else entity.text
    found: dict[str, None] = {}
    for match in _WORD.finditer(text):
        if len(found) >= count:
            break
        found[match[0].lower()] = None
    return list(found)


def make(  # the registry's signature
    options: ScriptedOptions,
    side: Side,  # noqa: ARG001
    dataset: Dataset | None,  # noqa: ARG001
    store: Store | None,  # noqa: ARG001
) -> Scripted:
    """The registry's entry."""
    return Scripted(options)
