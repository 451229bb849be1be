"""Loading settings: one TOML file, then COGR_ environment variables, then flags.

It is known where each value was said, so that a mistake is blamed on its own source.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource
from pydantic_settings.exceptions import SettingsError as UnreadableError

from cogr.errors import SettingsError, learn, learn_address
from cogr.settings.root import Settings, what_now

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
            reason = what_now(key, first["input"]) or (
                f"the {what} {key:.80} is unknown; the nearest known {near} is {nearest(key, keys)}"
            )
            return f"{_first_upper(self.source(path))}: {reason}."
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
        variables = " or ".join(wrong) or f"{prefix}..."
        raise SettingsError(
            f"The environment variable {variables} is no JSON object; set the keys one by one, "
            f"such as {variables}__KEY."
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


DEFAULT_FILE = "cogr.toml"
URL_VARIABLE = "COGR_OPENSEARCH_URL"
"""Names a running cluster, where nothing else does."""
# Variables that start with COGR_ but are no settings: where data and caches lie on this machine,
# servers for tests.
OTHER_VARIABLES = frozenset(
    {"COGR_CONFIG", "COGR_DATA_DIR", "COGR_CACHE_DIR", URL_VARIABLE, "COGR_OPENSEARCH_HOME"}
)


def load_settings(
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    otherwise: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings of a TOML file, the environment and `key=value` overrides, in this order of growing
    weight.

    Args:
        file: the TOML file; ./cogr.toml when None.
        overrides: `--set` values such as "opensearch.url=http://localhost:9200"; read as TOML where
            they parse, else as text.
        otherwise: stands for the file where none is named and there is no ./cogr.toml.

    Raises:
        SettingsError: a missing or broken file, an unknown key, a value of the wrong kind.
    """
    named = file or os.environ.get("COGR_CONFIG")
    path = Path(named or DEFAULT_FILE)
    absent = otherwise is not None and named is None and not path.exists()
    layers = Layers(copy.deepcopy(dict(otherwise or {})) if absent else _read_toml(path), str(path))
    _check_variables()
    _relative_to(path.resolve().parent, layers.values)
    layers.add_variables(Settings)
    for override in overrides:
        layers.add(flag(override), FLAG)
    _add_cluster(layers)
    settings: Settings = _validated(Settings, layers)
    return settings


def table_of_environment(name: Literal["opensearch", "redis"]) -> Any:
    """One table as the environment alone says it; None where it names no URL.

    Raises SettingsError.
    """
    layers = Layers({}, "the environment")
    layers.add_variables(Settings)
    _add_cluster(layers)
    if not layers.values.get(name, {}).get("url"):
        return None
    return _validated(Settings.model_fields[name].annotation, layers, name)


def _add_cluster(layers: Layers) -> None:
    if url := os.environ.get(URL_VARIABLE):
        layers.add_default(("opensearch", "url"), url, f"the environment variable {URL_VARIABLE}")


def _validated(model: Any, layers: Layers, table: str = "") -> Any:
    learn_secrets(layers.values, set(secret_keys()))
    try:
        return model.model_validate(layers.values[table] if table else layers.values)
    except ValidationError as error:
        sentence = layers.explain(
            error, list(known_keys()), set(secret_keys()), (table,) if table else ()
        )
        # Not from the library's error, which quotes what was given.
        raise SettingsError(sentence) from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        # Editors on Windows begin a file with a byte order mark.
        return tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError as error:
        raise SettingsError(
            f'There is no configuration {path}: write one with [dataset] loader = "beir" and '
            'path = "DIR", or name one with -c.'
        ) from error
    except IsADirectoryError as error:
        raise SettingsError(
            f"The configuration {path} is a folder; name a TOML file with -c."
        ) from error
    except OSError as error:
        raise SettingsError(
            f"The configuration {path} can't be read ({error.strerror}); name a TOML file with -c."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The configuration {path} is no valid TOML: {error}.") from error
    except RecursionError as error:
        raise SettingsError(
            f"The configuration {path} is no valid TOML: it is nested too deeply."
        ) from error


def _relative_to(folder: Path, values: dict[str, Any]) -> None:
    """Make the paths of the file absolute, so that it means the same from every working
    directory.
    """
    keys = (
        "store",
        "dataset.path",
        "generator.model",
        "generator.scripted.script",
        "opensearch.ca_file",
        "redis.ca_file",
        "redis.cert_file",
        "redis.key_file",
        "metrics.file",
        "training.model",
        "training.accelerate",
    )
    values.setdefault("store", ".cogr")
    for key in (*keys, *_models_compared(values)):
        table: Any = values
        *parents, last = key.split(".")
        for parent in parents:
            table = table.get(parent, {}) if isinstance(table, dict) else {}
        text = table.get(last) if isinstance(table, dict) else None
        if not isinstance(text, str) or "://" in text or not text:
            continue
        # A model may also be a name on a hub: only a folder that is there is a path.
        if (candidate := _path(folder, text)) and (
            not key.startswith(("generator.", "training.", "compare.")) or _there(candidate)
        ):
            table[last] = str(candidate)


def _models_compared(values: Mapping[str, Any]) -> list[str]:
    """The keys of what methods start from, but for a training run's name."""
    compare = values.get("compare")
    models = compare.get("models") if isinstance(compare, dict) else None
    names = models if isinstance(models, dict) else {}
    return [f"compare.models.{name}" for name in names if name != "cogr" and "." not in name]


def _path(folder: Path, text: str) -> Path | None:
    """None for the home of nobody."""
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        return None


def _there(path: Path) -> bool:
    """A name that no disk can have is not there."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def known_keys(model: type[BaseModel] = Settings) -> Iterator[str]:
    """Every key that can be set, dotted."""
    return (key for key, _ in known_fields(model))


def secret_keys() -> Iterator[str]:
    """Every key that holds a secret, dotted."""
    return (key for key, kind in known_fields(Settings) if SecretStr in get_args(kind))


def _check_variables() -> None:
    known = {f"COGR_{key.replace('.', '__')}".upper() for key in known_keys()}
    tables = {f"COGR_{name}".upper() for name in Settings.model_fields}
    for name in os.environ:
        if name.startswith("COGR_") and name.upper() not in known | tables | OTHER_VARIABLES:
            key = name.upper().removeprefix("COGR_").lower().replace("__", ".")
            if reason := what_now(key):
                raise SettingsError(f"The environment variable {name}: {reason}.")
            near = difflib.get_close_matches(
                name.upper(), known | OTHER_VARIABLES, n=1, cutoff=0.0
            )[0]
            raise SettingsError(
                f"The environment variable {name} is no setting; the nearest one is {near}."
            )
