"""Loading settings: one TOML file, then COGR_ environment variables, then flags."""

from __future__ import annotations

import copy
import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, SecretStr, ValidationError

from cogr.errors import SettingsError
from cogr.settings.root import Settings, what_now
from cogr.settings.sources import FLAG, Layers, flag, known_fields, learn_secrets

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
            if told := what_now(key):
                raise SettingsError(f"The environment variable {name}: {told}.")
            near = difflib.get_close_matches(
                name.upper(), known | OTHER_VARIABLES, n=1, cutoff=0.0
            )[0]
            raise SettingsError(
                f"The environment variable {name} is no setting; the nearest one is {near}."
            )
