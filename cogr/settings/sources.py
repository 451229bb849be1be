"""Where each value of the settings was said: a file, environment variables, flags.

A mistake is blamed on its own source.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource
from pydantic_settings.exceptions import SettingsError as UnreadableError

from cogr.errors import SettingsError, learn, learn_address
from cogr.settings.root import what_now

FLAG = "--set"
_FLAG_EXAMPLE = "such as opensearch.url=http://localhost:9200"
_EXAMPLE = 'a data set of your own needs [dataset] loader = "beir" and path = "DIR"'
_DEEPEST = 20
_Path = tuple[str, ...]


class Layers:
    """Values of several sources, the later one over the earlier one, and who said each of them.

    Args:
        values: the first source's.
        source: what it is called.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values: dict[str, Any] = {}
        self._first, self._said = source, list[tuple[_Path, str]]()
        self.add(values, source)

    def add(self, values: Mapping[str, Any], source: str) -> None:
        """What another source says."""
        self._said += [(path, source) for path, _ in leaves(values)]
        _merge(self.values, values)

    def add_default(self, where: _Path, value: str, source: str) -> None:
        """A value for where nobody has said one."""
        table: Any = self.values
        for name in where[:-1]:
            table = table.setdefault(name, {}) if isinstance(table, dict) else None
        if isinstance(table, dict) and where[-1] not in table:
            table[where[-1]] = value
            self._said.append((where, source))

    def add_variables(self, model: type[BaseSettings]) -> None:
        """What the environment says of a settings model.

        Raises SettingsError for a value that is to be JSON and is none.
        """
        _merge(self.values, read_variables(model))
        prefix = str(model.model_config["env_prefix"])
        for name in os.environ:
            if name.upper().startswith(prefix):
                path = tuple(name.upper().removeprefix(prefix).lower().split("__"))
                self._said.append((path, f"the environment variable {name}"))

    def source(self, where: _Path) -> str:
        """Who said the value there, or the values below it."""
        at = [(path, who) for path, who in self._said if path == where[: len(path)]]
        below = [who for path, who in self._said if path[: len(where)] == where]
        return at[-1][1] if at else " and ".join(dict.fromkeys(below)) or self._first

    def explain(
        self, error: ValidationError, keys: Collection[str], secret: Collection[str], at: _Path = ()
    ) -> str:
        """One sentence for what is wrong. A misspelt key comes first: what is missing then, is
        missing for it.

        Args:
            keys: all that are known, dotted.
            secret: those whose values are not shown.
            at: the table that was looked at; all of them by default.
        """
        errors = error.errors(include_url=False, include_context=False)
        first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
        path = (*at, *(str(part) for part in first["loc"]))
        key = ".".join(path)
        if first["type"] == "extra_forbidden":
            what, near = ("table", "one") if isinstance(first["input"], Mapping) else ("key", "key")
            told = what_now(key, first["input"]) or (
                f"the {what} {key:.80} is unknown; the nearest known {near} is {nearest(key, keys)}"
            )
            return f"{_first_upper(self.source(path))}: {told}."
        if first["type"] == "missing":
            return f"{_first_upper(self._first)}: {key} is missing; add it ({_EXAMPLE})."
        message = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
        shown = _shown(first["input"]) if key in set(keys) - set(secret) else ""
        if not key:
            return f"{message[:1].upper() + message[1:]}."
        return (
            f"{_first_upper(self.source(path))}: {key}: {message[:1].lower() + message[1:]}{shown}."
        )


def _first_upper(source: str) -> str:
    """The beginning of a sentence. Names of files stay as they are."""
    return f"The{source[3:]}" if source.startswith("the environment") else source


def nearest(key: str, keys: Collection[str]) -> str:
    """The known key or table that an unknown one is most like: of the same table, of the same name
    elsewhere, or of all.
    """
    table, _, name = key.rpartition(".")
    depth = key.count(".") + 1
    known = sorted({".".join(known.split(".")[:depth]) for known in keys})
    beside = {one.rpartition(".")[2]: one for one in known if one.rpartition(".")[0] == table}
    if near := difflib.get_close_matches(name.lower(), beside, n=1):
        return beside[near[0]]
    elsewhere = [one for one in sorted(keys) if one.endswith(f".{name}")]
    return (elsewhere or difflib.get_close_matches(key, [*keys], n=1, cutoff=0.0))[0]


def read_variables(model: type[BaseSettings]) -> dict[str, Any]:
    """What the environment says of a settings model.

    Raises SettingsError for a value that is to be JSON and is none.
    """
    try:
        return dict(EnvSettingsSource(model)())
    except (UnreadableError, RecursionError) as error:
        prefix = str(model.model_config["env_prefix"])
        whole = {name for name, kind in known_fields(model) if get_origin(kind) is dict} | set(
            model.model_fields
        )
        names = {f"{prefix}{name.replace('.', '__')}".upper() for name in whole}
        wrong = [
            name
            for name, value in os.environ.items()
            if name.upper() in names and not _is_json(value)
        ]
        told = " or ".join(wrong) or f"{prefix}..."
        raise SettingsError(
            f"The environment variable {told} is no JSON object; set the keys one by one, such "
            f"as {told}__KEY."
        ) from error


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def known_fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that can be set, dotted, and its type."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from known_fields(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, inner


def flag(override: str) -> dict[str, Any]:
    """The values of one `--set key=value`, read as TOML where it parses, else as text.

    Raises SettingsError.
    """
    key, equals, text = (part.strip() for part in override.partition("="))
    if not equals or not re.fullmatch(r"[^\s.\"'@/]+(\.[^\s.\"'@/]+)*", key):
        # The rest may be a secret that lacks its equals sign.
        named = re.match(r"[a-z_]+\.[a-z_.]+(?=\s|$)", key)
        about = f" {named[0]:.60}" if named else ""
        raise SettingsError(f"{FLAG}{about} is not of the form key=value, {_FLAG_EXAMPLE}.")
    nested: Any = _read(text)
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return dict(nested)


def _read(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return read["value"] if len(read) == 1 else text


def leaves(values: Mapping[str, Any], at: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Every value that is no table, and empty tables, with their paths.

    Without recursion: a value may be nested deeply.
    """
    waiting: list[tuple[_Path, Any]] = [(at, values)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Mapping) and value and len(path) < _DEEPEST:
            waiting += [((*path, str(name)), inner) for name, inner in value.items()]
        else:
            yield path, value


def learn_secrets(values: Mapping[str, Any], secret: Collection[str]) -> None:
    """Keep what is secret among values out of every sentence: values of secret keys, users and
    passwords of URLs.
    """
    for path, value in leaves(values):
        if isinstance(value, str):
            learn_address(value)
            if ".".join(path) in secret:
                learn(value)


def _shown(given: object) -> str:
    """What was given, for a sentence; "" for tables and lists, and for what may have a password in
    it.
    """
    if not isinstance(given, str | float | int) or (isinstance(given, str) and "@" in given):
        return ""
    return f" (given: {given!r:.60})"


def _merge(values: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = dict(value) if isinstance(value, Mapping) else value
