"""Settings: one TOML file, then COGR_ environment variables, then flags. Unknown keys are errors
that name the nearest key, and every error names the source of the value that it is about.

Nested keys are spelled `[opensearch] url = ...` in the file, `COGR_OPENSEARCH__URL` in the
environment and `--set opensearch.url=...` on the command line. Paths in the file are relative to
the file. Each other file of this package holds the tables of one subject.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError as UnreadableError

from cogr.errors import SettingsError
from cogr.redaction import learn, learn_address
from cogr.settings.indexing import (
    DatasetSettings,
    GeneratorSettings,
    KeywordSettings,
    PromptSettings,
    RebuildSettings,
    RedisSettings,
)
from cogr.settings.serving import (
    LogSettings,
    MetricsSettings,
    OpenSearchSettings,
    PublishSettings,
    ServingSettings,
)
from cogr.settings.table import sound, usable_path
from cogr.settings.training import TrainingSettings

_PREFIX = "COGR_"


class Settings(BaseSettings):
    """Every setting of the toolkit, checked; `load_settings` makes it."""

    model_config = SettingsConfigDict(
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        env_prefix=_PREFIX,
        env_nested_delimiter="__",
    )

    dataset: DatasetSettings
    store: str = Field(
        ".cogr", description="Place of snapshots, runs and caches: a folder or an fsspec URL"
    )
    backend: Literal["auto", "memory", "opensearch"] = Field(
        "auto", description="auto: opensearch when opensearch.url is set, else memory"
    )
    keywords: KeywordSettings = Field(default_factory=KeywordSettings)
    prompts: PromptSettings = Field(default_factory=PromptSettings)
    generator: GeneratorSettings = Field(default_factory=GeneratorSettings)
    rebuild: RebuildSettings = Field(default_factory=RebuildSettings)
    redis: RedisSettings = Field(default_factory=RedisSettings)
    publish: PublishSettings = Field(default_factory=PublishSettings)
    opensearch: OpenSearchSettings = Field(default_factory=OpenSearchSettings)
    serving: ServingSettings = Field(default_factory=ServingSettings)
    training: TrainingSettings = Field(default_factory=TrainingSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)

    _sound = field_validator("store")(sound)
    _is_path = field_validator("store")(usable_path)

    @model_validator(mode="before")
    @classmethod
    def _secrets_are_masked(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            learn_secrets(values)
        return values

    @model_validator(mode="after")
    def _backend_has_url(self) -> Settings:
        if self.backend == "opensearch" and not self.opensearch.url:
            raise ValueError("backend is opensearch, but opensearch.url is not set")
        if self.serving.into.index and self.backend_name == "memory":
            raise ValueError("serving.into.index is in OpenSearch, but the backend is memory")
        return self

    @property
    def backend_name(self) -> Literal["memory", "opensearch"]:
        if self.backend == "auto":
            return "opensearch" if self.opensearch.url else "memory"
        return self.backend


def known_fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that can be set, dotted, and its type."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from known_fields(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, inner


def known_keys() -> Iterator[str]:
    """Every key that can be set, dotted."""
    return (key for key, _ in known_fields(Settings))


def secret_keys() -> Iterator[str]:
    """Every key that holds a secret, dotted."""
    return (key for key, kind in known_fields(Settings) if SecretStr in get_args(kind))


def learn_secrets(values: Mapping[str, Any]) -> None:
    """Keep secret values out of every sentence: those of secret keys, users and passwords of
    URLs.
    """
    secret = set(secret_keys())
    for path, value in leaves(values):
        if isinstance(value, str):
            learn_address(value)
            if ".".join(path) in secret:
                learn(value)


def leaves(
    values: Mapping[str, Any], at: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that is not a table, and empty tables, with their paths."""
    for name, value in values.items():
        path = (*at, str(name))
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path, value


FLAG = "--set"
DEFAULT_FILE = "cogr.toml"
OTHER_VARIABLES = frozenset(
    {"COGR_CONFIG", "COGR_DATA_DIR", "COGR_CACHE_DIR", "COGR_OPENSEARCH_HOME"}
)
"""Variables that start with COGR_ but are not settings: where files lie on this machine."""
_PATHS = (
    "store",
    "dataset.path",
    "opensearch.ca_file",
    "opensearch.client_cert",
    "opensearch.client_key",
    "publish.rules",
)
_NAMES = ("generator.model", "prompts.templates", "training.model", "training.accelerate")
"""Keys whose value is a path or a name."""
_EXAMPLE = 'a data set of your own needs [dataset] loader = "beir" and path = "DIR"'
_Path = tuple[str, ...]


