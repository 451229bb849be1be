"""Writes docs/commands.md from the commands' own --help and docs/settings.md from the settings
model, neither of them committed, and docs/openapi.json, the expander's interface, which a test
compares with what this writes.

Run by `make docs`.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.main import get_command

from cogr.settings import Settings
from cogr.settings.serving import ServingSettings
from indexers.cli import app as index_app
from ops.cli import app as ops_app
from ops.expander.app import create_app
from ops.expander.expander import Parts
from trainers.cli import app as train_app

HERE = Path(__file__).parent
APPS: dict[str, typer.Typer] = {
    "cogr-index": index_app,
    "cogr-train": train_app,
    "cogr-ops": ops_app,
}


def commands_page() -> str:
    """The command reference."""
    head = (
        "# Commands\n\nWritten by `make docs` from `--help`. Exit status: 0 done, 1 a check "
        "failed, 2 wrong input, "
    )
    head += (
        "3 a service can't be reached, 130 interrupted. `--json` prints one JSON object on "
        "standard output.\n"
    )
    parts = [head]
    for name, app in APPS.items():
        for path, command in _walk(name, get_command(app)):
            parts.append(_command(path, command))
    return _wrapped("\n".join(parts))


def _walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _walk(f"{path} {name}", inner)


def _command(path: str, command: Any) -> str:
    level = "#" * min(4, 1 + len(path.split()))
    lines = [f"{level} {path}\n", _text(command.help or ""), ""]
    if hasattr(command, "commands"):
        return "\n".join(lines)
    lines += ["| argument or option | meaning | default |", "|---|---|---|"]
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        meaning = _text(f"{getattr(parameter, 'help', '') or ''} {_choices(parameter)}")
        lines.append(f"| {_names(parameter)} | {meaning} | {_default(parameter.default)} |")
    return "\n".join([*lines, ""])


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    return ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])


def _choices(parameter: Any) -> str:
    """What --help shows in brackets beside the option."""
    kind = parameter.type_descriptor.annotation
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and issubclass(one, Enum):
            return f"[{', '.join(choice.value for choice in one)}]"
        if get_origin(one) is Literal:
            return f"[{', '.join(get_args(one))}]"
    return ""


def _default(value: Any) -> str:
    if value is None or value == [] or callable(value):
        return ""
    return f"`{getattr(value, 'value', value)}`"


def _text(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def settings_page() -> str:
    """The settings reference."""
    lines = [
        "# Settings\n",
        "Written by `make docs` from the settings model. Settings come from one TOML file "
        "(`cogr.toml`), then from environment variables, then from `--set`; later ones win. "
        "`[opensearch] url = ...` in the file is `COGR_OPENSEARCH__URL` in the environment and "
        "`--set opensearch.url=...` in a command. An unknown key is an error that names the "
        "nearest known key. Paths in the file are relative to the file.\n",
        "Further environment variables: `COGR_CONFIG` names the file, `COGR_DATA_DIR` the folder "
        "of the named public data sets, `COGR_CACHE_DIR` the folder of downloads and unpacked "
        "models, and `COGR_OPENSEARCH_HOME` an unpacked OpenSearch distribution.\n",
        *_table(Settings, ""),
    ]
    return _wrapped("\n".join(lines) + "\n")


def _wrapped(page: str) -> str:
    """The page with prose at 100 columns; tables and headings stay as they are."""
    lines = page.split("\n")
    return "\n".join(
        line if line.startswith(("|", "#")) else textwrap.fill(line, 100, break_on_hyphens=False)
        for line in lines
    )


def _table(model: type[BaseModel], prefix: str) -> Iterator[str]:
    plain = {
        name: field for name, field in model.model_fields.items() if not _is_model(field.annotation)
    }
    if plain:
        if prefix:
            yield f"## [{prefix[:-1]}]\n\n{_text(model.__doc__ or '')}\n"
        yield "| key | type | default | meaning |\n|---|---|---|---|"
        for name, field in plain.items():
            default = "required" if field.is_required() else _setting_default(field.default)
            yield (
                f"| `{prefix}{name}` | {_type(field.annotation)} | {default} | "
                f"{_text(field.description or '')} |"
            )
        yield ""
    for name, field in model.model_fields.items():
        if _is_model(field.annotation):
            yield from _table(field.annotation, f"{prefix}{name}.")  # type: ignore[arg-type]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _setting_default(value: Any) -> str:
    return "" if value is None or value is PydanticUndefined else f"`{value}`"


def _type(annotation: Any) -> str:
    spelled = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    spelled = re.sub(r"(typing\.|pydantic\.types\.|NoneType)", "", spelled).replace(" | None", "")
    return spelled.replace("|", "\\|").replace("SecretStr", "secret")


def openapi() -> str:
    """The expander's OpenAPI; of its parts only the settings are looked at."""
    parts = cast(Parts, SimpleNamespace(settings=ServingSettings()))
    return json.dumps(create_app(parts).openapi(), indent=2) + "\n"


def main() -> None:
    """Write the pages and the interface."""
    (HERE / "openapi.json").write_text(openapi(), "utf-8")
    (HERE / "commands.md").write_text(commands_page(), "utf-8")
    (HERE / "settings.md").write_text(settings_page(), "utf-8")


if __name__ == "__main__":
    main()
