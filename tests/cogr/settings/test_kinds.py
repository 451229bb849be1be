"""Each kind of generator is one record, and what asks for a kind knows every one of them."""

from __future__ import annotations

from typing import get_args

import pytest

from cogr.errors import GeneratorError
from cogr.settings.indexing import (
    KINDS,
    GeneratorName,
    JudgeName,
    LiveName,
    kind_of,
)
from indexers.generators import Generator, Options, make_generator


def test_choices_of_settings_are_those_of_the_kinds() -> None:
    assert get_args(GeneratorName) == ("auto", *KINDS)
    assert get_args(JudgeName) == tuple(name for name, kind in KINDS.items() if kind.model)
    live = {name for name, kind in KINDS.items() if kind.is_live} - {"scripted"}
    assert {*get_args(LiveName)} == live | {"auto", "none"}


@pytest.mark.parametrize("name", ["frob", "auto", "none", "None", ""])
def test_an_unknown_kind_is_an_error_and_no_answer(name: str) -> None:
    for ask in (lambda: kind_of(name), lambda: make_generator({"kind": name}, "query")):
        with pytest.raises(GeneratorError, match=f"{name} .*one of "):
            ask()


@pytest.mark.torch
def test_every_kind_is_made_by_its_module() -> None:
    for kind in KINDS.values():
        module = __import__(f"indexers.generators.{kind.module}", fromlist=[kind.options])
        options = getattr(module, kind.options)
        assert issubclass(options, Options)
        assert options.make is not Options.make
    assert Generator.keeps_memory is False