def load_settings(
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    otherwise: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings of a TOML file, the environment and `key=value` overrides; later ones win.

    Args:
        file: the TOML file; ./cogr.toml when None.
        overrides: `--set` values such as "opensearch.url=http://localhost:9200"; read as TOML where
            they parse, otherwise as text.
        otherwise: replaces the file where none is named and there is no ./cogr.toml.

    Raises:
        SettingsError: a missing or broken file, an unknown key, a value of the wrong kind.
    """
    named = file or os.environ.get("COGR_CONFIG")
    path = Path(named or DEFAULT_FILE)
    absent = otherwise is not None and named is None and not path.exists()
    written = dict(otherwise or {}) if absent else _read_toml(path)
    _check_variables()
    flags: dict[str, Any] = {}
    for override in overrides:
        key, value = read_flag(override)
        for part in reversed(key.split(".")):
            value = {part: value}
        _merge(flags, value)
    values: dict[str, Any] = {}
    try:
        whole = _absolute(path.resolve().parent, {"store": ".cogr", **written})
        for layer in (whole, EnvSettingsSource(Settings)(), flags):
            _merge(values, layer)
        return Settings(**values)
    except (UnreadableError, RecursionError) as error:
        table = re.search(r'field "(\w+)"', str(error))
        raise SettingsError(
            f"The environment variable {_PREFIX}{table[1].upper() if table else '...'} is not "
            'valid JSON; write a list as ["a", "b"], and a table key by key.'
        ) from None
    except ValidationError as error:
        # Not from the library's error, which quotes what was given.
        raise SettingsError(_explain(error, str(path), flags)) from None


def _explain(error: ValidationError, file: str, flags: Mapping[str, Any]) -> str:
    # A misspelt key comes first: a value may be missing for it.
    errors = error.errors(include_url=False, include_context=False)
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    path = tuple(str(part) for part in first["loc"])
    key = ".".join(path)
    if first["type"] == "missing":
        return f"{file}: {key} is missing; add it ({_EXAMPLE})."
    message = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    if not key:
        return f"{message[:1].upper() + message[1:]}."
    source = _source(path, file, flags)
    if first["type"] == "extra_forbidden":
        what, near = ("table", "one") if isinstance(first["input"], Mapping) else ("key", "key")
        nearest = _nearest(key, list(known_keys()))
        return f"{source}: the {what} {key:.80} is unknown; the nearest known {near} is {nearest}."
    given, public = first["input"], set(known_keys()) - set(secret_keys())
    plain = key in public and isinstance(given, str | float | int) and "@" not in str(given)
    shown = f" (given: {given!r:.60})" if plain else ""
    return f"{source}: {key}: {message[:1].lower() + message[1:]}{shown}."


def _source(path: _Path, file: str, flags: Any) -> str:
    """What says a value, or the table around it; the strongest of several."""
    for part in path:
        flags = flags.get(part) if isinstance(flags, Mapping) else flags
    if flags is not None:
        return FLAG
    variables = {name.upper(): name for name in os.environ}
    keys = (_variable(".".join(path[:end])) for end in range(len(path), 0, -1))
    names = [variables[key] for key in keys if key in variables]
    return f"The environment variable {names[0]}" if names else file


def _nearest(key: str, keys: Collection[str]) -> str:
    name, depth = key.rpartition(".")[2], key.count(".") + 1
    known = {".".join(one.split(".")[:depth]) for one in keys}
    if near := difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.7):
        return near[0]
    elsewhere = [one for one in sorted(keys) if one.endswith(f".{name}")]
    return (elsewhere or difflib.get_close_matches(key, [*keys], n=1, cutoff=0.0))[0]


def read_flag(override: str) -> tuple[str, Any]:
    """The dotted key of a `--set` override, and its value: as TOML where it parses, otherwise as
    text. Raises SettingsError.
    """
    key, equals, text = (part.strip() for part in override.partition("="))
    if not equals or not re.fullmatch(r"[^\s.\"'@/]+(\.[^\s.\"'@/]+)*", key):
        # The rest may be a secret that lacks its equals sign.
        named = re.match(r"[a-z_]+\.[a-z_.]+(?=\s|$)", key)
        about = f" {named[0]:.60}" if named else ""
        raise SettingsError(f"{FLAG}{about} is not of the form key=value, such as store=DIR.")
    try:
        read = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        read = {"value": text}
    return key, read["value"] if len(read) == 1 else text


def _merge(values: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = value


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        # Editors on Windows begin a file with a byte order mark.
        return tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError as error:
        raise SettingsError(
            f'There is no configuration {path}: write one with [dataset] loader = "beir" and '
            'path = "DIR", or name one with -c.'
        ) from error
    except OSError as error:
        raise SettingsError(
            f"The configuration {path} can't be read ({error.strerror}); name a TOML file with -c."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise SettingsError(f"The configuration {path} is not valid TOML: {reason}.") from error


def _absolute(folder: Path, values: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    # The file means the same from every working directory. A model or a name of templates is a path
    # only where such a file is there.
    result = dict(values)
    for name, value in values.items():
        key = f"{at}{name}"
        named = key in _NAMES
        if isinstance(value, Mapping):
            result[name] = _absolute(folder, value, f"{key}.")
        elif isinstance(value, str) and value and "://" not in value and (key in _PATHS or named):
            result[name] = _path(folder, value, there=named)
    return result


def _path(folder: Path, text: str, *, there: bool) -> str:
    try:
        path = folder / Path(text).expanduser()
        return text if there and not path.exists() else str(path)
    except (RuntimeError, OSError, ValueError):  # the settings' own checks say why
        return text


def _check_variables() -> None:
    known, tables = set(map(_variable, known_keys())), set(map(_variable, Settings.model_fields))
    for name in os.environ:
        if name.startswith(_PREFIX) and name.upper() not in known | tables | OTHER_VARIABLES:
            near = difflib.get_close_matches(
                name.upper(), known | OTHER_VARIABLES, n=1, cutoff=0.0
            )[0]
            raise SettingsError(
                f"The environment variable {name} is not a setting; the nearest one is {near}."
            )


def _variable(key: str) -> str:
    return f"{_PREFIX}{key.replace('.', '__')}".upper()
